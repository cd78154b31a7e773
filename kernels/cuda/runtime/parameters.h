// Kernels wait for their launch's parameters where it costs nothing.
#pragma once

#include "kernels/cuda/runtime/device.h"

namespace runnel::kernels::cuda {

// Reads a launch's parameters once. Every first use of 64 of their bytes waits for memory (about 500 cycles on an H200,
// measured), which costs nothing before grid_dep_wait(). (Loads that overlap, LDC, made small models 4% slower there.)
template <class Params>
DEVICE void fetch_parameters(const Params &params) {
    const auto *words = reinterpret_cast<const uint32_t *>(&params);
    uint32_t all = 0;
#pragma unroll
    for (size_t i = 0; i < sizeof(Params) / sizeof(uint32_t); i += 16) all ^= words[i];
    if (all == 0x5bd1e995u) fence_gpu();  // so that the compiler does not remove the reads
}

}  // namespace runnel::kernels::cuda
