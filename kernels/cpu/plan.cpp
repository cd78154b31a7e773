#include "kernels/cpu/plan.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>

#include "kernels/cpu/attention_runner.h"
#include "kernels/cpu/pool.h"
#include "kernels/steps.h"

namespace runnel::kernels::cpu {
namespace {

// The packed inputs that a step needs before it runs.
struct PackedInput {
    Slot slot = kNoSlot;
    FormatSet formats = 0;
};

PackedInput packed_input_of(const Step &step, const Program &program) {
    const auto format_of = [&](WeightId id) {
        return id == kNoWeight ? 0 : format_bit(act_format(program.weights[static_cast<size_t>(id)].type));
    };
    return std::visit(Overloaded{
                          [&](const Linear &s) {
                              FormatSet formats = 0;
                              for (const Linear::Part &part : s.parts) formats |= format_of(part.weight);
                              return PackedInput{s.in, formats};
                          },
                          [&](const Experts &s) {
                              return PackedInput{s.in, format_of(s.gate) | format_of(s.up)};
                          },
                          [&](const Logits &s) {
                              return PackedInput{s.in, format_of(s.weight)};
                          },
                          [](const HeadLinear &) { return PackedInput{}; },  // packs its own slices
                          [](const Embed &) { return PackedInput{}; },
                          [](const HashedEmbed &) { return PackedInput{}; },
                          [](const Norm &) { return PackedInput{}; },
                          [](const Copy &) { return PackedInput{}; },
                          [](const Rotate &) { return PackedInput{}; },
                          [](const Mix &) { return PackedInput{}; },
                          [](const StreamWeights &) { return PackedInput{}; },
                          [](const Lerp &) { return PackedInput{}; },
                          [](const Rope &) { return PackedInput{}; },
                          [](const JoinAttention &) { return PackedInput{}; },
                          [](const Attention &) { return PackedInput{}; },
                          [](const Indexer &) { return PackedInput{}; },
                          [](const Activation &) { return PackedInput{}; },
                          [](const ShortConv &) { return PackedInput{}; },
                          [](const SoftPool &) { return PackedInput{}; },
                          [](const ScanGate &) { return PackedInput{}; },
                          [](const LinearScan &) { return PackedInput{}; },
                          [](const SelectiveScan &) { return PackedInput{}; },
                      },
                      step);
}

// Slots whose content before steps[from] is read by it or a later step.
std::vector<Slot> live_slots(const Program &program, size_t from) {
    std::vector<Slot> live;
    std::vector<bool> written(program.slots.size(), false);
    for (size_t i = from; i < program.steps.size(); ++i)
        visit_slots(
            program.steps[i],
            [&](Slot slot) {
                if (!written[static_cast<size_t>(slot)] &&
                    std::find(live.begin(), live.end(), slot) == live.end())
                    live.push_back(slot);
            },
            [&](Slot slot) { written[static_cast<size_t>(slot)] = true; });
    return live;
}

// The parts of a phase run side by side, each with its own loop counter, and share one buffer for products
// that are added to a slot: so at most Pool::kLoops parts, and at most one with `add`.
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
    const bool in = step.gate != kNoWeight, out = step.down != kNoWeight;
    phases.push_back(ExpertsPhase{step, P::Route});
    if (in) phases.push_back(ExpertsPhase{step, P::Gather}), phases.push_back(ExpertsPhase{step, P::In});
    phases.push_back(ExpertsPhase{step, P::Activate});
    if (out) phases.push_back(ExpertsPhase{step, P::Out});
}

// The first step that may skip tokens whose logits are not requested. It follows the last step that needs all
// tokens (because it reads ids or positions, or mixes tokens), and it is in the last part, because other devices need all
// tokens. Without logits: the number of steps.
size_t first_step_for_some(const Program &program, const std::vector<Program::Part> &parts) {
    if (!program.gives_logits()) return program.steps.size();
    size_t first = 0;
    for (size_t i = 0; i < program.steps.size(); ++i) {
        bool all = mixes_tokens(program.steps[i]);
        visit_tables(program.steps[i], [&](WeightId) { all = true; });
        visit_ropes(program.steps[i], [&](int32_t) { all = true; });
        if (all) first = i + 1;
    }
    return parts.size() == 1 ? first : std::max(first, parts[parts.size() - 2].end);
}

class Planner {
  public:
    explicit Planner(const Program &program) : program_(program) { forget_packed(); }

