// Weights that are stored rotated, as the keys prism.hadamard.* say (PrismML's Ternary-Bonsai-2).
#pragma once

#include "engine/model/builder.h"

namespace runnel::model {

// Rotates the inputs of the matrices that the file lists (kernels::Rotate). With H the Walsh-Hadamard matrix of block_size, divided by
// sqrt(block_size), along the diagonal, and s the signs (+-1) of the input's width:
//   y = W H (s x)     for a matrix of weight_names
//   h = s H row       for the rows of a table of inverse_weight_names
// With gdn_v_grouped, the input of ssm_out first changes from value heads of all key heads side by side to the heads of
// one key head side by side.
//
// Does nothing if the file has no key prism.*. Throws ModelError for any such key that is unknown or has another value
// than those above, and for a listed tensor that is missing, or that a step uses in another way.
void apply_rotation(const gguf::File &file, Builder &builder);

}  // namespace runnel::model
