// y = W x for up to 16 tokens at a time, weights in tiles (tiles.h): decode, verification of drafts,
// several sequences. Weights are read once for all tokens. Two other kernels give the same results: one for
// groups of up to 8 rows with a matrix each (mixtures of experts, matrices of heads), and linear_prefill.h
// for many tokens.
//
// The canonical order. Every kernel that multiplies these weights computes exactly this, to the bit, for
// any number of tokens, any grid and any device (except that devices may differ in the order of the 16
// products inside an mma of F16 and BF16 weights):
//   1. The 256-column blocks of a row are cut into W = column_ranges(blocks) contiguous ranges; range w is
//      [w * blocks / W, (w + 1) * blocks / W). (W is 1 if the matrices are themselves ranges of another one: column_cut.h.)
//   2. A range's partial sum p starts at 0 and adds its blocks in ascending order. A quantized weight is D
//      c - M: a scale D and a minimum M (or 0) per group of 32 or 16 columns, D = d * scale and M = dmin *
//      minimum if those are integers. With the integers q of the activations (activations.h) sum(c q) and sum(q)
//      over a group are exact. The block's b is, with integer scales, from an exact sum, below 2^31, that is rounded once,
//          b = d * float(sum(scale * sum(c q)));
//      with float scales, and in IQ4_XS (tiles.h: has_integer_sums), it starts at 0; groups ascending:
//          b = fma(D, sum(c q), b), then, for float minimums, b = fma(-M, sum(q), b);
//      for integer minimums then, with their sum over the block rounded once:
//          b = fma(-dmin, float(sum(minimum * sum(q))), b);
//      at the end of the block p = fma(s, b, p), with the activations' scale s;
//     F16, BF16: c starts at 0 for the whole range, c = mma(w, h, c) for 16 columns at a time, ascending;
//          p = (c * s) * the factor of a BF16 row (activations.h, tiles.h: powers of two);
//      F32 (activations are float32): four sums, a_t = fma(w, x, a_t) over the columns with
//          column / 4 % 4 == t in ascending order, continued over all blocks; p = (a_0 + a_1) + (a_2 +
//          a_3).
//   3. y = ((p_0 + p_1) + p_2) + ...; then * the row's weight; then + bias; then * scale (or act(gate) *
//      up); then + add.
#pragma once

#include <cstdint>

#include "kernels/column_cut.h"
#include "kernels/cuda/linear/activations.h"
#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/linear/tiles.h"
#include "kernels/cuda/runtime/kernel.h"

