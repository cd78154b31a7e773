// Attention of many tokens per sequence, with tensor cores and online softmax. See attention.h for the
// arithmetic; attention_append.cu has put k and v of the batch into the cache.
//
// A block of 4 warps takes 64 rows (token x head of the group: K and V are shared by the group), a warp one
// tile of 16: scores of 16 x 64 cells and the output stay in its registers, p goes from one product to the
// other without leaving them. K of the next step loads behind the softmax and p . v, V behind q . k. Per
// split of 256 cells the output joins a total (in shared memory, for heads of 256 in global scratch), which
// each thread alone reads and writes. Heads of 256 are done in two halves of their values, each with its own
// scores: 256 columns of output do not fit into a warp's registers.
//
// Operations against the floor: per tile and step 8 dim_k / 16 + 8 dim_v / 16 mma of 16x8x16, and 4 for l;
// steps beyond the causal edge or before the window are skipped per warp.
#include "kernels/cuda/attention_tile.h"

namespace runnel::kernels::cuda {

namespace {

constexpr int kMaxOut = 128;  // values that a block computes at once

template <int kDim>
struct PrefillShared {
    static constexpr bool kTotalsHere = kDim <= 128;
    static constexpr int kOut = kDim <= kMaxOut ? kDim : kMaxOut;
    static constexpr int kTileBytes = kAttentionStep * RowsLayout<kDim>::kRowBytes;
    alignas(128) unsigned char k[kTileBytes];
    alignas(128) unsigned char v[kAttentionStep * RowsLayout<kOut>::kRowBytes];
    alignas(128) unsigned char q[kPrefillRows * RowsLayout<kDim>::kRowBytes];
    alignas(128) float totals[kTotalsHere ? kPrefillRows * kDim : 4];
};
// Heads are made in the room of K, before it arrives.
static_assert(PrefillShared<64>::kTileBytes >=
              kAttentionWarps * kMaxHeadDim * static_cast<int>(sizeof(float)));

struct Item {
    int sequence, kv_head, block;
    int part;  // values [128 part, + 128)
};

DEVICE int parts_of(const AttentionParams &p) {
    return (p.dim_v + kMaxOut - 1) / kMaxOut;
}

// Longest first within a sequence: its last rows see the most cells.
DEVICE bool find_item(const AttentionParams &p, int index, Item &item) {
    const int group = p.heads / p.kv_heads, sequences = *p.sequence_count;
    int rest = index;
    for (int s = 0; s < sequences; ++s) {
        const int rows = p.sequences[s].count * group;
        if (!takes(p, rows)) continue;
        const int blocks = (rows + kPrefillRows - 1) / kPrefillRows, parts = parts_of(p);
        const int items = blocks * parts * p.kv_heads;
        if (rest < items) {
            item = {s, rest / parts % p.kv_heads, blocks - 1 - rest / parts / p.kv_heads, rest % parts};
            return true;
        }
        rest -= items;
    }
    return false;
}

template <class T, int kDim>
struct AttentionPrefill {
    using Params = AttentionParams;
    using Shared = PrefillShared<kDim>;
    static constexpr const char *kName = "attention prefill";
    static constexpr int kThreads = kAttentionThreads, kBlocks = kDim <= 64 ? 2 : 1;
    static constexpr int kOut = Shared::kOut, kTiles = kOut / 8;  // 8-column tiles of o
    static constexpr int kCellTiles = kAttentionStep / 8;

    // What a warp holds while its block works on an item.
    struct State {
        RowSpace space;
        LaneRows rows;
        int begin, end;             // cells that the block's rows see
        int first, last;            // steps of the block,
        int warp_first, warp_last;  // and of this warp's tile
        int column, columns;        // of v: the item's part
        Running run, total;
        float o[kTiles][4];
    };

    static DEVICE int padded_k(const Params &p) { return (p.dim_k + 15) / 16 * 16; }
    static DEVICE unsigned char *queries(Shared &shared) {
        return shared.q + warp_index() * kAttentionRows * RowsLayout<kDim>::kRowBytes;
    }

    static DEVICE void start_k(const Params &p, const State &state, Shared &shared, int step) {
        if (step <= state.last)
            load_cells<kDim>(p, state.space, p.k_cache, {p.dim_k, 0, p.dim_k, padded_k(p)}, step,
                             {state.begin, state.end, state.end}, shared.k);
        cp_async_commit();
    }
    static DEVICE void start_v(const Params &p, const State &state, Shared &shared, int step) {
        load_cells<kOut>(p, state.space, p.v_cache, {p.dim_v, state.column, state.columns, state.columns},
                         step, {state.begin, state.end, state.end}, shared.v);
        cp_async_commit();
    }

