#include "kernels/cpu/plan.h"

#include <algorithm>
#include <array>
#include <utility>

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
    if (const auto *experts = std::get_if<Experts>(&step)) {
        formats |= format_of(experts->gate);
        if (experts->up != kNoWeight) formats |= format_of(experts->up);
    }
    if (const auto *logits = std::get_if<Logits>(&step)) formats |= format_of(logits->weight);
    return formats;
}

Slot input_of_multiply(const Step &step) {
    if (const auto *linear = std::get_if<Linear>(&step)) return linear->in;
    if (const auto *experts = std::get_if<Experts>(&step)) return experts->in;
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
                   [&](const HeadLinear &s) { reads(s.in), reads(s.out), writes(s.out); },
                   [&](const Copy &s) { reads(s.in), reads(s.out), writes(s.out); },  // parts of a row stay
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

void push_experts(const Experts &step, std::vector<Phase> &phases) {
    using P = ExpertRunner::Phase;
    for (const P phase : {P::Route, P::Gather, P::In, P::Activate, P::Out})
        phases.push_back(ExpertsPhase{step, phase});
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
    explicit Planner(const Program &program) : program_(program) { forget_packed(); }

    void add(size_t index) {
        const Step &step = program_.steps[index];
        const FormatSet formats = formats_read_by(step, program_) & ~packed_formats(input_of_multiply(step));
        if (formats != 0) prepare(std::monostate(), input_of_multiply(step), formats);
        const auto changed = [&](Slot slot) { std::replace(packed_.begin(), packed_.end(), slot, kNoSlot); };
        visit_slots(
            step, [](Slot) {}, changed);
        std::visit(Overloaded{
                       [&](const Embed &s) { phases.push_back(EmbedPhase{s}); },
                       [&](const Norm &s) { prepare(s, s.out, formats_wanted(s.out, index)); },
                       [&](const Linear &s) { push_multiplies(s, phases); },
                       [&](const Attention &s) {
                           phases.push_back(AppendPhase{s});
                           phases.push_back(AttendPhase{s});
                       },
                       [&](const Gate &s) { prepare(s, s.out, formats_wanted(s.out, index)); },
                       [&](const HeadLinear &s) { phases.push_back(HeadsPhase{s}); },
                       [&](const Copy &s) { phases.push_back(CopyPhase{s}); },
                       [&](const Experts &s) { push_experts(s, phases); },
                       [&](const Logits &s) { phases.push_back(LogitsPhase{s}); },
                   },
                   step);
    }
    void select(size_t from) {
        phases.push_back(SelectPhase{live_slots(program_, from)});
        forget_packed();
    }
    std::vector<Phase> phases;

  private:
    // There is one buffer per format; it holds what was packed last.
    template <typename Preparation>
    void prepare(const Preparation &step, Slot slot, FormatSet formats) {
        phases.push_back(PreparePhase{step, slot, formats});
        for (size_t f = 0; f < packed_.size(); ++f)
            if (formats & format_bit(static_cast<ActFormat>(f))) packed_[f] = slot;
    }
    FormatSet packed_formats(Slot slot) const {
        FormatSet formats = 0;
        for (size_t f = 0; f < packed_.size(); ++f)
            if (packed_[f] == slot) formats |= format_bit(static_cast<ActFormat>(f));
        return formats;
    }
    void forget_packed() { packed_.fill(kNoSlot); }

    // The formats in which the multiplies behind steps[index] read the slot, before it changes and before
    // another slot takes the place.
    FormatSet formats_wanted(Slot slot, size_t index) const {
        FormatSet wanted = 0, taken = 0;
        bool same = true;
        for (size_t i = index + 1; i < program_.steps.size() && same; ++i) {
            const Step &step = program_.steps[i];
            const FormatSet read = formats_read_by(step, program_);
            if (input_of_multiply(step) == slot)
                wanted |= read & ~taken;
            else
                taken |= read;
            visit_slots(
                step, [](Slot) {}, [&](Slot written) { same = same && written != slot; });
        }
        return wanted;
    }

    const Program &program_;
    std::array<Slot, 3> packed_;  // by ActFormat
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
