// Rotate of program.h: signs and the Walsh-Hadamard matrix of each block of a row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/runtime/kernel.h"

namespace runnel::kernels::cuda {

inline constexpr int kMostRotated = 4096;  // the largest block
inline constexpr int kRotateFloats = 1024;

// A thread block takes kRotateFloats adjacent floats of a row, or one block of the matrix if that is larger, through shared
// memory, with a barrier after each of the log2(block) rounds of sums and differences. Bytes per float: 8, and 4 for its
// sign, which is read from L2. Any grid.
struct RotateParams {
    const float *in;     // [token][in_stride]
    float *out;          // may be `in`
    const float *signs;  // [width], or null
    int64_t in_stride, out_stride;
    int32_t width, tokens;
    int32_t block;  // a power of two that divides `width`, at most kMostRotated
    int32_t signs_last;
};
Kernel<RotateParams> rotate_kernel();
inline constexpr size_t kRotateShared = kMostRotated * sizeof(float);

// Number of thread blocks with work.
constexpr int64_t rotate_blocks(const RotateParams &p) {
    const int64_t chunk = p.block > kRotateFloats ? p.block : kRotateFloats;
    return p.tokens * ((p.width + chunk - 1) / chunk);
}

}  // namespace runnel::kernels::cuda
