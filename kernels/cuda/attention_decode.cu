// Attention of few tokens per sequence (decode, verification): split K/V. See attention.h for the arithmetic.
//
// A work item is a (sequence, K/V head, tile of 16 rows, split of 256 cells); blocks of 4 warps walk the
// items of a persistent grid, so lengths may change from replay to replay of a graph. Per step of 64 cells
// the warps share the tile: for q . k each takes 16 cells, for p . v every fourth 8-column of the output;
// maxima and p pass through shared memory. K and V arrive by cp.async, two steps deep up to 128 dimensions.
// The rows of tokens that this batch adds are computed where they are needed; tile 0 also stores them in the
// cache. Bytes against the floor: each K/V byte of a split once per tile; 16 (dim_v + 2) floats of scratch
// per item where a sequence has several splits (3% at dim 128), written and read.
#include "kernels/cuda/attention_tile.h"

namespace runnel::kernels::cuda {

namespace {

constexpr int kPStride = 64;  // p: rows of 64 16-bit values

template <int kDim>
struct DecodeShared {
    static constexpr int kStages = kDim <= 128 ? 2 : 1;
    static constexpr int kTileBytes = kAttentionStep * RowsLayout<kDim>::kRowBytes;
    alignas(128) unsigned char k[kStages][kTileBytes];
    alignas(128) unsigned char v[kStages][kTileBytes];
    alignas(128) unsigned char q[kAttentionRows * RowsLayout<kDim>::kRowBytes];
    alignas(128) unsigned char p[kAttentionRows * 2 * kPStride];
    float maximum[kAttentionWarps][kAttentionRows];
    float scratch[kAttentionWarps][kMaxHeadDim];
    uint32_t arrived;
};

struct Item {
    int sequence, kv_head, tile, split;
    int first_split, splits;  // of the tile's sequence
    int index;                // among all items
};

// Splits that any row of a sequence sees.
DEVICE int first_split_of(const AttentionParams &p, const SequenceInfo &s) {
    return first_visible(p, s.past) / kAttentionSplit;
}

// The item number `index`, or false when there are fewer.
DEVICE bool find_item(const AttentionParams &p, int index, Item &item) {
    const int group = p.heads / p.kv_heads, sequences = *p.sequence_count;
    int rest = index;
    for (int s = 0; s < sequences; ++s) {
        const SequenceInfo info = p.sequences[s];
        if (!takes(p, info.count * group)) continue;
        const int first = first_split_of(p, info);
        const int splits = (info.past + info.count - 1) / kAttentionSplit - first + 1;
        const int tiles = (info.count * group + kAttentionRows - 1) / kAttentionRows;
        const int items = splits * tiles * p.kv_heads;
        if (rest < items) {
            item = {s,    rest / splits / tiles, rest / splits % tiles, first + rest % splits, first, splits,
                    index};
            return true;
        }
        rest -= items;
    }
    return false;
}

template <class T, int kDim>
struct AttentionDecode {
    using Params = AttentionParams;
    using Shared = DecodeShared<kDim>;
    static constexpr const char *kName = "attention decode";
    static constexpr int kThreads = kAttentionThreads, kBlocks = kDim <= 128 ? 2 : 1;
    static constexpr int kStages = Shared::kStages;
    static constexpr int kTiles = kDim / 8 / kAttentionWarps;  // 8-column tiles of o per warp

    // What a block holds while it works on an item.
    struct State {
        RowSpace space;
        LaneRows rows;
        int begin, end;   // cells of the cache that the tile may see: begin, and up to the new tokens
        int first, last;  // steps
        bool appends;
        Running run;
        float o[kTiles][4];
    };

    static DEVICE int padded_k(const Params &p) { return (p.dim_k + 15) / 16 * 16; }

    // --- the new tokens of the batch
    // -------------------------------------------------------------------------