    static DEVICE void scores(const Params &p, const State &state, Shared &shared, int step,
                              float (&c)[kCellTiles][4]) {
#pragma unroll
        for (int n = 0; n < kCellTiles; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) c[n][i] = 0;
        const int chunks = padded_k(p) / 16;
#pragma unroll
        for (int chunk = 0; chunk < kDim / 16; ++chunk) {
            if (chunk >= chunks) break;
            uint32_t a[4];
            load_a<kDim>(queries(shared), chunk, a);
#pragma unroll
            for (int n = 0; n < kCellTiles; n += 2) {
                uint32_t b[4];
                load_k<kDim>(shared.k, 8 * n, chunk, b);
                T::mma(c[n], a, {b[0], b[1]});
                T::mma(c[n + 1], a, {b[2], b[3]});
            }
        }
        const int cell = step * kAttentionStep + 2 * (lane_index() & 3);
#pragma unroll
        for (int n = 0; n < kCellTiles; ++n) finish_scores(p, state.rows, cell + 8 * n, c[n]);
    }

    // c becomes p; l and o are scaled to the new maximum.
    static DEVICE void rescale(State &state, float (&c)[kCellTiles][4]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float m = fmaxf(c[0][2 * i], c[0][2 * i + 1]);
#pragma unroll
            for (int n = 1; n < kCellTiles; ++n) m = fmaxf(m, fmaxf(c[n][2 * i], c[n][2 * i + 1]));
            m = fmaxf(state.run.m[i], quad_max(m));
            const float f = exp2_p(state.run.m[i] - m);
            state.run.m[i] = m;
            state.run.l[i] *= f;
#pragma unroll
            for (int n = 0; n < kTiles; ++n) {
                state.o[n][2 * i] *= f;
                state.o[n][2 * i + 1] *= f;
            }
#pragma unroll
            for (int n = 0; n < kCellTiles; ++n) {
                c[n][2 * i] = exp2_p(c[n][2 * i] - m);
                c[n][2 * i + 1] = exp2_p(c[n][2 * i + 1] - m);
            }
        }
    }

    static DEVICE void accumulate(State &state, const Shared &shared, const float (&c)[kCellTiles][4]) {
        uint32_t a[4][4];  // p as A fragments: the layout of C
        float l[4] = {state.run.l[0], 0, state.run.l[1], 0};
#pragma unroll
        for (int chunk = 0; chunk < 4; ++chunk) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                a[chunk][2 * half] = T::pack(c[2 * chunk + half][0], c[2 * chunk + half][1]);
                a[chunk][2 * half + 1] = T::pack(c[2 * chunk + half][2], c[2 * chunk + half][3]);
            }
            T::mma(l, a[chunk], {T::kOnes, T::kOnes});
        }
        state.run.l[0] = l[0];
        state.run.l[1] = l[2];
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
            if (8 * n >= state.columns) break;
            uint32_t b[4];
            load_v<kOut>(shared.v, 0, n, b);
            T::mma(state.o[n], a[0], {b[0], b[1]});
            T::mma(state.o[n], a[1], {b[2], b[3]});
            load_v<kOut>(shared.v, 32, n, b);
            T::mma(state.o[n], a[2], {b[0], b[1]});
            T::mma(state.o[n], a[3], {b[2], b[3]});
        }
    }

    // --- splits
    // ----------------------------------------------------------------------------------------------

    static DEVICE float *totals(const Params &p, Shared &shared) {
        if constexpr (Shared::kTotalsHere)
            return shared.totals + thread_index();
        else
            return p.totals + int64_t{block_index()} * kPrefillRows * kOut + thread_index();
    }

    static DEVICE void clear(State &state) {
        state.run = {{kNoMaximum, kNoMaximum}, {0, 0}};
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) state.o[n][i] = 0;
    }

    // At the end of a split that is not the tile's only one: total and o join into total, or, in the
    // tile's last split, into o.
    static DEVICE void end_split(const Params &p, State &state, Shared &shared, int step) {
        const bool first = step / kSplitSteps == state.warp_first / kSplitSteps;
        const bool last = step == state.warp_last;
        if (first && last) return;
        float *total = totals(p, shared);
        Join weights[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            weights[i] = first ? Join{state.run.m[i], 0, 1} : join(state.total.m[i], state.run.m[i]);
            const float l = first ? state.run.l[i]
                                  : fma_rn(state.total.l[i], weights[i].a, state.run.l[i] * weights[i].b);
            state.total.m[i] = weights[i].m;
            state.total.l[i] = l;
        }
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float &there = total[(4 * n + i) * kThreads];
                float o = state.o[n][i];
                if (!first) o = fma_rn(there, weights[i >> 1].a, o * weights[i >> 1].b);
                if (last)
                    state.o[n][i] = o;
                else
                    there = o;
            }
        if (last)
            state.run = state.total;
        else
            clear(state);
    }

    static constexpr int kSplitSteps = kAttentionSplit / kAttentionStep;

    // --- the item
    // --------------------------------------------------------------------------------------------

    static DEVICE State begin(const Params &p, const Item &item) {
        State state;
        state.space = row_space(p, item.sequence, item.kv_head);
        const int first_row = item.block * kPrefillRows, tile_row = first_row + warp_index() * kAttentionRows;
        const auto end_of = [&](int row) {
            return state.space.own_cell(row < state.space.rows ? row - 1 : state.space.rows - 1) + 1;
        };
        state.rows = lane_rows(p, state.space, tile_row);
        state.begin = first_visible(p, state.space.own_cell(first_row));
        state.end = end_of(first_row + kPrefillRows);
        state.first = state.begin / kAttentionStep;
        state.last = (state.end - 1) / kAttentionStep;
        state.warp_first = 0;
        state.warp_last = -1;
        if (tile_row < state.space.rows) {
            state.warp_first = first_visible(p, state.space.own_cell(tile_row)) / kAttentionStep;
            state.warp_last = (end_of(tile_row + kAttentionRows) - 1) / kAttentionStep;
        }
        state.column = item.part * kMaxOut;
        state.columns = p.dim_v - state.column < kMaxOut ? p.dim_v - state.column : kMaxOut;
        clear(state);
        return state;
    }

    static DEVICE void store_output(const Params &p, const State &state, int tile_row) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = tile_row + (lane_index() >> 2) + 8 * i;
            if (row >= state.space.rows) continue;
            const int head = state.space.head(row);
            const float factor = final_factor(p, head, state.run.m[i], state.run.l[i]);
            const int64_t token = state.space.sequence.first + state.space.token(row);
            float *out = p.out + token * p.out_stride + int64_t{head} * p.dim_v + state.column +
                         2 * (lane_index() & 3);
