// What the decode and the prefill kernel share: which rows and cells a tile has, the shared-memory layout of
// K and V, the matrix products of one step, and the joins. For kernels; attention.h defines the arithmetic.
#pragma once

#include <cmath>

#include "kernels/cuda/attention_head.h"

namespace runnel::kernels::cuda {

inline constexpr int kAttentionThreads = 128, kAttentionWarps = 4;
inline constexpr float kNoMaximum = -1e30f;  // not infinite: differences of it are numbers

// Rows of `kDim` 16-bit values in shared memory, their 16-byte chunks permuted so that ldmatrix meets no bank
// twice.
template <int kDim>
struct RowsLayout {
    static constexpr int kRowBytes = 2 * kDim;
    static DEVICE int offset(int row, int chunk) { return row * kRowBytes + (chunk ^ (row & 7)) * 16; }
};

// The rows of one (sequence, K/V head), and what its tiles see.
struct RowSpace {
    SequenceInfo sequence;
    const int32_t *table;
    int kv_head, group, rows;

    DEVICE int token(int row) const { return row / group; }
    DEVICE int own_cell(int row) const { return sequence.past + row / group; }
    DEVICE int head(int row) const { return kv_head * group + row % group; }
};

DEVICE RowSpace row_space(const AttentionParams &p, int sequence, int kv_head) {
    RowSpace space;
    space.sequence = p.sequences[sequence];
    space.table = p.tables + sequence * p.table_stride;
    space.kv_head = kv_head;
    space.group = p.heads / p.kv_heads;
    space.rows = space.sequence.count * space.group;
    return space;
}

DEVICE bool takes(const AttentionParams &p, int rows) {
    return rows > p.min_rows && rows <= p.max_rows;
}

// The first cell that the token in cell `own` sees.
DEVICE int first_visible(const AttentionParams &p, int own) {
    if (p.window == 0) return 0;
    const int first = p.chunked ? own - own % p.window : own - p.window + 1;
    return first > 0 ? first : 0;
}

// One 64-cell step of a tile for one lane: rows g and g + 8.
struct LaneRows {
    int first[2], own[2];  // visible cells [first, own]; none (first > own) for rows that do not exist
};

DEVICE LaneRows lane_rows(const AttentionParams &p, const RowSpace &space, int first_row) {
    LaneRows lane;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = first_row + (lane_index() >> 2) + 8 * i;
        lane.own[i] = row < space.rows ? space.own_cell(row) : -1;
        lane.first[i] = row < space.rows ? first_visible(p, lane.own[i]) : 0;
    }
    return lane;
}

// s -> scaled, capped, in units of log2, masked. cell: of c[0] and c[2]; c[1] and c[3] are one further.
DEVICE void finish_scores(const AttentionParams &p, const LaneRows &rows, int cell, float (&c)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float s = c[i] * p.scale;
        if (p.softcap != 0.0f) s = soft_cap_p(s, p.softcap, p.softcap_inverse);
        const int at = cell + (i & 1);
        const bool visible = at >= rows.first[i >> 1] && at <= rows.own[i >> 1];
        c[i] = visible ? s * kLog2E : bits_float(0xff800000u);  // minus infinity
    }
}

DEVICE float quad_max(float x) {
    x = fmaxf(x, shfl_xor(x, 1));
    return fmaxf(x, shfl_xor(x, 2));
}

// Running maximum and sum of rows g and g + 8.
struct Running {
    float m[2], l[2];
};

// The weights of the two sides of a join.
struct Join {
    float m, a, b;
};
DEVICE Join join(float m, float m_other) {
    const float top = fmaxf(m, m_other);
    return {top, exp2_p(m - top), exp2_p(m_other - top)};
}

// 1 / l after the head's sink, times what o is still to be multiplied by.
DEVICE float final_factor(const AttentionParams &p, int head, float m, float l) {
    if (!p.sinks) return l > 0.0f ? 1.0f / l : 0.0f;
    const float sink = p.sinks[head] * kLog2E, top = fmaxf(m, sink), a = exp2_p(m - top);
    return a / fma_rn(l, a, exp2_p(sink - top));
}

