// Matrices that have a factor of their own, as files of NVFP4 do.
#pragma once

#include "engine/model/builder.h"

namespace runnel::model {

// Multiplies what the matrices of the builder's program give by the file's factors: "blk.0.ffn_up.scale",
// F32, one number, beside "blk.0.ffn_up.weight". A bias is added after that. Tensors of that name with
// several numbers are something else, which a family may use (Gemma 4); what nothing uses is refused when the
// program is taken. Throws ModelError for a factor that is no positive number or not F32.
void apply_factors(const gguf::File &file, Builder &builder);

}  // namespace runnel::model