#pragma unroll
            for (int n = 0; n < kTiles; ++n) {
                if (8 * n >= state.columns) break;
                out[8 * n] = state.o[n][2 * i] * factor;
                out[8 * n + 1] = state.o[n][2 * i + 1] * factor;
            }
        }
    }

    static DEVICE void work(const Params &p, Shared &shared, const Item &item) {
        State state = begin(p, item);
        const int tile_row = item.block * kPrefillRows + warp_index() * kAttentionRows;
        load_queries<T, kDim>(p, state.space, tile_row, 0, 1,
                              reinterpret_cast<float *>(shared.k) + warp_index() * kMaxHeadDim,
                              queries(shared));
        block_sync();
        // The loop begins one step early, so that K is loaded in one place.
#pragma unroll 1
        for (int step = state.first - 1; step <= state.last; ++step) {
            const bool active = step >= state.warp_first && step <= state.warp_last;
            float c[kCellTiles][4];
            if (step >= state.first) {
                cp_async_wait<0>();
                block_sync();
                start_v(p, state, shared, step);
                if (active) scores(p, state, shared, step, c);
                cp_async_wait<0>();
                block_sync();
            }
            start_k(p, state, shared, step + 1);
            if (!active || step < state.first) continue;
            rescale(state, c);
            accumulate(state, shared, c);
            if (step % kSplitSteps == kSplitSteps - 1 || step == state.warp_last)
                end_split(p, state, shared, step);
        }
        cp_async_wait<0>();
        block_sync();
        store_output(p, state, tile_row);
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
    if (dim <= 64) return kernel_of<AttentionPrefill<T, 64>>();
    if (dim <= 128) return kernel_of<AttentionPrefill<T, 128>>();
    return kernel_of<AttentionPrefill<T, 256>>();
}

}  // namespace

Kernel<AttentionParams> attention_prefill_kernel(CacheType type, int32_t dim_k, int32_t dim_v) {
    const int32_t dim = dim_k > dim_v ? dim_k : dim_v;
    return type == CacheType::F16 ? choose<F16>(dim) : choose<BF16>(dim);
}

size_t attention_prefill_shared(int32_t dim_k, int32_t dim_v) {
    const int32_t dim = dim_k > dim_v ? dim_k : dim_v;
    if (dim <= 64) return sizeof(PrefillShared<64>);
    if (dim <= 128) return sizeof(PrefillShared<128>);
    return sizeof(PrefillShared<256>);
}

}  // namespace runnel::kernels::cuda
