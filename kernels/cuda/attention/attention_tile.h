// Shared by the decode and prefill kernels: the rows and cells of a tile, K and V in shared
// memory (loaded by attention_load.h), the products of one step, and the joins. For kernels;
// attention.h defines the arithmetic.
#pragma once

#include <cmath>

#include "kernels/cuda/attention/attention_head.h"

namespace runnel::kernels::cuda {

inline constexpr int kAttentionThreads = 128, kAttentionWarps = 4;
inline constexpr float kNoMaximum = -1e30f;  // finite, so that differences are numbers

// Rows of `kDim` 16-bit values in shared memory. Their 16-byte chunks are permuted so that
// ldmatrix has no bank conflicts.
template <int kDim>
struct RowsLayout {
    static constexpr int kRowBytes = 2 * kDim;
    static DEVICE int offset(int row, int chunk) { return row * kRowBytes + (chunk ^ (row & 7)) * 16; }
    static DEVICE void store(unsigned char *rows, int row, int d, uint16_t value) {
        *reinterpret_cast<uint16_t *>(rows + offset(row, d / 8) + 2 * (d % 8)) = value;
    }
};

DEVICE int smaller(int a, int b) {
    return a < b ? a : b;
}

// dim_k rounded up to a multiple of 16; the products read zeros there.
DEVICE int padded_k(const AttentionParams &p) {
    return (p.dim_k + 15) / 16 * 16;
}

// --- rows and cells --------------------------------------------------------------------------------------

// A K/V head of a sequence.
struct CacheHead {
    const int32_t *table;
    int kv_head;
};

// The rows of one (sequence, K/V head), and the cells visible to its tiles.
struct RowSpace {
    SequenceInfo sequence;
    CacheHead cache;
    int group, rows;

    // (One token, the usual case, needs no division, which takes about 100 cycles.)
    DEVICE int token(int row) const { return sequence.count == 1 ? 0 : row / group; }
    DEVICE int own_cell(int row) const { return sequence.past + token(row); }
    // One past the last cell that is visible to a token in this cell.
    DEVICE int visible_end(int own) const {
        return own < sequence.common_end ? sequence.common_end : own + 1;
    }
    DEVICE int head(int row) const { return cache.kv_head * group + row - token(row) * group; }
    // One past the last cell that is visible to the rows before `row`.
    DEVICE int end_of(int row) const { return visible_end(own_cell(smaller(row, rows) - 1)); }
};

DEVICE RowSpace row_space(const AttentionParams &p, int sequence, int kv_head) {
    RowSpace space;
    space.sequence = p.sequences[sequence];
    space.cache = {p.tables + sequence * p.table_stride, kv_head};
    space.group = p.heads / p.kv_heads;
    space.rows = space.sequence.count * space.group;
    return space;
}

DEVICE bool takes(const AttentionParams &p, int rows) {
    return rows > p.min_rows && rows <= p.max_rows;
}

// One of the two runs of cells that a row attends to: the sink cells, or the window after them.
struct Run {
    bool sinks;
    int begin, end;  // [begin, end)
};
DEVICE Run run_of(const AttentionParams &p, bool sinks) {
    return {sinks, sinks ? 0 : p.sink_cells, sinks ? p.sink_cells : INT32_MAX};
}
DEVICE int first_visible(const AttentionParams &p, const Run &run, int own) {
    return run.sinks ? 0 : first_visible(p, own);
}

// The cells [first, last] of a run that are visible to a row; first > last if there are none.
struct RowCells {
    int first, last;
};
DEVICE RowCells row_cells(const AttentionParams &p, const RowSpace &space, const Run &run, int row) {
    if (row >= space.rows) return {0, -1};
    const int own = space.own_cell(row);
    return {first_visible(p, run, own), smaller(space.visible_end(own), run.end) - 1};
}

// The visible cells of the two rows of a lane's fragments: rows g and g + 8 of the tile, g = lane / 4.
struct LaneRows {
    int first[2], last[2];  // as RowCells
};

DEVICE LaneRows lane_rows(const AttentionParams &p, const RowSpace &space, const Run &run, int first_row) {
    LaneRows lane;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const RowCells cells = row_cells(p, space, run, first_row + (lane_index() >> 2) + 8 * i);
        lane.first[i] = cells.first;
        lane.last[i] = cells.last;
    }
    return lane;
}

// Where the cells of a step come from: [begin, end) from the cache, [end, made) from make()
// (attention_decode.cu); all others become zeros.
struct CellRange {
    int begin, end, made;

    DEVICE bool cached(int cell) const { return cell >= begin && cell < end; }
    DEVICE bool is_made(int cell) const { return cell >= end && cell < made; }
};

// The values of a cell: [first, first + count) of the head, then zeros up to `padded` (all multiples of 8).
struct ValueRange {
    int first, count, padded;
};

