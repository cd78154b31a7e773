#include "kernels/cpu/phase_clock.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "kernels/steps.h"

namespace runnel::kernels::cpu {
namespace {

using Described = std::pair<const char *, int32_t>;  // kind, layer or -1

Described described(const Phase &phase) {
    return std::visit(
        Overloaded{
            [](const EmbedPhase &) {
                return Described{"embedding", -1};
            },
            [](const HashedEmbedPhase &p) {
                return Described{"embedding", p.step.layer};
            },
            [](const PreparePhase &p) {
                return std::visit(Overloaded{
                                      [](std::monostate) {
                                          return Described{"activation format", -1};
                                      },
                                      [](const Norm &norm) {
                                          return Described{"norm", norm.layer};
                                      },
                                      [](const Activation &a) {
                                          return Described{"activation", a.layer};
                                      },
                                  },
                                  p.step);
            },
            [](const MultiplyPhase &p) {
                return Described{"matrix", p.step.layer};
            },
            [](const AppendPhase &p) {
                return Described{"rope and cache", p.step.layer};
            },
            [](const AttendPhase &p) {
                return Described{"attention", p.step.layer};
            },
            [](const IndexPhase &p) {
                return Described{"indexer", p.step.layer};
            },
            [](const HeadsPhase &p) {
                return Described{"matrix", p.step.layer};
            },
            [](const CopyPhase &p) {
                return Described{"copy", p.step.layer};
            },
            [](const RotatePhase &p) {
                return Described{"rotation", p.step.layer};
            },
            [](const MixPhase &p) {
                return Described{"mix", p.step.layer};
            },
            [](const StreamsPhase &p) {
                return Described{"stream weights", p.step.layer};
            },
            [](const RopePhase &p) {
                return Described{"rope", p.step.layer};
            },
            [](const JoinPhase &p) {
                return Described{"attention", p.step.layer};
            },
            [](const LerpPhase &p) {
                return Described{"interpolation", p.step.layer};
            },
            [](const ExpertsPhase &p) {
                return Described{"experts", p.step.layer};
            },
            [](const ScanPhase &p) {
                return Described{"state", std::visit([](const auto &step) { return step.layer; }, p.step)};
            },
            [](const SelectPhase &) {
                return Described{"copy", -1};
            },
            [](const LogitsPhase &) {
                return Described{"logits", -1};
            },
        },
        phase);
}

}  // namespace

void PhaseClock::begin(size_t phases, int threads) {
    base::Trace *current = base::Trace::current();
    trace_ = current && current->has_steps() ? current : nullptr;
    finished_ = 0;
    if (!trace_) return;
    times_.assign(phases, {});
    for (auto &times : arrived_) times.assign(static_cast<size_t>(threads), {});
}

void PhaseClock::finish(size_t phase, int thread) noexcept {
    if (!trace_ || thread != 0) return;
    Times &times = times_[phase];
    times.end = base::Clock::now();
    // Another thread may arrive before thread 0 starts the phase.
    for (const base::Clock::time_point at : arrived_[phase & 1])
        times.waited += base::seconds_between(std::max(at, times.begin), times.end);
    times.waited /= static_cast<double>(arrived_[phase & 1].size());
    finished_ = phase + 1;
}

void PhaseClock::report(std::span<const Phase> phases) {
    for (size_t i = 0; trace_ && i < finished_; ++i) {
        const auto [kind, layer] = described(phases[i]);
        const Times &times = times_[i];
        base::Trace::Event event{
            kind, trace_->at(times.begin), base::seconds_between(times.begin, times.end), {}};
        if (layer >= 0) event.notes.emplace_back("layer", layer);
        event.notes.emplace_back("waited_ns", std::llround(times.waited * 1e9));
        trace_->add(std::move(event));
    }
    trace_ = nullptr;
}

}  // namespace runnel::kernels::cpu
