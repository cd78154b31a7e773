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
// of this kernel's first version, and of F16 and BF16 alone in reach (linear_prefill_halves.cu).
//
// What should come near it with results equal to those of decode: activations of 12 bits, which binary16
// holds exactly. A group's products with codes of up to 8 bits then sum exactly in the float32 of an f16 mma
// (below 2^24) to what decode gets from two bytes per value in int8; with a float scale per group for all
// formats, one fma per product is left of the four instructions, and half the activations. The price:
// activations 16 times as coarse (4e-4 of an output, where f16 is 2e-4), some five instructions per 512
// weights in decode of the K formats, and shared memory as the next bound, at some 450 TFLOP/s.
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
