// y = W x for many tokens (prompts, experts of a large batch): the parameters and, to the bit, the results of
// linear.h. A block computes 128 rows x 64 tokens, of F32, F16 and BF16 64 x 64. Groups of a launch with
// experts have at most kPrefillTokens rows.
//
// What it can reach. Integers are exact, so the order of linear.h costs nothing but a second float
// accumulator; what costs is that hi and lo double the tensor work and that every product of 16 x 8 x 32 is
// scaled with four multiply-adds. Per multiprocessor and clock, from kernels.md's rates for a H100 or H200
// (1.755 GHz, 132 multiprocessors, int8 mma.sync at 1200 TOPS: one m16n8k32 per 6.3 clocks and quarter): an
// integer multiply-add takes 2 clocks of a quarter, so the four take 8 and are the limit, at 474 TFLOP/s with
// hi and lo counted once; all instructions together, about 1200 per warp, 32 rows, 32 tokens and 256 columns
// (Q4_K), leave 405. At the 60-70% of such bounds that a kernel with two warps per scheduler reaches, 240-280
// TFLOP/s: 30-36% of the 790 that were measured for bf16 on an H200 and 35-43% of what an H100 is commonly
// measured at (650-700). The path through f16 (kernels.md, section 4, C) should reach 400-500, but its
// results would differ from decode's; equal results come first. Formats with scales per 16 weights do twice
// the multiply-adds.
#pragma once

#include <cstdint>

#include "kernels/cuda/kernel.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/tiles.h"

namespace runnel::kernels::cuda {

struct PrefillParams {
    LinearParams linear;
    TileFormat format;
};

inline constexpr int kPrefillTokens = 64;                        // of a block
inline constexpr int kPrefillTiles = 8, kPrefillFloatTiles = 4;  // row tiles of a block

// The kernel for a format and its bytes of shared memory.
Kernel<PrefillParams> linear_prefill_kernel(TileFormat format);
size_t linear_prefill_shared(TileFormat format);
Kernel<PrefillParams> linear_prefill_floats_kernel(
    TileFormat format);  // F32, F16, BF16: without shared memory

// The largest sensible grid, with up to `groups` groups.
int64_t linear_prefill_blocks(const LinearParams &params, TileFormat format, int64_t groups);

}  // namespace runnel::kernels::cuda
