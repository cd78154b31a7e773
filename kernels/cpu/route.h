// Which experts a token goes to: Routing of kernels/program.h, for one token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/vector.h"
#include "kernels/program.h"

namespace runnel::kernels::cpu {

// Floats of work space that route() wants for a router of so many experts.
size_t route_scratch(int64_t experts);

// logits: [experts]; selection_bias: null or [experts]. chosen, weights: [routing.used], experts ascending.
// Preconditions: used <= experts; with groups: they divide the experts, group_best <= experts / groups,
// used <= groups_used * (experts / groups). A NaN or minus infinity is chosen only when nothing else is left.
// Exponentials are those of `vector`, sums go in ascending order in double precision: the result does not
// depend on the instruction set.
void route(const Routing &routing, std::span<const float> logits, const float *selection_bias,
           const VectorKernels &vector, float *scratch, int32_t *chosen, float *weights) noexcept;

}  // namespace runnel::kernels::cpu