    // Begins a part that ends at `end`: other devices may change slots before it runs.
    void begin_part(size_t end) {
        end_ = end;
        forget_packed();
    }

    void add(size_t index) {
        const Step &step = program_.steps[index];
        const PackedInput input = packed_input_of(step, program_);
        const FormatSet formats = input.formats & ~packed_formats(input.slot);
        if (formats != 0) prepare(std::monostate(), input.slot, formats);
        const auto changed = [&](Slot slot) { std::replace(packed_.begin(), packed_.end(), slot, kNoSlot); };
        visit_slots(
            step, [](Slot) {}, changed);
        std::visit(Overloaded{
                       [&](const Embed &s) { phases.push_back(EmbedPhase{s}); },
                       [&](const HashedEmbed &s) { phases.push_back(HashedEmbedPhase{s}); },
                       [&](const Norm &s) { prepare(s, s.out, formats_wanted(s.out, index)); },
                       [&](const Linear &s) { push_multiplies(s, phases); },
                       [&](const Attention &s) {
                           phases.push_back(AppendPhase{s});
                           if (s.attends()) phases.push_back(AttendPhase{s});
                       },
                       [&](const Indexer &s) {
                           phases.push_back(AppendPhase{AttentionRunner::keys_of(s)});
                           phases.push_back(IndexPhase{s});
                       },
                       [&](const Activation &s) { prepare(s, s.out, formats_wanted(s.out, index)); },
                       [&](const HeadLinear &s) {
                           assert(!s.one_range);
                           phases.push_back(HeadsPhase{s});
                       },
                       [&](const Copy &s) { phases.push_back(CopyPhase{s}); },
                       [&](const Rotate &s) { phases.push_back(RotatePhase{s}); },
                       [&](const Mix &s) { phases.push_back(MixPhase{s}); },
                       [&](const StreamWeights &s) { phases.push_back(StreamsPhase{s}); },
                       [&](const Lerp &s) { phases.push_back(LerpPhase{s}); },
                       [&](const Rope &s) { phases.push_back(RopePhase{s}); },
                       [&](const JoinAttention &s) { phases.push_back(JoinPhase{s}); },
                       [&](const Experts &s) { push_experts(s, phases); },
                       [&](const ShortConv &s) { phases.push_back(ScanPhase{s}); },
                       [&](const SoftPool &s) { phases.push_back(ScanPhase{s}); },
                       [&](const ScanGate &s) { phases.push_back(ScanPhase{s}); },
                       [&](const LinearScan &s) { phases.push_back(ScanPhase{s}); },
                       [&](const SelectiveScan &s) { phases.push_back(ScanPhase{s}); },
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
    // There is one buffer per format; it holds the last packed slot.
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

    // The formats in which multiplies after steps[index] read the slot, until it changes
    // or another slot is packed.
    FormatSet formats_wanted(Slot slot, size_t index) const {
        FormatSet wanted = 0, taken = 0;
        bool same = true;
        for (size_t i = index + 1; i < end_ && same; ++i) {
            const Step &step = program_.steps[i];
            const PackedInput read = packed_input_of(step, program_);
            if (read.slot == slot)
                wanted |= read.formats & ~taken;
            else
                taken |= read.formats;
            visit_slots(
                step, [](Slot) {}, [&](Slot written) { same = same && written != slot; });
        }
        return wanted;
    }

    const Program &program_;
    size_t end_ = 0;              // of the current part
    std::array<Slot, 3> packed_;  // by ActFormat
};

}  // namespace

std::vector<std::vector<Phase>> plan(const Program &program) {
    Planner planner(program);
    const std::vector<Program::Part> parts = program.whole_parts();
    const size_t select = first_step_for_some(program, parts);
    std::vector<std::vector<Phase>> phases;
    size_t i = 0;
    for (const Program::Part &part : parts) {
        planner.begin_part(part.end);
        for (; i < part.end; ++i) {
            if (i == select) planner.select(i);
            planner.add(i);
        }
        phases.push_back(std::exchange(planner.phases, {}));
    }
    return phases;
}

}  // namespace runnel::kernels::cpu
