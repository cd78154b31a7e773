// The first layers of a model as a model of their own: they share its embeddings, its last norm and its
// output matrix, and say, worse but sooner, what it would say (LayerSkip, Elhoushi et al. 2024; Draft &
// Verify, Zhang et al. 2023).
#pragma once

#include <cstdint>

#include "kernels/program.h"

namespace runnel::model {

// A program of the steps before layer `layers`, and of those behind the last layer. Its weights are the ones
// of `program`, in the same memory. Throws ModelError when the model has no more than `layers` >= 1 layers.
kernels::Program first_layers(const kernels::Program &program, int32_t layers);

}  // namespace runnel::model
