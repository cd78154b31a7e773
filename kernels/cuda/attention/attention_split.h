// Shared by the kernels that split keys over blocks (decode, wide heads): warps exchange maxima and p within
// a step, and blocks store partial results that one of them joins. For kernels.
#pragma once

#include "kernels/cuda/attention/attention_tile.h"
#include "kernels/cuda/runtime/arrival.h"

namespace runnel::kernels::cuda {

inline constexpr int kPStride = 64;  // p: rows of 64 16-bit values

// A warp computes the scores of kCellTiles times 8 cells of a step, so that this many warps do.
template <int kCellTiles>
inline constexpr int kScoreWarps = kAttentionStep / (8 * kCellTiles);
template <int kCellTiles>
using Maxima = float[kScoreWarps<kCellTiles>][kAttentionRows];

// Publishes the maximum of each row over this warp's cells. c: fragments of 16 rows by 8 cells.
template <int kCellTiles>
DEVICE void share_maximum(Maxima<kCellTiles> &maximum, const float (&c)[kCellTiles][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        float m = fmaxf(c[0][2 * i], c[0][2 * i + 1]);
#pragma unroll
        for (int n = 1; n < kCellTiles; ++n) m = fmaxf(m, fmaxf(c[n][2 * i], c[n][2 * i + 1]));
        m = quad_max(m);
        if ((lane_index() & 3) == 0) maximum[warp_index()][(lane_index() >> 2) + 8 * i] = m;
    }
}

// Rescales l and o to the new maximum and stores p of this warp's cells, if any, in shared memory.
template <int kWarps, int kTiles, int kCellTiles>
DEVICE void rescale_step(const AttentionParams &p, Sums<kTiles> &sums, const Maxima<kCellTiles> &maximum,
                         unsigned char *p_rows, const float (&c)[kCellTiles][4]) {
    constexpr int kScorers = kScoreWarps<kCellTiles>;
    const Products products = products_of(p.v_cache);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = (lane_index() >> 2) + 8 * i;
        float m = sums.m[i];
#pragma unroll
        for (int w = 0; w < kScorers; ++w) m = fmaxf(m, maximum[w][row]);
        sums.rescale(i, m);
        if (kWarps > kScorers && warp_index() >= kScorers) continue;
#pragma unroll
        for (int n = 0; n < kCellTiles; ++n) {
            const int cell = 8 * (kCellTiles * warp_index() + n) + 2 * (lane_index() & 3);
            *reinterpret_cast<uint32_t *>(p_rows + RowsLayout<kPStride>::offset(row, cell / 8) +
                                          2 * (cell % 8)) =
                products.pack(exp2_p(c[n][2 * i] - m), exp2_p(c[n][2 * i + 1] - m));
        }
    }
}

// p . v of a step: the warp computes every kWarps-th 8-column tile of o.
template <int kDim, int kWarps, int kTiles>
DEVICE void add_step(const AttentionParams &p, Sums<kTiles> &sums, const unsigned char *p_rows,
                     const unsigned char *v) {
    uint32_t a[4][4];
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk) load_a<kPStride>(p_rows, chunk, a[chunk]);
    sums.template add<kDim>(products_of(p.v_cache), a, v, warp_index(), kWarps, p.dim_v);
}

// --- items -----------------------------------------------------------------------------------------------

DEVICE float *partial_of(const AttentionParams &p, int item) {
    return p.partial + attention_partial_floats(item, p.dim_v);
}

// Stores the first `rows` rows of a tile, [m, l, o...] each, from `to` on.
template <int kWarps, int kTiles>
DEVICE void store_rows(const AttentionParams &p, const Sums<kTiles> &sums, float *to, int rows) {
    const int stride = p.dim_v + 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int at = (lane_index() >> 2) + 8 * i;
        if (at >= rows) continue;
        float *row = to + at * stride;
        if (warp_index() == 0 && (lane_index() & 3) == 0) {
            row[0] = sums.m[i];
            row[1] = sums.l[i];
        }
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
            const int column = 8 * (warp_index() + n * kWarps) + 2 * (lane_index() & 3);
            if (column >= p.dim_v) break;
            row[2 + column] = sums.o[n][2 * i];
            row[3 + column] = sums.o[n][2 * i + 1];
        }
    }
}