    // k and v of the batch's tokens that stand in this step: into shared memory, and, by tile 0, the cache.
    static DEVICE void make_k(const Params &p, const State &state, float *scratch, int step,
                              unsigned char *to) {
        const SequenceInfo &s = state.space.sequence;
        for (int row = warp_index(); row < kAttentionStep; row += kAttentionWarps) {
            const int cell = step * kAttentionStep + row;
            if (cell < s.past || cell >= s.past + s.count) continue;
            const int token = s.first + cell - s.past;
            uint16_t *cache =
                p.k_cache + cache_offset(p, state.space.table, state.space.kv_head, cell, p.dim_k);
            const float *from = p.k + token * p.k_stride + int64_t{state.space.kv_head} * p.dim_k;
            make_head(key_recipe(p, token), from, scratch, [&](int d, float value) {
                const uint16_t rounded = T::round(value);
                *reinterpret_cast<uint16_t *>(to + RowsLayout<kDim>::offset(row, d / 8) + 2 * (d % 8)) =
                    rounded;
                if (state.appends) cache[d] = rounded;
            });
            for (int d = p.dim_k + lane_index(); d < padded_k(p); d += 32)
                *reinterpret_cast<uint16_t *>(to + RowsLayout<kDim>::offset(row, d / 8) + 2 * (d % 8)) = 0;
        }
    }

    static DEVICE void make_v(const Params &p, const State &state, int step, unsigned char *to) {
        const SequenceInfo &s = state.space.sequence;
        for (int row = warp_index(); row < kAttentionStep; row += kAttentionWarps) {
            const int cell = step * kAttentionStep + row;
            if (cell < s.past || cell >= s.past + s.count) continue;
            const int token = s.first + cell - s.past;
            uint16_t *cache =
                p.v_cache + cache_offset(p, state.space.table, state.space.kv_head, cell, p.dim_v);
            const float *from = p.v + token * p.v_stride + int64_t{state.space.kv_head} * p.dim_v;
            for (int d = lane_index(); d < p.dim_v; d += 32) {
                const uint16_t rounded = T::round(from[d]);
                *reinterpret_cast<uint16_t *>(to + RowsLayout<kDim>::offset(row, d / 8) + 2 * (d % 8)) =
                    rounded;
                if (state.appends) cache[d] = rounded;
            }
        }
    }

    // New cells are written by make_*: cp.async leaves their rows alone.
    static DEVICE void start_k(const Params &p, const State &state, Shared &shared, int step) {
        if (step <= state.last) {
            unsigned char *to = shared.k[step % kStages];
            load_old(p, state, p.k_cache, p.dim_k, padded_k(p), step, to);
            make_k(p, state, shared.scratch[warp_index()], step, to);
        }
        cp_async_commit();
    }

    static DEVICE void start_v(const Params &p, const State &state, Shared &shared, int step) {
        if (step <= state.last) {
            unsigned char *to = shared.v[step % kStages];
            load_old(p, state, p.v_cache, p.dim_v, p.dim_v, step, to);
            make_v(p, state, step, to);
        }
        cp_async_commit();
    }

    static DEVICE void load_old(const Params &p, const State &state, const uint16_t *cache, int dim,
                                int padded, int step, unsigned char *to) {
        const SequenceInfo &s = state.space.sequence;
        load_cells<kDim>(p, state.space, cache, {dim, 0, dim, padded}, step,
                         {state.begin, s.past, s.past + s.count}, to);
    }

    // --- one step
    // --------------------------------------------------------------------------------------------

