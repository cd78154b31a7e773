// What a step of a Program refers to: slots it reads and writes, weights.
#pragma once

#include <variant>

#include "kernels/program.h"

namespace runnel::kernels {

// One function object of several, for std::visit.
template <class... F>
struct Overloaded : F... {
    using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;  // C++20 needs no guide here, compilers of its first years do

// Visits the slots that a step reads, then those it writes; kNoSlot among them. A step that writes parts of
// rows reads the slot as well.
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
                   [&](const Copy &s) { reads(s.in), reads(s.out), writes(s.out); },
                   [&](const Experts &s) { reads(s.in), reads(s.logits), reads(s.add), writes(s.out); },
                   [&](const Logits &s) { reads(s.in); },
               },
               step);
}

inline bool reads_slot(const Step &step, Slot slot) {
    bool found = false;
    visit_slots(
        step, [&](Slot read) { found |= read == slot; }, [](Slot) {});
    return found;
}

inline bool writes_slot(const Step &step, Slot slot) {
    bool found = false;
    visit_slots(
        step, [](Slot) {}, [&](Slot written) { found |= written == slot; });
    return found;
}

// Visits the weights of a step; kNoWeight among them.
template <typename F>
void visit_weights(const Step &step, F &&f) {
    std::visit(Overloaded{
                   [&](const Embed &s) { f(s.table), f(s.positions); },
                   [&](const Norm &s) { f(s.weight), f(s.bias); },
                   [&](const Linear &s) {
                       for (const Linear::Part &part : s.parts) f(part.weight), f(part.bias);
                   },
                   [&](const Attention &s) { f(s.q_norm), f(s.k_norm), f(s.sinks); },
                   [&](const Gate &) {},
                   [&](const HeadLinear &s) { f(s.weight); },
                   [&](const Copy &) {},
                   [&](const Experts &s) {
                       f(s.gate), f(s.up), f(s.down), f(s.gate_bias), f(s.up_bias), f(s.down_bias);
                       f(s.routing.selection_bias), f(s.routing.expert_scales);
                   },
                   [&](const Logits &s) { f(s.weight), f(s.bias); },
               },
               step);
}

}  // namespace runnel::kernels
