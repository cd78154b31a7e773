// Matrices that have a factor of their own, as files of NVFP4 do.
#pragma once

#include "gguf/file.h"
#include "kernels/program.h"

namespace runnel::model {

// Multiplies what a program's matrices give by the file's factors: "blk.0.ffn_up.scale", F32, one number,
// beside "blk.0.ffn_up.weight". A bias is added after that. Throws ModelError for a factor that is not one
// positive number, or that belongs to no plain matrix of the program (those of experts, one each, are not
// supported).
void apply_factors(const gguf::File &file, kernels::Program &program);

}  // namespace runnel::model
