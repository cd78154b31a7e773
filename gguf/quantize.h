// The reference conversions between float32 and every block format of block.h.
//
// These are the definition of what a block means; kernels are tested against them. Scalar code, one thread,
// made to be right and readable.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gguf/block.h"

namespace runnel::gguf {

// `n` values of a row (n a multiple of the type's block size) at `blocks` (any alignment) -> out[0..n).
// Bit-exact with ggml's dequantize_row_*: same operations in the same order, each rounded to float32.
// Integers and F64 are rounded to the nearest float. Precondition: traits(type).supported.
void dequantize_row(Type type, const std::byte *blocks, float *out, int64_t n);

}  // namespace runnel::gguf
