// Shared by the kernels for few and for many tokens: the order of linear.h and the numbering of work.
#pragma once

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/runtime/device.h"
#include "kernels/cuda/runtime/math.h"

namespace runnel::kernels::cuda {

// --- ranges of blocks ---

struct Range {
    int32_t begin, end;  // blocks
};

DEVICE Range range_of(int32_t blocks, int ranges, int index) {
    return {index * blocks / ranges, (index + 1) * blocks / ranges};
}

// The same by shifts: ranges is a power of two up to 8. (A division is some 60 instructions of machine code.)
DEVICE Range shifted_range_of(int32_t blocks, int ranges, int index) {
    const int shift = ranges >= 8 ? 3 : ranges / 2;
    return {index * blocks >> shift, (index + 1) * blocks >> shift};
}

// Groups of 32 columns in a block, and the chunks that hold them.
DEVICE int groups_at(int32_t cols, int32_t block) {
    const int32_t left = cols / 32 - 8 * block;
    return left < 8 ? left : 8;
}
DEVICE int chunks_at(int32_t cols, int32_t block) {
    return (groups_at(cols, block) + 1) / 2;
}

// The start of a row tile of a matrix, which may be an expert's or a head's.
DEVICE const std::byte *tile_bytes(const LinearParams &p, TileFormat format, int matrix, int32_t tile,
                                   int32_t expert) {
    const LinearMatrix &m = p.matrix[matrix];
    return m.tiles + (expert * row_tiles(m.rows) + tile) * row_tile_bytes(format, p.cols);
}

// The row of the activations that row `row` of a group reads.
DEVICE int32_t source_row(const LinearParams &p, TokenGroup group, int32_t row) {
    return p.sources ? p.sources[group.first + row] : group.first + row;
}

// --- units of work ---

// Row tiles of all matrices. With a gate, its tile and that of `up` count as one.
DEVICE int32_t tiles_of(const LinearParams &p) {
    if (p.gate != LinearGate::None) return static_cast<int32_t>(row_tiles(p.matrix[0].rows));
    int32_t tiles = 0;
    for (int i = 0; i < p.matrices; ++i) tiles += static_cast<int32_t>(row_tiles(p.matrix[i].rows));
    return tiles;
}

// The number of groups, of at most `size` tokens each.
DEVICE int32_t groups_of(const LinearParams &p, int32_t size) {
    return p.groups ? *p.group_count : p.heads * ((p.tokens + size - 1) / size);
}

// The rows of group `index`.
DEVICE TokenGroup group_at(const LinearParams &p, int32_t size, int32_t index) {
    if (p.groups) return p.groups[index];
    const int32_t slices = (p.tokens + size - 1) / size, head = index / slices;
    const int32_t first = size * (index - head * slices), left = p.tokens - first;
    return {head, head * p.tokens + first, left < size ? left : size};
}

// --- blocks of several row tiles, for many tokens ---

// Row tiles covered by a unit of kSlots slots: with a gate, two slots (gate and up) cover one tile.
template <int kSlots>
DEVICE int32_t tiles_of_unit(const LinearParams &p) {
    return p.gate != LinearGate::None ? kSlots / 2 : kSlots;
}

// A row tile of a matrix.
struct TileAt {
    int matrix;  // -1: none
    int32_t tile;
};
// The tile in a slot of a unit. With a gate, slots 2i and 2i + 1 are the same tile of gate and of up.
template <int kSlots>
DEVICE TileAt tile_at(const LinearParams &p, int32_t unit, int slot) {
    if (p.gate != LinearGate::None) {
        const int32_t tile = unit * (kSlots / 2) + slot / 2;
        return tile < row_tiles(p.matrix[0].rows) ? TileAt{slot % 2, tile} : TileAt{-1, 0};
    }
    int32_t tile = unit * kSlots + slot;
    for (int i = 0; i < p.matrices; ++i) {
        const auto tiles = static_cast<int32_t>(row_tiles(p.matrix[i].rows));
        if (tile < tiles) return {i, tile};
        tile -= tiles;
    }
    return {-1, 0};
}

// Writes one output; `up` is used only with a gate.
DEVICE void write_output(const LinearParams &p, TileAt tile, TokenGroup group, int token, int32_t row,
                         float y, float up) {
    const LinearMatrix &m = p.matrix[tile.matrix];
    const int64_t at = group.first + token, bias = int64_t{group.expert} * m.rows + row;
    if (p.row_weights) y = y * p.row_weights[at];
    if (m.bias) y = y + m.bias[bias];
    if (p.gate == LinearGate::Silu) {
        if (p.row_weights) up = up * p.row_weights[at];
        if (p.matrix[1].bias) up = up + p.matrix[1].bias[bias];
        y = silu_p(y) * up;
    }
    y = y * m.scale;
    if (m.add) y = y + m.add[at * m.add_stride + row];
    m.out[at * m.out_stride + group.expert * m.out_skip + row] = y;
}

}  // namespace runnel::kernels::cuda
