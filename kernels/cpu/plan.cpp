#include "kernels/cpu/plan.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "kernels/backend.h"
#include "kernels/cpu/pool.h"

namespace runnel::kernels::cpu {
namespace {

template <class... F>
struct Overloaded : F... {
    using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;  // C++20 needs no guide here, compilers of its first years do

FormatSet formats_read_by(const Step &step, const Program &program) {
    const auto format_of = [&](WeightId id) {
        return format_bit(act_format(program.weights[static_cast<size_t>(id)].type));
    };
    FormatSet formats = 0;
    if (const auto *linear = std::get_if<Linear>(&step))
        for (const Linear::Part &part : linear->parts) formats |= format_of(part.weight);
    if (const auto *logits = std::get_if<Logits>(&step)) formats |= format_of(logits->weight);
    return formats;
}

Slot input_of_multiply(const Step &step) {
    if (const auto *linear = std::get_if<Linear>(&step)) return linear->in;
    if (const auto *logits = std::get_if<Logits>(&step)) return logits->in;
    return kNoSlot;
}

// Visits the slots that a step reads, then those it writes; kNoSlot among them.
template <typename Reads, typename Writes>
void visit_slots(const Step &step, Reads &&reads, Writes &&writes) {
    std::visit(Overloaded{
                   [&](const Embed &s) { writes(s.out); },
                   [&](const Norm &s) { reads(s.in), reads(s.add), writes(s.out); },
                   [&](const Linear &s) {
                       reads(s.in);
                       for (const Linear::Part &part : s.parts) {
                           reads(part.add);
                           writes(part.out);
                       }
                   },
                   [&](const Attention &s) { reads(s.q), reads(s.k), reads(s.v), writes(s.out); },
                   [&](const Gate &s) { reads(s.gate), reads(s.up), writes(s.out); },
                   [&](const Experts &s) {
                       reads(s.in), reads(s.logits);
                       if (s.add != kNoSlot) reads(s.add);
                       writes(s.out);
                   },
                   [&](const Logits &s) { reads(s.in); },
               },
               step);
}

// Slots whose content at steps[from] is still read at or after it.
std::vector<Slot> live_slots(const Program &program, size_t from) {
    std::vector<Slot> live;
    std::vector<bool> written(program.slots.size(), false);
    for (size_t i = from; i < program.steps.size(); ++i)
        visit_slots(
            program.steps[i],
            [&](Slot slot) {
                if (slot == kNoSlot) return;
                if (!written[static_cast<size_t>(slot)] &&
                    std::find(live.begin(), live.end(), slot) == live.end())
                    live.push_back(slot);
            },
            [&](Slot slot) { written[static_cast<size_t>(slot)] = true; });
    return live;
}

// The parts of a phase run side by side, each with a loop counter of its own, and share one buffer for a
// product that something is added to: at most Pool::kLoops of them, at most one with `add`.
void push_multiplies(const Linear &step, std::vector<Phase> &phases) {
    Linear together{step.in, {}};
    bool adds = false;
    for (const Linear::Part &part : step.parts) {
        const bool part_adds = part.add != kNoSlot;
        if (together.parts.size() == Pool::kLoops || (adds && part_adds)) {
            phases.push_back(MultiplyPhase{together});
            together.parts.clear();
            adds = false;
        }
        together.parts.push_back(part);
        adds |= part_adds;
    }
    if (!together.parts.empty()) phases.push_back(MultiplyPhase{together});
}

// The last step in which tokens meet, or the first step of all: behind it, only the tokens whose logits are
// wanted go on.
size_t last_step_for_all(const Program &program) {
    size_t last = 0;
    for (size_t i = 0; i < program.steps.size(); ++i)
        if (std::holds_alternative<Attention>(program.steps[i])) last = i;
    return last;
}

class Planner {
  public:
    explicit Planner(const Program &program) : program_(program) {}

    void add(size_t index) {
        const Step &step = program_.steps[index];
        if (const auto *norm = std::get_if<Norm>(&step)) {
            prepare(*norm, norm->out, index);
        } else if (const auto *gate = std::get_if<Gate>(&step)) {
            prepare(*gate, gate->out, index);
        } else {
            pack_input(step);
            std::visit(Overloaded{
                           [&](const Embed &s) { phases.push_back(EmbedPhase{s}); },
                           [&](const Linear &s) { push_multiplies(s, phases); },
                           [&](const Attention &s) {
                               phases.push_back(AppendPhase{s});
                               phases.push_back(AttendPhase{s});
                           },
                           [&](const Experts &) {
                               throw BackendError(BackendError::Kind::Failed,
                                                  "the CPU does not run mixtures of experts yet");
                           },
                           [&](const Logits &s) { phases.push_back(LogitsPhase{s}); },
                           [&](const auto &) { assert(false && "norm and gate are prepared above"); },
                       },
                       step);
            packed_ = kNoSlot;
        }
    }
    void select(size_t from) {
        phases.push_back(SelectPhase{live_slots(program_, from)});
        packed_ = kNoSlot;
    }
    std::vector<Phase> phases;

  private:
    // A step that computes the input of the next multiply packs it as well.
    template <typename Preparation>
    void prepare(const Preparation &step, Slot out, size_t index) {
        const bool consumed =
            index + 1 < program_.steps.size() && input_of_multiply(program_.steps[index + 1]) == out;
        packed_ = out;
        packed_formats_ = consumed ? formats_read_by(program_.steps[index + 1], program_) : 0;
        phases.push_back(PreparePhase{step, out, packed_formats_});
    }
    void pack_input(const Step &step) {
        const FormatSet formats = formats_read_by(step, program_);
        if (formats != 0 && (packed_ != input_of_multiply(step) || (formats & ~packed_formats_) != 0))
            phases.push_back(PreparePhase{{}, input_of_multiply(step), formats});
    }

    const Program &program_;
    Slot packed_ = kNoSlot;  // the slot that is packed already, in packed_formats_
    FormatSet packed_formats_ = 0;
};

}  // namespace

std::vector<Phase> plan(const Program &program) {
    Planner planner(program);
    const size_t last = last_step_for_all(program);
    for (size_t i = 0; i < program.steps.size(); ++i) {
        planner.add(i);
        if (i == last) planner.select(i + 1);
    }
    return std::move(planner.phases);
}

}  // namespace runnel::kernels::cpu
