// The layout of a block's copy of a launch's input in shared memory (staged_activations.h).
//
// It has a row per row of the input, and a row a piece per block of 256 columns: the digits (or halves) of the block
// in the order of activations.h; its sums, if the format has minimums (of groups of 16 or 32, as its groups are); its
// scale, and 12 unused bytes. Rows in halves have one scale, which stands in every piece. For launches with groups, the
// groups and the rows that they read follow.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/linear/activations.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/tiles.h"

namespace runnel::kernels::cuda {

// Offsets in a piece, and its size; all are multiples of 16.
struct StagedPiece {
    int32_t sums, scale, bytes;
};
constexpr StagedPiece staged_piece(TileFormat format) {
    const int32_t sums = 2 * kTileCols, numbers = has_groups_of_16(format) ? kSum16Parts : kSumParts,
                  scale = sums + (has_minimum(format) ? 2 * numbers : 0);
    return {sums, scale, scale + 16};
}
constexpr int32_t staged_row_bytes(TileFormat format, int32_t cols) {
    return staged_piece(format).bytes * col_blocks32(cols);
}
// Bytes of the copy of `x_rows` rows, and for up to `rows` groups of `rows` rows.
constexpr size_t staged_bytes(TileFormat format, int32_t cols, int32_t x_rows, int32_t rows) {
    const size_t lists = static_cast<size_t>(rows) * (sizeof(TokenGroup) + sizeof(int32_t));
    return static_cast<size_t>(x_rows) * static_cast<size_t>(staged_row_bytes(format, cols)) +
           (lists + 15) / 16 * 16;
}

}  // namespace runnel::kernels::cuda
