// Every Norm of program.h that quantize.h does not include: layer norms, biases, a residual added after the
// norm, a factor, separate slices of a row.
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/kernel.h"

namespace runnel::kernels::cuda {

// One block per slice; a row is `parts` slices of `width` floats. Sums: thread i takes the values i, i + 256,
// .. in ascending order, threads of a warp are added by warp_sum, warps in ascending order. The mean is
// summed first, then the squares of the differences (Layer). y = ((x - mean) * (1 / sqrt(sum / width + eps)))
// * weight + bias + add, then times `factor`.
struct NormalizeParams {
    const float *x;       // [rows][x_stride]
    const float *weight;  // [width], or [parts][width]; null: ones
    const float *bias;    // likewise, or null
    const float *add;     // [rows][add_stride], of the whole row, or null
    float *out;           // [rows][out_stride]; may be x or add
    int64_t x_stride, add_stride, out_stride;
    int32_t width, parts;
    bool own_weights;  // each slice has its own
    float eps;
    bool layer;        // Norm::Kind::Layer
    float factor = 1;  // Norm::scale
};
Kernel<NormalizeParams> normalize_kernel();
inline constexpr size_t kNormalizeShared = 2 * 8 * 4;  // bytes

}  // namespace runnel::kernels::cuda