    // This warp's 16 cells: c[0] the first 8, c[1] the others.
    static DEVICE void scores(const Params &p, const State &state, const Shared &shared, int step,
                              float (&c)[2][4]) {
        const int first = 16 * warp_index();
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) c[n][i] = 0;
        const int chunks = padded_k(p) / 16;
#pragma unroll
        for (int chunk = 0; chunk < kDim / 16; ++chunk) {
            if (chunk >= chunks) break;
            uint32_t a[4], b[4];
            load_a<kDim>(shared.q, chunk, a);
            load_k<kDim>(shared.k[step % kStages], first, chunk, b);
            T::mma(c[0], a, {b[0], b[1]});
            T::mma(c[1], a, {b[2], b[3]});
        }
        const int cell = step * kAttentionStep + first + 2 * (lane_index() & 3);
        finish_scores(p, state.rows, cell, c[0]);
        finish_scores(p, state.rows, cell + 8, c[1]);
    }

    // The largest of each row over this warp's cells, for the others.
    static DEVICE void share_maximum(Shared &shared, const float (&c)[2][4]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float a = fmaxf(c[0][2 * i], c[0][2 * i + 1]), b = fmaxf(c[1][2 * i], c[1][2 * i + 1]);
            const float m = quad_max(fmaxf(a, b));
            if ((lane_index() & 3) == 0) shared.maximum[warp_index()][(lane_index() >> 2) + 8 * i] = m;
        }
    }

    // p of this warp's cells into shared memory; l and o are scaled to the new maximum.
    static DEVICE void rescale(State &state, Shared &shared, const float (&c)[2][4]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = (lane_index() >> 2) + 8 * i;
            float m = state.run.m[i];
#pragma unroll
            for (int w = 0; w < kAttentionWarps; ++w) m = fmaxf(m, shared.maximum[w][row]);
            const float f = exp2_p(state.run.m[i] - m);
            state.run.m[i] = m;
            state.run.l[i] *= f;
#pragma unroll
            for (int n = 0; n < kTiles; ++n) {
                state.o[n][2 * i] *= f;
                state.o[n][2 * i + 1] *= f;
            }
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const int cell = 16 * warp_index() + 8 * n + 2 * (lane_index() & 3);
                const uint32_t pair = T::pack(exp2_p(c[n][2 * i] - m), exp2_p(c[n][2 * i + 1] - m));
                *reinterpret_cast<uint32_t *>(shared.p + RowsLayout<kPStride>::offset(row, cell / 8) +
                                              2 * (cell % 8)) = pair;
            }
        }
    }

    static DEVICE void accumulate(const Params &p, State &state, const Shared &shared, int step) {
        uint32_t a[4][4];
        float l[4] = {state.run.l[0], 0, state.run.l[1], 0};
#pragma unroll
        for (int chunk = 0; chunk < 4; ++chunk) {
            load_a<kPStride>(shared.p, chunk, a[chunk]);
            T::mma(l, a[chunk], {T::kOnes, T::kOnes});
        }
        state.run.l[0] = l[0];
        state.run.l[1] = l[2];
        const unsigned char *v = shared.v[step % kStages];
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
            const int tile = warp_index() + n * kAttentionWarps;
            if (8 * tile >= p.dim_v) break;
            uint32_t b[4];
            load_v<kDim>(v, 0, tile, b);
            T::mma(state.o[n], a[0], {b[0], b[1]});
            T::mma(state.o[n], a[1], {b[2], b[3]});
            load_v<kDim>(v, 32, tile, b);
            T::mma(state.o[n], a[2], {b[0], b[1]});
            T::mma(state.o[n], a[3], {b[2], b[3]});
        }
    }

    // The loop begins one step early, so that loads are started in one place. K of the next step is started
    // as soon as its buffer is free, and V likewise.
    static DEVICE void steps(const Params &p, State &state, Shared &shared) {
#pragma unroll 1
        for (int step = state.first - 1; step <= state.last; ++step) {
            const bool computes = step >= state.first;
            float c[2][4];
            if constexpr (kStages == 2) {
                start_k(p, state, shared, step + 1);
                start_v(p, state, shared, step + 1);
            }
            if (computes) {
                cp_async_wait<kStages == 2 ? 3 : 1>();
                block_sync();
                scores(p, state, shared, step, c);
                share_maximum(shared, c);
                block_sync();
            }
            if constexpr (kStages == 1) start_k(p, state, shared, step + 1);
            if (computes) {
                rescale(state, shared, c);
                cp_async_wait<kStages == 2 ? 2 : 1>();
                block_sync();
                accumulate(p, state, shared, step);
                block_sync();
            }
            if constexpr (kStages == 1) start_v(p, state, shared, step + 1);
        }
        cp_async_wait<0>();
    }

    static DEVICE float *partial_of(const Params &p, int item) {
        return p.partial + attention_partial_floats(item, p.dim_v);
    }

    // Rows of [m, l, o...] of this item.
    static DEVICE void store_partial(const Params &p, const State &state, int item) {
        const int stride = p.dim_v + 2;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float *row = partial_of(p, item) + ((lane_index() >> 2) + 8 * i) * stride;
            if (warp_index() == 0 && (lane_index() & 3) == 0) {
                row[0] = state.run.m[i];
                row[1] = state.run.l[i];
            }
#pragma unroll
            for (int n = 0; n < kTiles; ++n) {
                const int column = 8 * (warp_index() + n * kAttentionWarps) + 2 * (lane_index() & 3);
                if (column >= p.dim_v) break;
                row[2 + column] = state.o[n][2 * i];
                row[3 + column] = state.o[n][2 * i + 1];
            }
        }
    }

    static DEVICE float *output_of(const Params &p, const RowSpace &space, int row) {
        const int64_t token = space.sequence.first + space.token(row);
        return p.out + token * p.out_stride + int64_t{space.head(row)} * p.dim_v;
    }

    // The only split: nothing to join.
    static DEVICE void store_output(const Params &p, const State &state, int first_row) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = first_row + (lane_index() >> 2) + 8 * i;
            if (row >= state.space.rows) continue;
            const float factor = final_factor(p, state.space.head(row), state.run.m[i], state.run.l[i]);
            float *out = output_of(p, state.space, row);
