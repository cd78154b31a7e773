// A kernel that only multiplies on the tensor cores (probe.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/kernel.h"

namespace runnel::kernels::cuda {

inline constexpr int kRateThreads = 256;
inline constexpr int kRateTiles = 8;  // tiles of 16 x 8 per warp: enough to hide the latency of mma

struct TensorRateParams {
    float *out;  // [blocks][kRateThreads]: the sums, so that the compiler keeps the work
    int32_t rounds;
};
// Operations of a warp per round: kRateTiles mma of 16 x 8 x 16.
constexpr double tensor_rate_operations(double warps, double rounds) {
    return warps * rounds * kRateTiles * 2 * 16 * 8 * 16;
}

Kernel<TensorRateParams> tensor_rate_kernel();

}  // namespace runnel::kernels::cuda
