// Kernels wait for their launch's parameters where it costs nothing.
#pragma once

#include "kernels/cuda/runtime/device.h"

namespace runnel::kernels::cuda {

// Reads a launch's parameters once. Every first use of 64 of their bytes by an instruction waits for memory (about 500
// cycles on an H200, measured): here the waits overlap, and before grid_dep_wait() they cost nothing.
template <class Params>
DEVICE void fetch_parameters(const Params &params) {
    constexpr uint32_t kWords = sizeof(Params) / sizeof(uint32_t), kLines = (kWords + 15) / 16;
    const auto *words = reinterpret_cast<const uint32_t *>(&params);
    uint32_t all = 0, line = static_cast<uint32_t>(warp_index()) % kLines;
#pragma unroll
    for (uint32_t i = 0; i < kLines; ++i) {  // an index that varies makes these loads, which do not wait for each other
        all ^= words[16 * line];
        line = line + 1 == kLines ? 0 : line + 1;
    }
    if (all == 0x5bd1e995u) fence_gpu();  // so that the compiler does not remove the loads
}

}  // namespace runnel::kernels::cuda
