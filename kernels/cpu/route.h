// Chooses the experts of one token: Routing of kernels/program.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/vector.h"
#include "kernels/program.h"

namespace runnel::kernels::cpu {

// Floats of work space that route() needs for a router of this many experts.
size_t route_scratch(int64_t experts);

// logits: [experts]; selection_bias: null or [experts]. given: [used], the numbers of different experts in ascending order, or
// null: they are chosen here. chosen, weights: [routing.used], experts ascending.
// Preconditions: used <= experts; with groups: groups divides experts, group_best <= experts / groups, used
// <= groups_used * (experts / groups). A NaN or minus infinity is chosen only if nothing else is left.
// Exponentials are those of `vector`, sums are in ascending order in double precision, so the result does not
// depend on the instruction set.
void route(const Routing &routing, std::span<const float> logits, const float *selection_bias,
           const VectorKernels &vector, float *scratch, int32_t *chosen, float *weights,
           const float *given = nullptr) noexcept;

}  // namespace runnel::kernels::cpu
