// Applies the factors that files of NVFP4 have for their matrices.
#pragma once

#include "engine/model/builder.h"

namespace runnel::model {

// Multiplies the outputs of the program's matrices by the file's factors: "blk.0.ffn_up.scale", F32, one
// number, for "blk.0.ffn_up.weight". A bias is added after that. Tensors of such a name with several numbers
// have another meaning, which a family may use (Gemma 4); Builder::take() rejects those that remain unused.
// Throws ModelError for a factor that is not a positive F32 number.
void apply_factors(const gguf::File &file, Builder &builder);

}  // namespace runnel::model
