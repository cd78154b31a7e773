// y = W x for many tokens (prompts, experts of a large batch): the parameters and, to the bit, the results of
// linear.h. A block computes 256 rows x 48 tokens, of F16 and BF16 128 x 128, of F32 64 x 64. Groups of a
// launch with experts have at most kPrefillTokens rows.
//
// What it can reach: an argument, nothing was measured. The arithmetic of linear.h was chosen for it:
// activations of 12 bits are binary16 numbers, so quantized weights run at the tensor cores' full rate, each
// weight and activation once; the sum of a group is one float32, exact, and leaves one fma. For Q4_K a warp
// takes 192 mma (16 x 8 x 16), 24 smaller ones of minimums and 384 fma to multiply 32 rows x 256 columns by
// 48 tokens, and some 300 instructions to make binary16 numbers of its weights, once. With kernels.md's rates
// of a H100 or H200 (132 multiprocessors, 1.755 GHz, f16 mma.sync at 620 TFLOP/s: 6.1 clocks per mma and
// quarter) the tensor cores need 1200 clocks for that; the machine code takes 1600 (Q4_0) to 2500
// instructions (Q6_K), 456 to 290 TFLOP/s at one a clock, and two thirds of that are 25 to 38% of the 790
// that were measured for bf16 (with wgmma) on an H200. PREDICTIONS.md has the counts. L2 gives 240 bytes per
// 256 x 48 outputs and column.
//
// What could save more there: fewer instructions around the products (copies by the bulk tensor engine of
// sm_90); then wgmma, with weights from registers and activations from shared memory, at 1.6 times the rate.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/tiles.h"
#include "kernels/cuda/runtime/kernel.h"

namespace runnel::kernels::cuda {

// Tokens of a block; of F16 and BF16; of F32.
inline constexpr int kPrefillTokens = 48, kPrefillHalfTokens = 128, kPrefillFloatTokens = 64;
// Row tiles of a block.
inline constexpr int kPrefillTiles = 16, kPrefillHalfTiles = 8, kPrefillFloatTiles = 4;

struct PrefillParams {
    LinearParams linear;
    TileFormat format;
    // Of launches without groups, of quantized formats: the tokens of a unit of work, at most kPrefillTokens.
    int32_t slice = kPrefillTokens;
};

// The kernel for a format and its bytes of shared memory.
Kernel<PrefillParams> linear_prefill_kernel(TileFormat format);
SharedBytes linear_prefill_shared(TileFormat format);
Kernel<PrefillParams> linear_prefill_floats_kernel();                   // F32: without shared memory
Kernel<PrefillParams> linear_prefill_halves_kernel(TileFormat format);  // F16, BF16
SharedBytes linear_prefill_halves_shared();
Kernel<PrefillParams> linear_prefill_codebooks_kernel(TileFormat format);  // and NVFP4

// Tokens of a block.
constexpr int prefill_tokens(TileFormat format) {
    return is_half(format) ? kPrefillHalfTokens : is_float(format) ? kPrefillFloatTokens : kPrefillTokens;
}

// The largest sensible grid, with up to `groups` groups.
int64_t linear_prefill_blocks(const LinearParams &params, TileFormat format, int64_t groups);

}  // namespace runnel::kernels::cuda