// Stores the rows of this item.
template <int kWarps, int kTiles>
DEVICE void store_partial(const AttentionParams &p, const Sums<kTiles> &sums, int item) {
    store_rows<kWarps>(p, sums, partial_of(p, item), kAttentionRows);
}

// Item `index` of AttentionParams::held: a tile of a K/V head in a split.
struct HeldItem {
    HeldSplit split;
    int kv_head, tile;
};

// Returns false if the item has no work: there are fewer splits, or the sequence has fewer tiles.
DEVICE bool find_held(const AttentionParams &p, int index, HeldItem &item) {
    const int which = index / p.most_units, unit = index - which * p.most_units;
    item = {};
    if (which >= p.held_splits) return false;
    item.split = p.held[which];
    const int rows = p.sequences[item.split.sequence].count * (p.heads / p.kv_heads);
    const int tiles = (rows + kAttentionRows - 1) / kAttentionRows;
    item.kv_head = unit / tiles;
    item.tile = unit - item.kv_head * tiles;
    return item.kv_head < p.kv_heads;
}

// Stores the rows of a tile where attention_join_kernel() finds them. `place`: HeldSplit::place.
template <int kWarps, int kTiles>
DEVICE void store_held(const AttentionParams &p, const Sums<kTiles> &sums, const RowSpace &space,
                       int first_row, int place) {
    const int64_t row = int64_t{place} * p.heads + space.cache.kv_head * space.rows + first_row;
    store_rows<kWarps>(p, sums, p.partial + row * (p.dim_v + 2), space.rows - first_row);
}

// True in the block that finished the last split of its tile. Resets the counter to zero.
DEVICE bool is_last(uint32_t *counter, int splits, uint32_t &last) {
    block_sync();
    if (thread_index() == 0) last = is_last_to_arrive(counter, splits);
    block_sync();
    return last != 0;
}

// Joins the partial results of `splits` items in order: first, first + apart, ... A warp takes every kWarps-th
// row, and its lanes take the row's columns, at most kColumns. kSums: writes AttentionParams::sums, unless it is null.
template <int kColumns, int kWarps, bool kSums = false>
DEVICE void join_splits(const AttentionParams &p, const RowSpace &space, int first_row, int first, int apart,
                        int splits) {
    const int64_t stride = p.dim_v + 2, to_next = kAttentionRows * stride * apart;
    for (int i = warp_index(); i < kAttentionRows; i += kWarps) {
        const int row = first_row + i;
        if (row >= space.rows) break;
        const float *part = partial_of(p, first) + i * stride;
        float m = part[0], l = part[1], o[kColumns / 32];
#pragma unroll
        for (int j = 0; j < kColumns / 32; ++j) {
            const int d = lane_index() + 32 * j;
            o[j] = d < p.dim_v ? part[2 + d] : 0.0f;
        }
        for (int s = 1; s < splits; ++s) {
            part += to_next;
            const Join weight = join(m, part[0]);
            m = weight.m;
            l = fma_rn(l, weight.a, part[1] * weight.b);
#pragma unroll
            for (int j = 0; j < kColumns / 32; ++j) {
                const int d = lane_index() + 32 * j;
                if (d < p.dim_v) o[j] = fma_rn(o[j], weight.a, part[2 + d] * weight.b);
            }
        }
        if (kSums && p.sums && lane_index() == 0) store_sums(p, space, row, m, l);
        const float factor = final_factor(p, space.head(row), m, l);
        float *out = output_of(p, space, row);
#pragma unroll
        for (int j = 0; j < kColumns / 32; ++j)
            if (lane_index() + 32 * j < p.dim_v) out[lane_index() + 32 * j] = o[j] * factor;
    }
}

}  // namespace runnel::kernels::cuda
