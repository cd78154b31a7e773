// Small kernels that find out what no manual says about a device (doubts_test.cpp). They also run emulated.
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/kernel.h"

namespace runnel::tests::device {

inline constexpr int kDoubtThreads = 256;

// Reads 16 bytes per thread and load, eight loads at a time: 32 KB per block in flight.
struct ReadParams {
    const void *data;
    int64_t quads;  // of 16 bytes, a multiple of 8 * kDoubtThreads
    uint32_t *out;  // one
};
kernels::cuda::Kernel<ReadParams> read_kernel();

// out[i] = in[i] + 1, one block per kDoubtThreads floats; a part of `weights` is read before the wait. The
// first block multiplies `spins` times (an even number) by `minus_one`, to stay busy like a block that
// prepares an output.
struct StepParams {
    const uint32_t *in;
    uint32_t *out;
    const void *weights;  // 16 bytes per thread of the grid, zeros
    int32_t spins, late_trigger;
    uint32_t minus_one = 0xffffffffu;
};
// Two kernels that differ only in the shared memory that they may be launched with. apart: another such pair,
// for which the division of L1 and shared memory has not been chosen yet.
kernels::cuda::Kernel<StepParams> step_kernel(bool large, bool apart);
inline constexpr int kLargeShared = 76 << 10;

// `rounds` barriers of all blocks, which must all be resident.
struct BarrierParams {
    uint32_t *arrived;  // one, zero
    int32_t rounds;
};
kernels::cuda::Kernel<BarrierParams> barrier_kernel();

// One warp: c = a b, registers by lane as in device.h.
struct AlignmentParams {
    const uint32_t *a, *b;  // [32][4], [32][2]
    float *c;               // [32][4]
};
kernels::cuda::Kernel<AlignmentParams> alignment_kernel();

}  // namespace runnel::tests::device
