// Products of weights of one and two bits with few tokens, by looking up sums of activations.
//
// A dot product spends as much on a weight of one bit as on one of four: it makes a byte of each. Instead, the sixteen sums that
// four activations can have, each one added or not, are computed once per token; the bits of four weights of a row then are an
// index into that table, and one instruction looks up 64 indexes. Sixteen indexes share a table, so they must be of the same
// columns: 16 rows lie side by side, in tiles that are written once. (In the file one row follows the other.)
// Weights of two bits are two such products, of their low and of their high bits; trits (PTQ1_0) become weights of two bits.
// (The method is known from T-MAC, Wei et al. 2024; these sums are exact, so the bits are those of linear.h.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "gguf/block.h"

namespace runnel::kernels::cpu {

// Rows and columns of a tile. Its bytes are the bits of each plane, [plane][byte of a group][group of 32 columns][row], where a
// bit is a column, the lowest the first; then the scales, f16, [scale][row]. Rows that the matrix does not have are zeros.
inline constexpr int64_t kLookupRows = 16, kLookupCols = 128;
struct LookupTile {
    int planes;  // bits of a weight; 0: the format has no tiles
    int scales;  // of 128 columns
};
static constexpr int64_t bytes_of(LookupTile tile) {
    return tile.planes * kLookupRows * (kLookupCols / 8) + tile.scales * kLookupRows * 2;
}
static constexpr LookupTile lookup_tile(gguf::Type type) {
    if (type == gguf::Type::Q1_0) return {1, 1};
    if (type == gguf::Type::Q2_0) return {2, 2};
    if (type == gguf::Type::PQ2_0 || type == gguf::Type::PTQ1_0) return {2, 1};
    return {0, 0};
}

// The tiles of a matrix are those of its first 16 rows, from the first columns to the last, then those of the next 16 rows.
// Bytes of the tiles of 16 rows; 0: such a matrix has no tiles.
int64_t lookup_stride(gguf::Type type, int64_t cols);
// Bytes of all tiles, a multiple of 64.
size_t lookup_bytes(gguf::Type type, int64_t rows, int64_t cols);

// Writes rows [row0, row1) of a matrix whose row 0 is at `weights`, as the file has it, to its tiles. row0 is a multiple of 16;
// row1 is one too or equals rows. Precondition: lookup_stride() is not 0.
void write_lookup_tiles(gguf::Type type, const std::byte *weights, int64_t cols, int64_t row0, int64_t row1,
                        std::byte *tiles);

inline constexpr int32_t kMostLookupTokens = 4;  // LookupKernels::most_tokens() of any format

struct LookupKernels {
    // Up to so many tokens, looking up is faster than LinearKernels::multiply; 0: never.
    int32_t (*most_tokens)(gguf::Type type);

    // Writes the sums of `tokens` tokens to `sums` (64-aligned, lookup_sums_bytes()). packed: their activations
    // (ActFormat::Q8x32). Precondition: cols is a multiple of 128.
    void (*sum)(const void *packed, int64_t cols, int32_t tokens, void *sums);

    // out[t * out_stride + r] = the product of row r and token t, for r in [row0, row1), with the bits of LinearKernels::multiply.
    // tiles: those of the whole matrix. row0 is a multiple of 16; row1 is one too or the matrix ends there. `next`: a prefetch
    // hint, the bytes that this thread reads next, or null.
    void (*multiply)(gguf::Type type, const std::byte *tiles, int64_t cols, int64_t row0, int64_t row1,
                     const void *sums, int32_t tokens, float *out, int64_t out_stride, const std::byte *next);
};

size_t lookup_sums_bytes(int64_t cols, int32_t tokens);

}  // namespace runnel::kernels::cpu
