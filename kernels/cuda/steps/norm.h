// RMS norm inside a block of 256 threads, for kernels that quantize their input themselves.
#pragma once

#include "kernels/cuda/linear/activation_group.h"
#include "kernels/cuda/runtime/device.h"

namespace runnel::kernels::cuda {

inline constexpr int kNormWarps = 8;

// A lane's eight values of group `group` of a row (see activation_first); 0 beyond the end.
// x: 16-byte aligned.
DEVICE void load_group(const float *x, int width, int group, float (&values)[8]) {
    const int k = group * kActivationGroup + activation_first(lane_index());
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const float4 v = load_floats(x, k + 16 * h, width);
        values[4 * h] = v.x;
        values[4 * h + 1] = v.y;
        values[4 * h + 2] = v.z;
        values[4 * h + 3] = v.w;
    }
}

// Block collective of 8 warps. 1 / sqrt(mean(x^2) + eps) in every thread, from the lanes' sums of squares, which
// quantize.h defines. partial: shared memory of 8 floats, free again after the next block_sync.
DEVICE float inverse_rms_of(float sum, int width, float eps, float *partial) {
    sum = warp_sum(sum);
    if (lane_index() == 0) partial[warp_index()] = sum;
    block_sync();
    float total = partial[0];
#pragma unroll
    for (int w = 1; w < kNormWarps; ++w) total += partial[w];
    return 1.0f / sqrt_rn(total / static_cast<float>(width) + eps);
}

}  // namespace runnel::kernels::cuda
