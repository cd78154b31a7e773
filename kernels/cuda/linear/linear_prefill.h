// y = W x for many tokens (prompts, experts of a large batch): the parameters and,
// to the bit, the results of linear.h. A block computes 256 rows x 48 tokens; with
// F16 and BF16 weights 128 x 128, with F32 64 x 64. Groups of a launch with experts
// have at most kPrefillTokens rows.
//
// Quantized weights and 12-bit activations are multiplied as binary16 integers, so
// the tensor cores run at their full f16 rate. The sum of a group is one exact
// number and costs one multiply-add with the group's scale, of integers or (formats
// with float scales) of float32. To multiply 32 rows x 256 columns of Q4_K by 48
// tokens, a warp executes
//   192  mma of 16 x 8 x 16,
//    24  smaller mma for the minimums,
//   384  multiply-adds of integers,
//   300  instructions (about) to convert the weights to binary16.
// Each weight is read once per 48 tokens (F16, BF16: 128; F32: 64), each activation
// once per 256 rows (128; 64). For quantized weights, L2 delivers 240 bytes per
// column of a block. Instruction counts and the speed expected of them:
// tests/gpu/PREDICTIONS.md, "Many tokens".
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/tiles.h"
#include "kernels/cuda/runtime/kernel.h"

namespace runnel::kernels::cuda {

// Tokens per block: with quantized weights, with F16 and BF16, with F32.
inline constexpr int kPrefillTokens = 48, kPrefillHalfTokens = 128, kPrefillFloatTokens = 64;
// Row tiles per block: with quantized weights, with F16 and BF16, with F32.
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
