// Which cells of the KV cache a row of an AttentionTile attends to: those of its window, or the chosen ones.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention.h"

namespace runnel::kernels::cpu {
namespace {

// Cells of a page, by bit.
using CellBits = uint32_t;
static_assert(kBlockTokens == 32);
constexpr CellBits kAllCells = ~CellBits{0};

// Cells [begin, end) of a page or range are visible to a row; none if begin >= end.
struct Visible {
    int begin, end;
    bool any() const { return begin < end; }
    bool operator==(const Visible &) const = default;
};

// Visible cells of a row within [from, from + cells), counted from `from`, if there are no chosen ones.
inline Visible visible(const AttentionTile &tile, int row, int32_t from, int32_t cells) {
    const int32_t own = tile.first_cell + row / tile.heads;
    const int32_t first = first_visible(tile, own);
    const int32_t begin = first > from ? first - from : 0;
    const int32_t end = visible_end(tile, own) - from;
    return {begin, end < cells ? end : cells};
}

// The cells of a page that the tile's stride leaves visible.
inline CellBits stride_cells(const AttentionTile &tile, int32_t page) {
    if (tile.stride == 1) return kAllCells;
    CellBits cells = 0;
    for (int32_t cell = tile.stride - 1 - page * kBlockTokens % tile.stride; cell < kBlockTokens;
         cell += tile.stride)
        cells |= CellBits{1} << cell;
    return cells;
}

// The visible cells of a page among `some`. chosen: those of each token, or null.
inline CellBits page_cells(const AttentionTile &tile, int row, int32_t page_cell, CellBits some,
                           const CellBits *chosen) {
    const Visible cells = visible(tile, row, page_cell, kBlockTokens);
    if (!cells.any()) return 0;
    const CellBits window = some & kAllCells << cells.begin & kAllCells >> (kBlockTokens - cells.end);
    return chosen == nullptr ? window : window & chosen[row / tile.heads];
}

// Removes the lowest run of neighboring cells, [begin, end), from `cells`, which must not be 0.
struct CellRun {
    int begin, end;
};
inline CellRun take_run(CellBits &cells) {
    const int begin = __builtin_ctz(cells);
    const CellBits after = ~(cells >> begin);
    const int end = after == 0 ? kBlockTokens : begin + __builtin_ctz(after);
    cells = end == kBlockTokens ? 0 : cells & kAllCells << end;
    return {begin, end};
}

// The cell of a token.
inline int32_t own_cell(const AttentionTile &tile, int32_t token) {
    return tile.first_cell + token;
}

// How many blocks a token chooses.
inline int32_t chosen_count(const AttentionTile &tile, int32_t token) {
    const int32_t cells = own_cell(tile, token) + 1,
                  blocks = (cells + tile.chosen_block - 1) / tile.chosen_block;
    const int32_t most = tile.chosen_count - (tile.chosen_pooled && cells % tile.chosen_block == 0);
    return blocks < most ? blocks : most;
}

// The number of the i-th of them.
inline int32_t chosen_block(const AttentionTile &tile, int32_t token, int32_t i) {
    return static_cast<int32_t>(tile.chosen[token * tile.chosen_stride + i]);
}

// Index of the first chosen block of a token that does not end before `cell`.
inline int32_t first_chosen(const AttentionTile &tile, int32_t token, int32_t cell) {
    const int32_t least = cell / tile.chosen_block;
    int32_t low = 0, high = chosen_count(tile, token);
    while (low < high) {
        const int32_t middle = (low + high) / 2;
        if (chosen_block(tile, token, middle) < least)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// Whether a token chooses a cell in [from, end).
inline bool chooses(const AttentionTile &tile, int32_t token, int32_t from, int32_t end) {
    if (from > own_cell(tile, token)) return false;
    const int32_t first = first_chosen(tile, token, from);
    return first < chosen_count(tile, token) && chosen_block(tile, token, first) * tile.chosen_block < end;
}

// The chosen cells of a tile's tokens from a cell on, page by page. Without chosen cells: all pages that the stride leaves.
class ChosenCells {
  public:
    ChosenCells(const AttentionTile &tile, int32_t from) : tile_(tile) {
        if (tile.chosen == nullptr) return;
        for (int32_t t = 0; t < tile.tokens; ++t) {
            count_[t] = chosen_count(tile, t);
            at_[t] = from > own_cell(tile, t) ? count_[t] : first_chosen(tile, t, from);
        }
    }
    // The first page, in [page, end), that has chosen cells which were not taken yet; `end` if none has.
    int32_t next_page(int32_t page, int32_t end) const {
        if (tile_.chosen == nullptr) {
            while (page < end && stride_cells(tile_, page) == 0) ++page;
            return page < end ? page : end;
        }
        int32_t next = end;
        for (int32_t t = 0; t < tile_.tokens; ++t) {
            if (at_[t] == count_[t]) continue;
            const int32_t of_token = begin(t) / kBlockTokens;
            if (of_token < next) next = of_token;
        }
        return next < page ? page : next;  // within a block of several pages
    }
    // The chosen cells of each token in this page; null if all are visible.
    const CellBits *take(int32_t page) {
        if (tile_.chosen == nullptr) return nullptr;
        const int32_t first = page * kBlockTokens, last = first + kBlockTokens - 1;
        for (int32_t t = 0; t < tile_.tokens; ++t) {
            bits_[t] = 0;
            for (; at_[t] < count_[t]; ++at_[t]) {
                const int32_t from = begin(t) > first ? begin(t) : first, block_last = last_of(t),
                              to = block_last < last ? block_last : last;
                if (from <= to) bits_[t] |= kAllCells << (from - first) & kAllCells >> (last - to);
                if (block_last > last) break;
            }
        }
        return bits_;
    }

  private:
    // The first and the last cell of the block that token t takes next.
    int32_t begin(int32_t t) const { return chosen_block(tile_, t, at_[t]) * tile_.chosen_block; }
    int32_t last_of(int32_t t) const {
        const int32_t last = begin(t) + tile_.chosen_block - 1, own = own_cell(tile_, t);
        return last < own ? last : own;
    }

    const AttentionTile &tile_;
    int32_t at_[kMostTileTokens], count_[kMostTileTokens];
    CellBits bits_[kMostTileTokens];
};

}  // namespace
}  // namespace runnel::kernels::cpu
