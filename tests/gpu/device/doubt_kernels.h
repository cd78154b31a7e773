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

// Reads `data` as matrix kernels do, 2 KB per warp ahead; after each 2 KB, `reads` numbers of a table one after the other, each at
// the place that the one before names: from global memory (L1), or from a copy in shared memory. The lanes of a warp read
// one line of 128 bytes if number i of the table is in the column of i (i % 32).
struct BesideParams {
    const void *data;
    int64_t quads;          // of 16 bytes, a multiple of 4 * kDoubtThreads
    const uint32_t *table;  // [kTableNumbers], each below kTableNumbers
    uint32_t *out;          // one
    int32_t from_shared, reads;
};
inline constexpr int kTableNumbers = 1024;
kernels::cuda::Kernel<BesideParams> beside_kernel();
inline constexpr int kBesideShared = kTableNumbers * 4;

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
