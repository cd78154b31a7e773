// Rows of float32 -> quantized activations (activations.h), optionally RMS-normalized first.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/activations.h"
#include "kernels/cuda/runtime/kernel.h"

namespace runnel::kernels::cuda {

// One block per row; writes the forms that `out` has. With `weight`: y = (x * (1 / sqrt(sum(x^2) / width +
// eps))) * weight, without: y = x; then y is quantized. Sum of squares: lane l of warp w takes, in ascending
// order, the eight values that activation_first(l) names of the groups w, w + 8, ...: a chain of fma from 0;
// lanes are added by warp_sum, warps in order from 0 to 7.
struct QuantizeParams {
    const float *x;       // [rows][x_stride]
    const float *weight;  // [width] or null
    float *normed;        // [rows][x_stride]: y, or null
    float eps;
    int32_t width;  // multiple of 32, if `out` has integers
    int64_t x_stride;
    Activations out;
};
Kernel<QuantizeParams> quantize_kernel();
inline constexpr size_t kQuantizeShared = 64;  // bytes

// Whether a group of a row can be quantized only when the whole row is complete.
constexpr bool needs_whole_rows(const QuantizeParams &p) {
    return p.weight != nullptr || p.out.halves != nullptr;
}

// Slices of rows, each a row of its own in `out`: slice i of token t is row i * tokens + t. A warp takes a
// group of 256 values at a time. Any grid.
struct QuantizePiecesParams {
    const float *x;             // the first slice of the first token
    int64_t x_stride, x_piece;  // from token to token, from slice to slice
    int32_t width;              // of a slice; multiple of 32, if `out` has integers
    int32_t pieces, tokens;
    Activations out;
};
Kernel<QuantizePiecesParams> quantize_pieces_kernel();
int64_t quantize_pieces_blocks(const QuantizePiecesParams &params);  // the number of blocks with work

}  // namespace runnel::kernels::cuda
