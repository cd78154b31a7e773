#include "kernels/cpu/plan.h"

#include <algorithm>
#include <cassert>

namespace runnel::kernels::cpu {
namespace {

template <class... F>
struct Overloaded : F... {
    using F::operator()...;
};

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

// Visits the slots that a step reads, then those it writes.
template <typename Reads, typename Writes>
void visit_slots(const Step &step, Reads &&reads, Writes &&writes) {
    std::visit(Overloaded{
                   [&](const Embed &s) { writes(s.out); },
                   [&](const Norm &s) { reads(s.in), writes(s.out); },
                   [&](const Linear &s) {
                       reads(s.in);
                       for (const Linear::Part &part : s.parts) {
                           if (part.add != kNoSlot) reads(part.add);
                           writes(part.out);
                       }
                   },
                   [&](const Attention &s) { reads(s.q), reads(s.k), reads(s.v), writes(s.out); },
                   [&](const Gate &s) { reads(s.gate), reads(s.up), writes(s.out); },
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
                if (!written[static_cast<size_t>(slot)] &&
                    std::find(live.begin(), live.end(), slot) == live.end())
                    live.push_back(slot);
            },
            [&](Slot slot) { written[static_cast<size_t>(slot)] = true; });
    return live;
}

}  // namespace

std::vector<Phase> plan(const Program &program) {
    std::vector<Phase> phases;
    size_t last_attention = program.steps.size();
    for (size_t i = 0; i < program.steps.size(); ++i)
        if (std::holds_alternative<Attention>(program.steps[i])) last_attention = i;

    Slot packed = kNoSlot;  // the slot that is packed already, in packed_formats
    FormatSet packed_formats = 0;
    for (size_t i = 0; i < program.steps.size(); ++i) {
        const Step &step = program.steps[i];
        const bool prepares = std::holds_alternative<Norm>(step) || std::holds_alternative<Gate>(step);
        if (prepares) {
            const Slot out =
                std::holds_alternative<Norm>(step) ? std::get<Norm>(step).out : std::get<Gate>(step).out;
            const bool consumed =
                i + 1 < program.steps.size() && input_of_multiply(program.steps[i + 1]) == out;
            packed = out;
            packed_formats = consumed ? formats_read_by(program.steps[i + 1], program) : 0;
            PreparePhase phase{{}, out, packed_formats};
            if (const auto *norm = std::get_if<Norm>(&step)) phase.step = *norm;
            if (const auto *gate = std::get_if<Gate>(&step)) phase.step = *gate;
            phases.push_back(phase);
            continue;
        }
        const FormatSet formats = formats_read_by(step, program);
        if (formats != 0 && (packed != input_of_multiply(step) || (formats & ~packed_formats) != 0))
            phases.push_back(PreparePhase{{}, input_of_multiply(step), formats});
        std::visit(Overloaded{
                       [&](const Embed &s) { phases.push_back(EmbedPhase{s}); },
                       [&](const Linear &s) { phases.push_back(MultiplyPhase{s}); },
                       [&](const Attention &s) {
                           phases.push_back(AppendPhase{s});
                           phases.push_back(AttendPhase{s});
                       },
                       [&](const Logits &s) { phases.push_back(LogitsPhase{s}); },
                       [&](const auto &) { assert(false && "norm and gate are prepared above"); },
                   },
                   step);
        packed = kNoSlot;
        if (i == last_attention) phases.push_back(SelectPhase{live_slots(program, i + 1)});
    }
    return phases;
}

}  // namespace runnel::kernels::cpu
