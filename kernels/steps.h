// What all steps of a Program have in common, from what each of them tells of itself (program.h): slots that
// they read and write, weights, layers.
#pragma once

#include <optional>
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

template <class Visitor>
void describe(const Step &step, Visitor &&visitor) {
    std::visit([&](const auto &s) { s.describe(visitor); }, step);
}

inline int32_t layer_of(const Step &step) {
    return std::visit([](const auto &s) { return s.layer; }, step);
}
inline void set_layer(Step &step, int32_t layer) {
    std::visit([&](auto &s) { s.layer = layer; }, step);
}
inline bool mixes_tokens(const Step &step) {
    return std::visit([](const auto &s) { return s.kMixesTokens; }, step);
}

// --- folds -----------------------------------------------------------------------------------------------
// Each calls its functions for what there is, never for kNoSlot, kNoWeight or -1.

template <typename Reads, typename Writes>
struct SlotVisitor : StepVisitor {
    Reads on_read;
    Writes on_write;
    void reads(Slot slot) {
        if (slot != kNoSlot) on_read(slot);
    }
    void writes(Slot slot) {
        if (slot != kNoSlot) on_write(slot);
    }
};
template <typename Reads, typename Writes>
void visit_slots(const Step &step, Reads &&reads, Writes &&writes) {
    describe(step, SlotVisitor<Reads &, Writes &>{{}, reads, writes});
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

// f(id) of every weight, however it is used.
template <typename F>
struct WeightVisitor : StepVisitor {
    F f;
    void row(WeightId id) {
        if (id != kNoWeight) f(id);
    }
    void matrix(WeightId id, Use) { row(id); }
    void vector(WeightId id, Use) { row(id); }
};
template <typename F>
void visit_weights(const Step &step, F &&f) {
    describe(step, WeightVisitor<F &>{{}, f});
}

// f(id, use) of every matrix that activations are multiplied with.
template <typename F>
struct MatrixVisitor : StepVisitor {
    F f;
    void matrix(WeightId id, Use use) {
        if (id != kNoWeight) f(id, use);
    }
};
template <typename F>
void visit_matrices(const Step &step, F &&f) {
    describe(step, MatrixVisitor<F &>{{}, f});
}

// f(id) of every table that the ids or positions of tokens choose a row of.
template <typename F>
struct TableVisitor : StepVisitor {
    F f;
    void row(WeightId id) {
        if (id != kNoWeight) f(id);
    }
};
template <typename F>
void visit_tables(const Step &step, F &&f) {
    describe(step, TableVisitor<F &>{{}, f});
}

// f(use) of the layers of the cache.
template <typename F>
struct CacheVisitor : StepVisitor {
    F f;
    void cache(const CacheUse &use) { f(use); }
};
template <typename F>
void visit_caches(const Step &step, F &&f) {
    describe(step, CacheVisitor<F &>{{}, f});
}

template <typename F>
struct RopeVisitor : StepVisitor {
    F f;
    void rope(int32_t id) {
        if (id >= 0) f(id);
    }
};
template <typename F>
void visit_ropes(const Step &step, F &&f) {
    describe(step, RopeVisitor<F &>{{}, f});
}

// f(id) of the states that sequences have in the step.
template <typename F>
struct StateVisitor : StepVisitor {
    F f;
    void state(int32_t id) { f(id); }
};
template <typename F>
void visit_states(const Step &step, F &&f) {
    describe(step, StateVisitor<F &>{{}, f});
}

// Its tokens choose which of its matrices they need.
inline bool selects_experts(const Step &step) {
    bool found = false;
    visit_matrices(step, [&](WeightId, Use use) { found |= use.experts > 0; });
    return found;
}

// --- steps of one kind -----------------------------------------------------------------------------------

// f(step) of all steps of a kind, for those who compute this kind and no other.
template <class S, typename F>
void for_each_step(const Program &program, F &&f) {
    for (const Step &step : program.steps)
        if (const auto *s = std::get_if<S>(&step)) f(*s);
}

// A Gate behind a Linear of the two matrices that it reads, which devices compute in one go.
struct GatedLinear {
    Slot in;
    Linear::Part gate, up;
    const Gate *act;
};
// Of steps[index] and the one behind it; nullopt when they are something else.
std::optional<GatedLinear> gated_linear(const Program &program, size_t index);

}  // namespace runnel::kernels