// Stores rows [first_row, first_row + 16) of the finished q in `to`; zeros for rows that do not exist and
// from dim_k to the next multiple of 16. Warps take rows begin, begin + stride, ...
template <int kDim>
DEVICE void load_queries(const AttentionParams &p, const RowSpace &space, const Run &run, int first_row,
                         int begin, int stride, float *scratch, unsigned char *to) {
    const int padded = padded_k(p), rows = smaller(space.rows - first_row, kAttentionRows);
    const Products products = products_of(p.k_cache);
    for (int i = begin; i < rows; i += stride) {
        const int row = first_row + i, token = space.sequence.first + space.token(row);
        make_head(query_recipe(p, token, run.sinks),
                  p.q + token * p.q_stride + int64_t{space.head(row)} * p.dim_k, scratch);
        for (int d = lane_index(); d < padded; d += 32)
            RowsLayout<kDim>::store(to, i, d, d < p.dim_k ? products.round(scratch[d]) : uint16_t{0});
        warp_sync();
    }
    constexpr int kChunks = kDim / 8;
    for (int i = (rows > 0 ? rows : 0) * kChunks + 32 * begin + lane_index(); i < kAttentionRows * kChunks;
         i += 32 * stride)
        st128(to + RowsLayout<kDim>::offset(i / kChunks, i % kChunks), {0, 0, 0, 0});
}

// --- products --------------------------------------------------------------------------------------------

// The fragment of operand A: rows 0..15, values 16 c .. 16 c + 15.
template <int kDim>
DEVICE void load_a(const unsigned char *rows, int c, uint32_t (&a)[4]) {
    const int lane = lane_index();
    ldmatrix_x4(a, rows + RowsLayout<kDim>::offset(lane & 15, 2 * c + (lane >> 4)));
}

// Fragments of operand B of q . k for cells [first, first + 16), values [16 c, 16 c + 16): b[0] and b[1] hold
// the first 8 cells, b[2] and b[3] the others.
template <int kDim>
DEVICE void load_k(const unsigned char *k, int first, int c, uint32_t (&b)[4]) {
    const int lane = lane_index();
    ldmatrix_x4(b,
                k + RowsLayout<kDim>::offset(first + (lane & 7) + (lane >> 4) * 8, 2 * c + (lane >> 3 & 1)));
}

// The same of 8 cells [first, first + 8) and 32 values [32 c, 32 c + 32), of rows of `pieces` times 8 values: b[0] and
// b[1] hold the first 16 values; beyond the row its last 8 values are repeated.
template <int kDim>
DEVICE void load_k_of_8(const unsigned char *k, int first, int c, int pieces, uint32_t (&b)[4]) {
    const int lane = lane_index();
    const int piece = smaller(4 * c + (lane >> 3), pieces - 1);
    ldmatrix_x4(b, k + RowsLayout<kDim>::offset(first + (lane & 7), piece));
}

// Fragments of operand B of p . v for cells [first, first + 32) and values [8 n, 8 n + 8): b[0] and
// b[1] hold the first 16 cells.
template <int kDim>
DEVICE void load_v(const unsigned char *v, int first, int n, uint32_t (&b)[4]) {
    ldmatrix_x4_trans(b, v + RowsLayout<kDim>::offset(first + lane_index(), n));
}

// The rows of a tile.
struct RowTile {
    RowSpace space;
    int first;
};

// Adds the biases by distance to scores of the tile; cells and rows as in finish_scores().
template <int kCellTiles>
DEVICE void add_distances(const AttentionParams &p, const RowTile &tile, int cell,
                          float (&c)[kCellTiles][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        // (Rows that do not exist take the biases of the last one.)
        const int row = smaller(tile.first + (lane_index() >> 2) + 8 * half, tile.space.rows - 1);
        const int own = tile.space.own_cell(row), own_of_sinks = smaller(own, p.sink_position);
        const float slope = p.slopes[tile.space.head(row)];
#pragma unroll
        for (int n = 0; n < kCellTiles; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int at = cell + 8 * n + i;
                const int from = at < p.sink_cells ? own_of_sinks : own;
                c[n][2 * half + i] = fma_rn(slope, static_cast<float>(at - from), c[n][2 * half + i]);
            }
    }
}

// Scales, caps, biases and masks scores, in units of log2: c[n][0] and c[n][2] of `cell` + 8 n, c[n][1] and c[n][3] of
// the next cell. tile() returns the RowTile; it is called only if there are slopes.
template <int kCellTiles, class Tile>
DEVICE void finish_scores(const AttentionParams &p, const LaneRows &rows, int cell, float (&c)[kCellTiles][4],
                          const Tile &tile) {
#pragma unroll
    for (int n = 0; n < kCellTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            c[n][i] *= p.scale;
            if (p.softcap != 0.0f) c[n][i] = soft_cap_p(c[n][i], p.softcap, p.softcap_inverse);
        }
    if (p.slopes) add_distances(p, tile(), cell, c);
#pragma unroll
    for (int n = 0; n < kCellTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = cell + 8 * n + (i & 1);
            const bool visible = at >= rows.first[i >> 1] && at <= rows.last[i >> 1];
            c[n][i] = visible ? c[n][i] * kLog2E : bits_float(0xff800000u);  // minus infinity
        }
}

