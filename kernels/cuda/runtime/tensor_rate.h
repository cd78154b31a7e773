// A kernel that does nothing but multiply on the tensor cores (probe.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/kernel.h"

namespace runnel::kernels::cuda {

inline constexpr int kRateThreads = 256;
inline constexpr int kRateTiles = 8;  // of 16 x 8, that a warp keeps: more than the latency of mma needs

struct TensorRateParams {
    float *out;  // [blocks][kRateThreads]: sums, so that nothing is left away
    int32_t rounds;
};
// Of a warp in a round: kRateTiles mma of 16 x 8 x 16.
constexpr double tensor_rate_operations(double warps, double rounds) {
    return warps * rounds * kRateTiles * 2 * 16 * 8 * 16;
}

Kernel<TensorRateParams> tensor_rate_kernel();

}  // namespace runnel::kernels::cuda