#pragma unroll
            for (int n = 0; n < kTiles; ++n) {
                const int column = 8 * (warp_index() + n * kAttentionWarps) + 2 * (lane_index() & 3);
                if (column >= p.dim_v) break;
                out[column] = state.o[n][2 * i] * factor;
                out[column + 1] = state.o[n][2 * i + 1] * factor;
            }
        }
    }

    // Splits in ascending order; a warp takes every fourth row, its lanes the columns.
    static DEVICE void join_splits(const Params &p, const RowSpace &space, const Item &item) {
        const int64_t stride = p.dim_v + 2, to_next = kAttentionRows * stride;
        const float *first = partial_of(p, item.index - (item.split - item.first_split));
        for (int i = warp_index(); i < kAttentionRows; i += kAttentionWarps) {
            const int row = item.tile * kAttentionRows + i;
            if (row >= space.rows) break;
            const float *part = first + i * stride;
            float m = part[0], l = part[1], o[kDim / 32];
#pragma unroll
            for (int j = 0; j < kDim / 32; ++j) {
                const int d = lane_index() + 32 * j;
                o[j] = d < p.dim_v ? part[2 + d] : 0.0f;
            }
            for (int s = 1; s < item.splits; ++s) {
                part += to_next;
                const Join weight = join(m, part[0]);
                m = weight.m;
                l = fma_rn(l, weight.a, part[1] * weight.b);
#pragma unroll
                for (int j = 0; j < kDim / 32; ++j) {
                    const int d = lane_index() + 32 * j;
                    if (d < p.dim_v) o[j] = fma_rn(o[j], weight.a, part[2 + d] * weight.b);
                }
            }
            const float factor = final_factor(p, space.head(row), m, l);
            float *out = output_of(p, space, row);
#pragma unroll
            for (int j = 0; j < kDim / 32; ++j)
                if (lane_index() + 32 * j < p.dim_v) out[lane_index() + 32 * j] = o[j] * factor;
        }
    }

    // True in the block that brought the last split of its tile. The counter is zero again afterwards.
    static DEVICE bool is_last(const Params &p, Shared &shared, const Item &item) {
        block_sync();
        if (thread_index() == 0) {
            uint32_t *counter =
                p.counters + (int64_t{item.sequence} * p.kv_heads + item.kv_head) * p.max_tiles + item.tile;
            fence_gpu();
            shared.arrived = atomic_inc_wrap_u32(counter, static_cast<uint32_t>(item.splits - 1));
            fence_gpu();
        }
        block_sync();
        return shared.arrived == static_cast<uint32_t>(item.splits - 1);
    }

    // --- the item
    // --------------------------------------------------------------------------------------------

    static DEVICE State begin(const Params &p, const Item &item) {
        State state;
        state.space = row_space(p, item.sequence, item.kv_head);
        const int first_row = item.tile * kAttentionRows;
        const int rows = state.space.rows - first_row;
        const int last_row = first_row + (rows < kAttentionRows ? rows : kAttentionRows) - 1;
        state.rows = lane_rows(p, state.space, first_row);
        state.begin = first_visible(p, state.space.own_cell(first_row));
        // Tile 0 appends all new tokens of the split, also those that only later tiles see.
        state.appends = item.tile == 0;
        const int own = state.appends ? state.space.sequence.past + state.space.sequence.count - 1
                                      : state.space.own_cell(last_row);
        state.end = own + 1;
        const int first_cell = item.split * kAttentionSplit, end_cell = first_cell + kAttentionSplit;
        const int begin = state.begin > first_cell ? state.begin : first_cell;
        const int end = state.end < end_cell ? state.end : end_cell;
        state.first = begin / kAttentionStep;
        state.last = begin < end ? (end - 1) / kAttentionStep : state.first - 1;
        state.run = {{kNoMaximum, kNoMaximum}, {0, 0}};
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) state.o[n][i] = 0;
        return state;
    }

    static DEVICE void work(const Params &p, Shared &shared, const Item &item) {
        State state = begin(p, item);
        const int first_row = item.tile * kAttentionRows;
        load_queries<T, kDim>(p, state.space, first_row, warp_index(), kAttentionWarps,
                              shared.scratch[warp_index()], shared.q);
        steps(p, state, shared);
        if (item.splits == 1) {
            store_output(p, state, first_row);
        } else {
            store_partial(p, state, item.index);
            if (is_last(p, shared, item)) join_splits(p, state.space, item);
        }
        block_sync();
    }

    static DEVICE void run(const Params &p) {
        auto &shared = shared_memory<Shared>();
        grid_dep_wait();
        Item item;
        for (int i = block_index(); find_item(p, i, item); i += block_count()) work(p, shared, item);
        grid_dep_trigger();
    }
};

template <class T>
Kernel<AttentionParams> choose(int32_t dim) {
    if (dim <= 64) return kernel_of<AttentionDecode<T, 64>>();
    if (dim <= 128) return kernel_of<AttentionDecode<T, 128>>();
    return kernel_of<AttentionDecode<T, 256>>();
}

}  // namespace

Kernel<AttentionParams> attention_decode_kernel(CacheType type, int32_t dim_k, int32_t dim_v) {
    const int32_t dim = dim_k > dim_v ? dim_k : dim_v;
    return type == CacheType::F16 ? choose<F16>(dim) : choose<BF16>(dim);
}

size_t attention_decode_shared(int32_t dim_k, int32_t dim_v) {
    const int32_t dim = dim_k > dim_v ? dim_k : dim_v;
    if (dim <= 64) return sizeof(DecodeShared<64>);
    if (dim <= 128) return sizeof(DecodeShared<128>);
    return sizeof(DecodeShared<256>);
}

}  // namespace runnel::kernels::cuda