DEVICE float quad_max(float x) {
    x = fmaxf(x, shfl_xor(x, 1));
    return fmaxf(x, shfl_xor(x, 2));
}

// A lane's sums for rows g and g + 8: maximum, sum, and 8-column tiles of o.
template <int kTiles>
struct Sums {
    float m[2], l[2];
    float o[kTiles][4];

    DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < 2; ++i) m[i] = kNoMaximum, l[i] = 0;
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) o[n][i] = 0;
    }

    // Changes the maximum of row i to `to`.
    DEVICE void rescale(int i, float to) {
        const float f = exp2_p(m[i] - to);
        m[i] = to;
        l[i] *= f;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
            o[n][2 * i] *= f;
            o[n][2 * i + 1] *= f;
        }
    }

    // Adds one step; `a` holds p of its 64 cells. Tile n of o is made of the 8 columns of v from
    // 8 (first + n stride) on; v has `columns` columns.
    template <int kDim>
    DEVICE void add(const Products &products, const uint32_t (&a)[4][4], const unsigned char *v, int first,
                    int stride, int columns) {
        const uint32_t ones[2] = {products.ones(), products.ones()};
        float sum[4] = {l[0], 0, l[1], 0};
#pragma unroll
        for (int chunk = 0; chunk < 4; ++chunk) products.mma(sum, a[chunk], ones);
        l[0] = sum[0];
        l[1] = sum[2];
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
            const int tile = first + n * stride;
            if (8 * tile >= columns) break;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                uint32_t b[4];
                load_v<kDim>(v, 32 * half, tile, b);
                products.mma(o[n], a[2 * half], {b[0], b[1]});
                products.mma(o[n], a[2 * half + 1], {b[2], b[3]});
            }
        }
    }
};

// The maximum after a join, and the weights of its two operands.
struct Join {
    float m, a, b;
};
DEVICE Join join(float m, float m_other) {
    const float top = fmaxf(m, m_other);
    return {top, exp2_p(m - top), exp2_p(m_other - top)};
}

// --- results ---------------------------------------------------------------------------------------------

// The final factor of o: 1 / l (step 5 of attention.h), or with a sink that of steps 4 and 5 together.
DEVICE float final_factor(const AttentionParams &p, int head, float m, float l) {
    if (!p.sinks) return l > 0.0f ? 1.0f / l : 0.0f;
    const float sink = p.sinks[head] * kLog2E, top = fmaxf(m, sink), a = exp2_p(m - top);
    return a / fma_rn(l, a, exp2_p(sink - top));
}

// Writes Attention::sums of a row, if it exists: those of step 4.
DEVICE void store_sums(const AttentionParams &p, const RowSpace &space, int row, float m, float l) {
    if (row >= space.rows) return;
    constexpr float kLn2 = 0.693147180559945f;
    if (p.sinks) {
        const float sink = p.sinks[space.head(row)] * kLog2E, top = fmaxf(m, sink);
        l = fma_rn(l, exp2_p(m - top), exp2_p(sink - top));
        m = top;
    }
    float *to =
        p.sums + int64_t{space.sequence.first + space.token(row)} * p.sums_stride + 2 * space.head(row);
    to[0] = m * kLn2;
    to[1] = l;
}

DEVICE float *output_of(const AttentionParams &p, const RowSpace &space, int row) {
    const int64_t token = space.sequence.first + space.token(row);
    return p.out + token * p.out_stride + int64_t{space.head(row)} * p.dim_v;
}

// Writes the finished rows of a tile. Tile n of o holds 8 output columns, from column + 8 (first +
// n stride) on. Columns from column + columns on are not written.
template <int kTiles>
DEVICE void store_output(const AttentionParams &p, const RowSpace &space, const Sums<kTiles> &sums,
                         int first_row, int column, int columns, int first, int stride) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = first_row + (lane_index() >> 2) + 8 * i;
        if (row >= space.rows) continue;
        const float factor = final_factor(p, space.head(row), sums.m[i], sums.l[i]);
        float *out = output_of(p, space, row) + column + 2 * (lane_index() & 3);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
            const int tile = first + n * stride;
            if (8 * tile >= columns) break;
            out[8 * tile] = sums.o[n][2 * i] * factor;
            out[8 * tile + 1] = sums.o[n][2 * i + 1] * factor;
        }
    }
}

// The kernel for heads of this size: Body<64>, <128> or <256>.
template <template <int, bool> class Body, bool kPacked>
Kernel<AttentionParams> kernel_for(int32_t dim) {
    if (dim <= 64) return kernel_of<Body<64, kPacked>>();
    if (dim <= 128) return kernel_of<Body<128, kPacked>>();
    return kernel_of<Body<256, kPacked>>();
}

}  // namespace runnel::kernels::cuda
