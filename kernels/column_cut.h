// Which matrices GPUs can cut by columns with the bits of one GPU. Their kernels add the products of a row in contiguous ranges
// of its blocks, and then the sums of the ranges in order (kernels/cuda/linear/linear.h). If each GPU
// multiplies whole ranges, the sums of all ranges, added in this order, have the bits of one GPU.
#pragma once

#include <cstdint>

#include "kernels/step.h"

namespace runnel::kernels {

// The number of ranges of a row of so many blocks of 256 columns: range w is the blocks [w * blocks / ranges,
// (w + 1) * blocks / ranges).
constexpr int column_ranges(int64_t blocks) {
    return blocks >= 8 ? 8 : blocks >= 4 ? 4 : blocks >= 2 ? 2 : 1;
}

// The number of ranges if the matrix can be cut between them, else 1: they are equal, and weights are quantized. (Activations for
// F16 and BF16 have a scale per row, which depends on all columns.)
constexpr int ranges_to_cut(const Weight &w) {
    const bool floats = w.type == gguf::Type::F32 || w.type == gguf::Type::F16 || w.type == gguf::Type::BF16;
    const int64_t blocks = w.cols / 256;
    const int ranges = column_ranges(blocks);
    return floats || w.count != 1 || w.cols % 256 != 0 || blocks % ranges != 0 ? 1 : ranges;
}

}  // namespace runnel::kernels
