// What all steps of a Program have in common, derived from each step's describe() (program.h): the slots,
// weights and cache layers that they read and write.
#pragma once

#include <algorithm>
#include <optional>
#include <variant>

#include "kernels/program.h"

namespace runnel::kernels {

// Joins several function objects into one, for std::visit.
template <class... F>
struct Overloaded : F... {
    using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;  // required by early C++20 compilers only

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
// Each calls its functions for present items only, never for kNoSlot, kNoWeight or -1.

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

// Calls f(id) for every weight.
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

// Calls f(id) for every weight but the tables: what every pass reads, or, of experts, what it may read.
template <typename F>
struct ReadWeightVisitor : StepVisitor {
    F f;
    void matrix(WeightId id, Use) { vector(id, Use{}); }
    void vector(WeightId id, Use) {
        if (id != kNoWeight) f(id);
    }
};
template <typename F>
void visit_read_weights(const Step &step, F &&f) {
    describe(step, ReadWeightVisitor<F &>{{}, f});
}

// Calls f(id, use) for every matrix that is multiplied with activations.
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

// Calls f(id) for every table whose rows are chosen by token ids or positions.
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

// Calls f(use) for every cache layer.
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

// Calls f(id) for every recurrent state.
template <typename F>
struct StateVisitor : StepVisitor {
    F f;
    void state(int32_t id) { f(id); }
};
template <typename F>
void visit_states(const Step &step, F &&f) {
    describe(step, StateVisitor<F &>{{}, f});
}

// True if each token chooses which of the step's matrices it needs.
inline bool selects_experts(const Step &step) {
    bool found = false;
    visit_matrices(step, [&](WeightId, Use use) { found |= use.experts > 0; });
    return found;
}

// --- experts ---------------------------------------------------------------------------------------------

inline int64_t expert_count(const Program &program, const Experts &step) {
    return program.weights[static_cast<size_t>(step.stack())].count;
}
// The number of values of h, of one expert.
inline int64_t expert_width(const Program &program, const Experts &step) {
    if (step.down != kNoWeight) return program.weights[static_cast<size_t>(step.down)].cols;
    return program.slots[static_cast<size_t>(step.out)].width / step.routing.used;
}
// Whether `gate` holds the rows of gate and of up.
inline bool has_merged_gate(const Program &program, const Experts &step) {
    return step.gate != kNoWeight && step.up == kNoWeight &&
           program.weights[static_cast<size_t>(step.gate)].rows == 2 * expert_width(program, step);
}

// --- steps of one kind -----------------------------------------------------------------------------------

// Calls f(step) for all steps of one kind, for code that computes only that kind.
template <class S, typename F>
void for_each_step(const Program &program, F &&f) {
    for (const Step &step : program.steps)
        if (const auto *s = std::get_if<S>(&step)) f(*s);
}

// The largest numbers over all mixtures; 0 without one.
struct ExpertCounts {
    int32_t all = 0, used = 0;
};
inline ExpertCounts expert_counts(const Program &program) {
    ExpertCounts counts;
    for_each_step<Experts>(program, [&](const Experts &step) {
        counts.all = std::max(counts.all, static_cast<int32_t>(expert_count(program, step)));
        counts.used = std::max(counts.used, step.routing.used);
    });
    return counts;
}

// A Linear with two matrices and the Activation that reads both; devices compute the pair in one pass.
struct GatedLinear {
    Slot in;
    Linear::Part gate, up;
    const Activation *act;
};
// The pair at steps[index] and steps[index + 1], or nullopt if they are other steps.
std::optional<GatedLinear> gated_linear(const Program &program, size_t index);

}  // namespace runnel::kernels
