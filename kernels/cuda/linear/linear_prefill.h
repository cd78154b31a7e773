// y = W x for many tokens (prompts, experts of a large batch): the parameters and,
// to the bit, the results of linear.h. A block computes 256 rows x 48 tokens; with
// F16 and BF16 weights 128 x 128, with F32 64 x 64. Groups of a launch with experts
// have at most kPrefillTokens rows.
//
// Expected speed (estimated, not measured; tests/gpu/PREDICTIONS.md has the counts):
// activations of 12 bits are binary16 numbers, so quantized weights run at the
// tensor cores' full rate, each weight and activation once; the sum of a group is
// one exact float32 and needs one fma. For Q4_K a warp takes 192 mma (16 x 8 x 16),
// 24 smaller ones for minimums and 384 fma to multiply 32 rows x 256 columns by 48
// tokens, and about 300 instructions to convert its weights to binary16, once. On an
// H100 or H200 (132 multiprocessors, 1.755 GHz, f16 mma.sync at 620 TFLOP/s: 6.1
// clocks per mma and quarter) the tensor cores need 1200 clocks for that. The
// machine code takes 1600 (Q4_0) to 2500 instructions (Q6_K): 456 to 290 TFLOP/s at
// one per clock, two thirds of which are 25 to 38% of the 790 TFLOP/s measured for
// bf16 (with wgmma) on an H200. L2 delivers 240 bytes per 256 x 48 outputs and
// column.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/tiles.h"
#include "kernels/cuda/runtime/kernel.h"

namespace runnel::kernels::cuda {

// Tokens per block; of F16 and BF16; of F32.
inline constexpr int kPrefillTokens = 48, kPrefillHalfTokens = 128, kPrefillFloatTokens = 64;
// Row tiles per block; of F16 and BF16; of F32.
inline constexpr int kPrefillTiles = 16, kPrefillHalfTiles = 8, kPrefillFloatTiles = 4;

struct PrefillParams {
    LinearParams linear;
    TileFormat format;
    // For launches without groups with quantized formats: the tokens per unit of work, at most kPrefillTokens.
    int32_t slice = kPrefillTokens;
};

// The kernel for a format and its bytes of shared memory.
Kernel<PrefillParams> linear_prefill_kernel(TileFormat format);
SharedBytes linear_prefill_shared(TileFormat format);
Kernel<PrefillParams> linear_prefill_floats_kernel();                   // F32: without shared memory
Kernel<PrefillParams> linear_prefill_halves_kernel(TileFormat format);  // F16, BF16
SharedBytes linear_prefill_halves_shared();
Kernel<PrefillParams> linear_prefill_codebooks_kernel(TileFormat format);  // and NVFP4

// Tokens per block.
constexpr int prefill_tokens(TileFormat format) {
    return is_half(format) ? kPrefillHalfTokens : is_float(format) ? kPrefillFloatTokens : kPrefillTokens;
}

// The largest useful grid, with up to `groups` groups.
int64_t linear_prefill_blocks(const LinearParams &params, TileFormat format, int64_t groups);

}  // namespace runnel::kernels::cuda