namespace runnel::kernels::cuda {

inline constexpr int kLinearTokens = 16;      // most tokens of a launch without groups
inline constexpr int kLinearGroupTokens = 8;  // most tokens of a group
inline constexpr int kSmallGroupTokens = 4;   // up to so many, a group has a smaller kernel
inline constexpr int kStagedTokens = 8;       // most tokens of a launch with its input in shared memory
inline constexpr int kPreparedTokens = 8;     // most tokens of a launch that prepares its output
inline constexpr int kLinearMatrices = 4;     // most matrices of a launch: they share type, columns and input
inline constexpr int kLinearThreads = 256;    // threads per block

// Rows of the input that one matrix multiplies: [first, first + count).
struct TokenGroup {
    int32_t expert;  // which of the matrices
    int32_t first, count;
};

struct LinearMatrix {
    const std::byte *tiles;  // experts: all of them, [expert]
    const float *bias;       // [rows] or null; experts: [expert][rows]
    const float *add;        // [tokens][add_stride] or null; may be out
    float *out;              // [tokens][out_stride]
    int64_t add_stride, out_stride;
    int32_t rows;
    float scale = 1;
    int64_t out_skip = 0;  // heads: extra floats between a matrix's last row of out and the next one's first
};

enum class LinearGate : int32_t {
    None,
    Silu,  // matrix[0].out = silu(matrix[0] x) * (matrix[1] x)
};

struct LinearParams {
    LinearMatrix matrix[kLinearMatrices];
    Activations x;       // all formats but F32: the form that the format needs
    const float *x_f32;  // F32: [tokens][x_stride], rows 16-byte aligned
    int64_t x_stride;
    int32_t cols, tokens;
    int32_t matrices;
    LinearGate gate;
    // For the kernels of groups only. Mixtures of experts: rows sorted by expert, in groups (in device
    // memory; written by experts.h). Without `groups`: `heads` matrices, one after the other, each with
    // `tokens` rows: row i * tokens + t of x and of out is row t of matrix i. Rows of matrix i are offset by
    // i * x_skip floats in x_f32 and by i * out_skip in out.
    const TokenGroup *groups;
    const int32_t *group_count;
    const int32_t *sources;    // [row of the groups]: the row of x that it reads; null: the same row
    const float *row_weights;  // [rows] or null
    int32_t x_rows = 0;  // rows of x, where the launch chooses by it whether they are copied to shared memory
    int32_t heads = 1;
    int64_t x_skip = 0;
    // A row has column_ranges(range_blocks) ranges: the number of its blocks; or 1 if it is a range of a longer row, as only
    // those of heads with quantized weights can be.
    int32_t range_blocks = 0;
    // For launches of up to kPreparedTokens tokens or rows of a group, with one output (one matrix, or a gate):
    // prepare.x is that output, and the block that completes a group of 256 of its columns quantizes them for
    // the next launch. If quantization needs whole rows, there is one token and are no groups, and the block that completes the
    // row prepares it; only versions with can_prepare_rows() do that. prepare.out is not x, which other blocks still read.
    QuantizeParams prepare{};
    uint32_t *arrivals =
        nullptr;  // one per group of 256 columns, of each group of rows: zero before and after a launch
    // prepare_input.x is the input, which no launch has prepared: every block normalizes and quantizes all of it. Only for versions
    // with their input in shared memory, without groups, of up to kSmallGroupTokens; `x` is not used then. Null x: none.
    QuantizeParams prepare_input{};
    // Weights that a later launch reads first (look_ahead.h): each block fetches its share of them into L2 when it is done.
    // 16-byte aligned; bytes: a multiple of 16, below 4 GB. (Only by versions with their input in shared memory.)
    struct Ahead {
        struct Part {
            const std::byte *weights;
            int64_t bytes;
        } part[2] = {};
    } ahead;
    int32_t late_trigger = 0;  // not 0: grid_dep_trigger() at the end, for comparisons (switches.h)
};

// For matrices of so many columns, with the ranges that one device has.
inline LinearParams linear_params(int64_t cols) {
    LinearParams p{};
    p.cols = static_cast<int32_t>(cols);
    p.range_blocks = static_cast<int32_t>(col_blocks(cols));
    return p;
}

// The form of activations that a format needs: integers, halves or (F32) none.
constexpr ActivationForms forms_of(TileFormat format) {
    return {!is_float(format) && !is_half(format), is_half(format)};
}

// A version of the kernel: for launches of up to `tokens` tokens (1..kLinearTokens), or for groups of up to so many
// (1..kLinearGroupTokens): experts, or heads, each with any number of tokens in slices of kLinearGroupTokens; `groups` is
// null for heads. staged: with its input in shared memory (staged_activations.h); see can_stage().
struct LinearVersion {
    int tokens;
    bool grouped = false, staged = false;
};
Kernel<LinearParams> linear_kernel(TileFormat format, LinearVersion version);
// Its bytes of shared memory for a launch.
size_t linear_shared(TileFormat format, LinearVersion version, const LinearParams &params);

// Whether there is a staged version. (Of groups for lists of experts, not for heads.)
constexpr bool can_stage(TileFormat format, LinearVersion version) {
    return version.tokens <= (version.grouped ? kSmallGroupTokens : kStagedTokens) && !is_float(format);
}

// Whether a version can prepare outputs whose quantization needs whole rows. (Versions of quantized weights with their input in
// shared memory lack the registers for that code beside that of prepare_input.)
constexpr bool can_prepare_rows(TileFormat format, LinearVersion version) {
    return version.tokens == 1 && !version.grouped && (!version.staged || is_half(format));
}

// The formats with codebooks, and NVFP4: their kernels are in separate files.
constexpr bool is_apart(TileFormat format) {
    return has_codebook(format) || format == TileFormat::NVFP4;
}
// linear_kernel() for these formats (linear_codebooks.cu).
Kernel<LinearParams> linear_codebooks_kernel(TileFormat format, LinearVersion version);

// The number of blocks with work, with up to `groups` groups: the largest useful grid. Results
// do not depend on the grid.
int64_t linear_blocks(const LinearParams &params, int64_t groups = 1);

}  // namespace runnel::kernels::cuda
