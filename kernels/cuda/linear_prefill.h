// y = W x for many tokens (prompts, experts of a large batch): the parameters and, to the bit, the results of
// linear.h. A block computes 128 rows x 64 tokens, of F16 and BF16 128 x 128, of F32 64 x 64. Groups of a
// launch with experts have at most kPrefillTokens rows.
//
// What it can reach: an argument, nothing was measured. Integers are exact, so the order of linear.h costs no
// more than a second float accumulator; what costs is that hi and lo double the tensor work, and that every
// product of 16 x 8 x 32 is scaled by four integer multiply-adds, which take 2 clocks of a quarter of a
// multiprocessor each. With kernels.md's rates of a H100 or H200 (132 multiprocessors, 1.755 GHz, int8
// mma.sync at 1200 TOPS: 6.3 clocks per m16n8k32 and quarter) tensor cores alone would allow 600 TFLOP/s, hi
// and lo counted once, the multiply-adds 474, and the machine code about 270 at one instruction a clock: for
// Q4_K a warp takes 1316 instructions to multiply 32 rows x 256 columns by 32 tokens and roughly 500 to copy,
// decode and synchronise. Two warps per scheduler will not issue every clock: at two thirds, 180 TFLOP/s, 23%
// of the 790 that were measured for bf16 on an H200. The 40% that the project wants is therefore out of reach
// of this kernel's first version; the path through f16 (kernels.md, section 4, C) should reach it, but its
// results would differ from those of decode, and equal results come first. The largest savings in sight
// without that: 64 rows per warp (half the loads), two scales per dp2a instead of multiply-adds, weights of
// Q2_K and Q3_K times their scale (they fit int8).
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

inline constexpr int kPrefillTokens = 64, kPrefillHalfTokens = 128;  // of a block; of F16 and BF16
inline constexpr int kPrefillTiles = 8, kPrefillFloatTiles = 4;      // row tiles of a block

// The kernel for a format and its bytes of shared memory.
Kernel<PrefillParams> linear_prefill_kernel(TileFormat format);
SharedBytes linear_prefill_shared(TileFormat format);
Kernel<PrefillParams> linear_prefill_floats_kernel();                   // F32: without shared memory
Kernel<PrefillParams> linear_prefill_halves_kernel(TileFormat format);  // F16, BF16
SharedBytes linear_prefill_halves_shared();
Kernel<PrefillParams> linear_prefill_codebooks_kernel(TileFormat format);  // and NVFP4
SharedBytes linear_prefill_codebooks_shared(TileFormat format);

// Tokens of a block.
constexpr int prefill_tokens(TileFormat format) {
    return is_half(format) ? kPrefillHalfTokens : kPrefillTokens;
}

// The largest sensible grid, with up to `groups` groups.
int64_t linear_prefill_blocks(const LinearParams &params, TileFormat format, int64_t groups);

}  // namespace runnel::kernels::cuda