// Which cells of a step come from the cache: [begin, end). The rows of [end, made) are written by somebody
// else; all others become zeros.
struct CellRange {
    int begin, end, made;
};

// Which values of a cell: [first, first + count) of `dim` are loaded, up to `padded` (multiples of 8) zeros
// follow.
struct ValueRange {
    int dim, first, count, padded;
};

// cp.async of the cells [64 step, + 64) of K or V into rows of shared memory. All threads of the block.
template <int kDim>
DEVICE void load_cells(const AttentionParams &p, const RowSpace &space, const uint16_t *cache,
                       const ValueRange &values, int step, const CellRange &cells, unsigned char *to) {
    constexpr int kChunks = kDim / 8;  // of a row
    constexpr int kRowsAtOnce = kAttentionThreads / kChunks;
    const int chunk = thread_index() % kChunks;
    if (8 * chunk >= values.padded) return;
#pragma unroll 4
    for (int row = thread_index() / kChunks; row < kAttentionStep; row += kRowsAtOnce) {
        const int cell = step * kAttentionStep + row;
        if (cell >= cells.end && cell < cells.made) continue;
        const bool valid = cell >= cells.begin && cell < cells.end && 8 * chunk < values.count;
        const uint16_t *from = cache;
        if (valid)
            from += cache_offset(p, space.table, space.kv_head, cell, values.dim) + values.first + 8 * chunk;
        cp_async16(to + RowsLayout<kDim>::offset(row, chunk), from, valid);
    }
}

// Rows [first_row, first_row + 16) of q, finished, into `to`; zeros for rows that do not exist and from dim_k
// to the next multiple of 16. Warps take rows begin, begin + stride, ...
template <class T, int kDim>
DEVICE void load_queries(const AttentionParams &p, const RowSpace &space, int first_row, int begin,
                         int stride, float *scratch, unsigned char *to) {
    const int padded = (p.dim_k + 15) / 16 * 16;
    for (int i = begin; i < kAttentionRows; i += stride) {
        const int row = first_row + i;
        const auto store = [&](int d, float value) {
            *reinterpret_cast<uint16_t *>(to + RowsLayout<kDim>::offset(i, d / 8) + 2 * (d % 8)) =
                T::round(value);
        };
        int done = 0;
        if (row < space.rows) {
            const int token = space.sequence.first + space.token(row);
            make_head(query_recipe(p, token), p.q + token * p.q_stride + int64_t{space.head(row)} * p.dim_k,
                      scratch, store);
            done = p.dim_k;
        }
        for (int d = done + lane_index(); d < padded; d += 32) store(d, 0.0f);
    }
}

// A fragment of rows 0..15, values 16 c .. 16 c + 15.
template <int kDim>
DEVICE void load_a(const unsigned char *rows, int c, uint32_t (&a)[4]) {
    const int lane = lane_index();
    ldmatrix_x4(a, rows + RowsLayout<kDim>::offset(lane & 15, 2 * c + (lane >> 4)));
}

// B fragments of q . k for cells [first, first + 16), values 16 c .. : b[0], b[1] of the first 8 cells, b[2],
// b[3] of the others.
template <int kDim>
DEVICE void load_k(const unsigned char *k, int first, int c, uint32_t (&b)[4]) {
    const int lane = lane_index();
    ldmatrix_x4(b,
                k + RowsLayout<kDim>::offset(first + (lane & 7) + (lane >> 4) * 8, 2 * c + (lane >> 3 & 1)));
}

// B fragments of p . v for cells [first, first + 32) and values [8 n, 8 n + 8): b[0], b[1] of the first 16.
template <int kDim>
DEVICE void load_v(const unsigned char *v, int first, int n, uint32_t (&b)[4]) {
    ldmatrix_x4_trans(b, v + RowsLayout<kDim>::offset(first + lane_index(), n));
}

}  // namespace runnel::kernels::cuda
