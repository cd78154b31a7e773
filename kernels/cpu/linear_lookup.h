// Products of one-bit weights (Q1_0) with few tokens, by looking up sums of activations.
//
// A dot product spends as much on a weight of one bit as on one of four: it makes a byte of each. Instead, the sixteen sums that
// four activations can have, each one added or not, are computed once per token; four weights of a row then are an index
// into that table, and one instruction looks up 64 indexes. Weights must lie so that the bytes of a register share their
// columns, which those of a row in the file do not: 16 rows are side by side here, in tiles that are written once.
// (The method is known from T-MAC, Wei et al. 2024; these sums are exact, so the bits are those of linear.h.)
#pragma once

#include <cstddef>
#include <cstdint>

namespace runnel::kernels::cpu {

// 128 columns of 16 rows. Rows that the matrix does not have are zeros.
struct OneBitTile {
    static constexpr int64_t kRows = 16, kCols = 128;
    uint8_t bits[4][4]
                [kRows];  // [byte of a group][group of 32 columns][row]; a bit is a column, as in the file
    uint16_t d[kRows];    // f16
};
static_assert(sizeof(OneBitTile) == 288);

// Bytes from 16 rows to the next ones, and of all rows, a multiple of 64. Tiles are [16 rows][128 columns].
static constexpr int64_t one_bit_stride(int64_t cols) {
    return cols / OneBitTile::kCols * static_cast<int64_t>(sizeof(OneBitTile));
}
static constexpr size_t one_bit_bytes(int64_t rows, int64_t cols) {
    const int64_t bytes = (rows + OneBitTile::kRows - 1) / OneBitTile::kRows * one_bit_stride(cols);
    return static_cast<size_t>((bytes + 63) / 64 * 64);
}

// Writes rows [row0, row1) of a matrix whose row 0 is at `weights`, as the file has it, to its tiles. row0 is a multiple of 16;
// row1 is one too or equals rows. Precondition: cols is a multiple of 128.
void write_one_bit_tiles(const std::byte *weights, int64_t cols, int64_t row0, int64_t row1,
                         std::byte *tiles);

struct LookupKernels {
    // Writes the sums of `tokens` tokens to `sums` (64-aligned, lookup_sums_bytes()). packed: their activations (ActFormat::Q8x32).
    void (*sum)(const void *packed, int64_t cols, int32_t tokens, void *sums);

    // out[t * out_stride + r] = the product of row r and token t, for r in [row0, row1), with the bits of LinearKernels::multiply.
    // tiles: those of the whole matrix. row0 is a multiple of 16; row1 is one too or the matrix ends there. `next`: a prefetch hint,
    // the bytes that this thread reads next, or null.
    void (*multiply)(const std::byte *tiles, int64_t cols, int64_t row0, int64_t row1, const void *sums,
                     int32_t tokens, float *out, int64_t out_stride, const std::byte *next);
};

size_t lookup_sums_bytes(int64_t cols, int32_t tokens);

}  // namespace runnel::kernels::cpu
