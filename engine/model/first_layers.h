// The first layers of a model as a draft model: with the model's embeddings, last norm and output matrix
// they predict its output, faster but less accurately (LayerSkip, Elhoushi et al. 2024; Draft & Verify,
// Zhang et al. 2023).
#pragma once

#include <cstdint>

#include "kernels/program.h"

namespace runnel::model {

// A program of the steps before layer `layers` and those after the last layer. Its weights share
// memory with the weights of `program`. Throws ModelError if the model has no more than `layers` >= 1 layers.
kernels::Program first_layers(const kernels::Program &program, int32_t layers);

}  // namespace runnel::model
