// Attention of many tokens per sequence, with tensor cores and online softmax. attention.h defines the
// arithmetic; attention_append.cu has stored k and v of the batch in the cache before.
//
// A block of 4 warps takes 64 rows (tokens x query heads that share K and V), each warp one tile of 16. The
// scores of 16 x 64 cells, p and the output stay in the warp's registers: p as computed is operand A of
// p . v. K of the next step is loaded during the softmax and p . v, V during q . k; packed K and V are
// loaded into one shared raw tile and unpacked when they have arrived. At the end of a split of 256 cells the
// output joins a total (in shared memory; for heads of 256 in global scratch) that only its own thread reads
// and writes. Heads of 256 are computed in two halves of their values, each with its own scores: 256 columns
// of output do not fit in a warp's registers. sm_75 has 64 KB of shared memory and no cp.async: one tile is
// filled from the cache with up to 128 columns of K, then the other columns, then V, and the totals of all
// heads are in global scratch.
//
// Operations: per tile and step 8 dim_k / 16 + 8 dim_v / 16 mma of 16x8x16, and 4 for l; each warp skips
// steps after the causal limit or before the window.
#include "kernels/cuda/attention/attention_load.h"

namespace runnel::kernels::cuda {

namespace {

constexpr int kMaxOut = 128;  // values that a block computes at a time

struct Item {
    int sequence, kv_head, block;
    int part;  // values [128 part, 128 part + 128)
};

// The state of a block in its current item and run of cells, common to all threads. In shared memory, because
// the loop needs the registers.
struct Block {
    Item item;
    CacheHead cache;
    CellRange cells;      // visible to the block's rows
    int first, last;      // steps
    int column, columns;  // the first value of the item's part of v, and their number
};

template <int kDim, bool kPacked, bool kTuring>
struct PrefillShared {
    static constexpr bool kTotalsHere = attention_prefill_totals(kDim, kDim, 1, kTuring) == 0;
    static constexpr int kOut = kDim <= kMaxOut ? kDim : kMaxOut;
    static constexpr int kKeys = kTuring ? kOut : kDim;  // columns of K at a time
    static constexpr int kTileBytes = kAttentionStep * RowsLayout<kKeys>::kRowBytes;
    alignas(128) unsigned char k[kTileBytes];
    alignas(128) unsigned char v[kTuring ? 16 : kAttentionStep * RowsLayout<kOut>::kRowBytes];
    alignas(128) unsigned char q[kPrefillRows * RowsLayout<kDim>::kRowBytes];
    alignas(128) float totals[kTotalsHere ? kPrefillRows * kDim : 4];
    alignas(128) unsigned char raw[kPacked && !kTuring ? kTileBytes / 2 : 16];  // used by K and V in turn
    float total_m[2][kAttentionThreads], total_l[2][kAttentionThreads];
    Block block;
};
// load_queries() uses the memory of K as scratch before K arrives.
static_assert(PrefillShared<64, false, true>::kTileBytes >=
              kAttentionWarps * kMaxHeadDim * static_cast<int>(sizeof(float)));

DEVICE int parts_of(const AttentionParams &p) {
    return (p.dim_v + kMaxOut - 1) / kMaxOut;
}

// Item number `index`; false if there are fewer. A sequence's last rows, with the most cells, come first.
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

template <int kDim, bool kPacked, bool kTuring>
struct PrefillBody {
    using Params = AttentionParams;
    using Shared = PrefillShared<kDim, kPacked, kTuring>;
    static constexpr int kThreads = kAttentionThreads;
    static constexpr int kOut = Shared::kOut, kTiles = kOut / 8;  // 8-column tiles of o
    static constexpr int kCellTiles = kAttentionStep / 8;
    static constexpr int kChunksAtOnce = kPacked && kDim > 128 ? 1 : 2;  // as many as fit in registers
    static constexpr int kSplitSteps = kAttentionSplit / kAttentionStep;

    // The state of a warp while its block processes an item.
    struct State {
        LaneRows rows;              // in the current run of cells
        int warp_first, warp_last;  // steps of this warp's tile in the current run
        bool ends;                  // no later run has cells visible to the tile
        bool has_total;             // a split is already done
        Sums<kTiles> sums;
        Scales<kDim> k_scales;
        Scales<kOut> v_scales;
    };

    static DEVICE unsigned char *queries(Shared &shared) {
        return shared.q + warp_index() * kAttentionRows * RowsLayout<kDim>::kRowBytes;
    }

    // --- loads ---------------------------------------------------------------------------------------------

    template <int kWide>
    static DEVICE void start(const Params &p, Shared &shared, const CachePages &pages,
                             const ValueRange &values, int step, unsigned char *to, Scales<kWide> &scales) {
        const Block &block = shared.block;
        if (kPacked && is_packed(pages.type))
            load_raw(p, block.cache, pages, values, step, block.cells, shared.raw, scales);
        else
            load_cells<kWide>(p, block.cache, pages, values, step, block.cells, to);
    }
    // Waits, for all threads, for the load that start() issued. A packed tile takes one more barrier.
    template <int kWide>
    static DEVICE void finish(const Params &p, Shared &shared, const CachePages &pages,
                              const ValueRange &values, int step, unsigned char *to,
                              const Scales<kWide> &scales) {
        cp_async_wait<0>();
        block_sync();
        if (!kPacked || !is_packed(pages.type)) return;
        unpack<kWide>(p, shared.block.cache, pages, values, step, shared.block.cells, shared.raw, scales, to);
        block_sync();
    }

    static DEVICE ValueRange k_values(const Params &p) { return {0, p.dim_k, padded_k(p)}; }
    static DEVICE ValueRange v_values(const Shared &shared) {
        return {shared.block.column, shared.block.columns, shared.block.columns};
    }
    static DEVICE void start_k(const Params &p, State &state, Shared &shared, int step) {
        if (step <= shared.block.last)
            start<kDim>(p, shared, p.k_cache, k_values(p), step, shared.k, state.k_scales);
        cp_async_commit();
    }
    static DEVICE void start_v(const Params &p, State &state, Shared &shared, int step) {
        start<kOut>(p, shared, p.v_cache, v_values(shared), step, shared.v, state.v_scales);
        cp_async_commit();
    }

    // --- one step ------------------------------------------------------------------------------------------

    static DEVICE void clear(float (&c)[kCellTiles][4]) {
#pragma unroll
        for (int n = 0; n < kCellTiles; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) c[n][i] = 0;
    }

    // c += q . k over `chunks` chunks of 16 columns: of q from chunk `first` on, of the K tile from 0 on.
    static DEVICE void multiply_keys(const Params &p, Shared &shared, int first, int chunks,
                                     float (&c)[kCellTiles][4]) {
        const Products products = products_of(p.k_cache);
#pragma unroll kChunksAtOnce
        for (int chunk = 0; chunk < chunks; ++chunk) {
            uint32_t a[4];
            load_a<kDim>(queries(shared), first + chunk, a);
#pragma unroll
            for (int n = 0; n < kCellTiles; n += 2) {
                uint32_t b[4];
                load_k<Shared::kKeys>(shared.k, 8 * n, chunk, b);
                products.mma(c[n], a, {b[0], b[1]});
                products.mma(c[n + 1], a, {b[2], b[3]});
            }
        }
    }

    static DEVICE void finish_step(const Params &p, const State &state, const Shared &shared, int step,
                                   float (&c)[kCellTiles][4]) {
        const int cell = step * kAttentionStep + 2 * (lane_index() & 3);
        finish_scores(p, state.rows, cell, c, [&] {
            return RowTile{row_space_of(p, shared), tile_row(shared)};
        });
    }

    static DEVICE void scores(const Params &p, const State &state, Shared &shared, int step,
                              float (&c)[kCellTiles][4]) {
        clear(c);
        multiply_keys(p, shared, 0, padded_k(p) / 16, c);
        finish_step(p, state, shared, step, c);
    }

    // c becomes p; l and o are scaled to the new maximum.
    static DEVICE void rescale(State &state, float (&c)[kCellTiles][4]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float m = fmaxf(c[0][2 * i], c[0][2 * i + 1]);
#pragma unroll
            for (int n = 1; n < kCellTiles; ++n) m = fmaxf(m, fmaxf(c[n][2 * i], c[n][2 * i + 1]));
            m = fmaxf(state.sums.m[i], quad_max(m));
            state.sums.rescale(i, m);
#pragma unroll
            for (int n = 0; n < kCellTiles; ++n) {
                c[n][2 * i] = exp2_p(c[n][2 * i] - m);
                c[n][2 * i + 1] = exp2_p(c[n][2 * i + 1] - m);
            }
        }
    }

    static DEVICE void accumulate(const Params &p, State &state, const Shared &shared,
                                  const float (&c)[kCellTiles][4]) {
        const Products products = products_of(p.v_cache);
        uint32_t a[4][4];  // p as A fragments, which have the layout of C
#pragma unroll
        for (int chunk = 0; chunk < 4; ++chunk)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float(&pair)[4] = c[2 * chunk + half];
                a[chunk][2 * half] = products.pack(pair[0], pair[1]);
                a[chunk][2 * half + 1] = products.pack(pair[2], pair[3]);
            }
        state.sums.template add<kOut>(products, a, kTuring ? shared.k : shared.v, 0, 1, shared.block.columns);
    }

    // --- splits --------------------------------------------------------------------------------------------

    static DEVICE float *totals(const Params &p, Shared &shared) {
        if constexpr (Shared::kTotalsHere)
            return shared.totals + thread_index();
        else
            return p.totals + attention_prefill_totals(kDim, kDim, block_index(), kTuring) + thread_index();
    }

    // At the end of a split, unless it is the tile's only one: joins o into the total, or in the
    // last split the total into o.
    static DEVICE void end_split(const Params &p, State &state, Shared &shared, int step) {
        const bool first = !state.has_total, last = state.ends && step == state.warp_last;
        if (first && last) return;
        state.has_total = true;
        float *total = totals(p, shared);
        Sums<kTiles> &sums = state.sums;
        Join weights[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float &m = shared.total_m[i][thread_index()], &l = shared.total_l[i][thread_index()];
            weights[i] = first ? Join{sums.m[i], 0, 1} : join(m, sums.m[i]);
            sums.m[i] = m = weights[i].m;
            sums.l[i] = l = first ? sums.l[i] : fma_rn(l, weights[i].a, sums.l[i] * weights[i].b);
        }
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float &there = total[(4 * n + i) * kThreads];
                float o = sums.o[n][i];
                if (!first) o = fma_rn(there, weights[i >> 1].a, o * weights[i >> 1].b);
                if (last)
                    sums.o[n][i] = o;
                else
                    there = o;
            }
        if (!last) sums.clear();
    }

    // --- the item ------------------------------------------------------------------------------------------

    static DEVICE int end_of(const RowSpace &space, const Run &run, int row) {
        return smaller(space.end_of(row), run.end);
    }

    // Sets the cells and steps of one of the two runs; called by one thread.
    static DEVICE void begin_block(const Params &p, const RowSpace &space, const Run &run, Block &block) {
        const int first_row = block.item.block * kPrefillRows;
        const int begin = first_visible(p, run, space.own_cell(first_row));
        const int end = end_of(space, run, first_row + kPrefillRows);
        block.cache = space.cache;
        block.cells = {begin, end, end};
        block.first = begin / kAttentionStep;
        block.last = begin < end ? (end - 1) / kAttentionStep : block.first - 1;
        block.column = block.item.part * kMaxOut;
        block.columns = smaller(p.dim_v - block.column, kMaxOut);
    }

    static DEVICE void begin_warp(const Params &p, State &state, const RowSpace &space, const Run &run,
                                  int tile_row) {
        state.rows = lane_rows(p, space, run, tile_row);
        state.warp_first = 0;
        state.warp_last = -1;
        state.ends = true;
        if (tile_row >= space.rows) return;
        const int begin = first_visible(p, run, space.own_cell(tile_row));
        const int end = end_of(space, run, tile_row + kAttentionRows);
        state.ends = space.end_of(tile_row + kAttentionRows) <= run.end;
        if (begin >= end) return;
        state.warp_first = begin / kAttentionStep;
        state.warp_last = (end - 1) / kAttentionStep;
    }

    // All threads fill the tile and wait until it is complete.
    template <int kWide>
    static DEVICE void fill(const Params &p, Shared &shared, const CachePages &pages,
                            const ValueRange &values, int step) {
        block_sync();  // the old content is no longer read
        unpack_cells<kWide, kPacked>(p, shared.block.cache, pages, values, step, shared.block.cells,
                                     shared.k);
        block_sync();
    }

    static DEVICE void turing_steps(const Params &p, State &state, Shared &shared) {
#pragma unroll 1
        for (int step = shared.block.first; step <= shared.block.last; ++step) {
            const bool active = step >= state.warp_first && step <= state.warp_last;
            float c[kCellTiles][4];
            clear(c);
#pragma unroll
            for (int first = 0; first < kDim; first += Shared::kKeys) {
                const int padded = smaller(padded_k(p) - first, Shared::kKeys);
                if (padded <= 0) break;
                fill<Shared::kKeys>(p, shared, p.k_cache,
                                    {first, smaller(p.dim_k - first, Shared::kKeys), padded}, step);
                if (active) multiply_keys(p, shared, first / 16, padded / 16, c);
            }
            if (active) finish_step(p, state, shared, step, c);
            fill<kOut>(p, shared, p.v_cache, v_values(shared), step);
            if (!active) continue;
            rescale(state, c);
            accumulate(p, state, shared, c);
            if (step % kSplitSteps == kSplitSteps - 1 || step == state.warp_last)
                end_split(p, state, shared, step);
        }
        block_sync();
    }

    // The loop starts one step early, so that K is loaded in one place only.
    static DEVICE void steps(const Params &p, State &state, Shared &shared) {
#pragma unroll 1
        for (int step = shared.block.first - 1; step <= shared.block.last; ++step) {
            const bool active = step >= state.warp_first && step <= state.warp_last;
            const bool computes = step >= shared.block.first;
            float c[kCellTiles][4];
            if (computes) {
                finish<kDim>(p, shared, p.k_cache, k_values(p), step, shared.k, state.k_scales);
                start_v(p, state, shared, step);
                if (active) scores(p, state, shared, step, c);
                finish<kOut>(p, shared, p.v_cache, v_values(shared), step, shared.v, state.v_scales);
            }
            start_k(p, state, shared, step + 1);
            if (!active || !computes) continue;
            rescale(state, c);
            accumulate(p, state, shared, c);
            if (step % kSplitSteps == kSplitSteps - 1 || step == state.warp_last)
                end_split(p, state, shared, step);
        }
        cp_async_wait<0>();
        block_sync();
    }

    static DEVICE int tile_row(const Shared &shared) {
        return shared.block.item.block * kPrefillRows + warp_index() * kAttentionRows;
    }
    static DEVICE RowSpace row_space_of(const Params &p, const Shared &shared) {
        return row_space(p, shared.block.item.sequence, shared.block.item.kv_head);
    }

    static DEVICE void work(const Params &p, Shared &shared) {
        State state;
        state.has_total = false;
        state.sums.clear();
#pragma unroll 1
        for (int sinks = p.sink_cells > 0 ? 1 : 0; sinks >= 0; --sinks) {
            const Run run = run_of(p, sinks != 0);
            const RowSpace space = row_space_of(p, shared);
            if (thread_index() == 0) begin_block(p, space, run, shared.block);
            begin_warp(p, state, space, run, tile_row(shared));
            load_queries<kDim>(p, space, run, tile_row(shared), 0, 1,
                               reinterpret_cast<float *>(shared.k) + warp_index() * kMaxHeadDim,
                               queries(shared));
            block_sync();
            if constexpr (kTuring)
                turing_steps(p, state, shared);
            else
                steps(p, state, shared);
        }
        store_output(p, row_space_of(p, shared), state.sums, tile_row(shared), shared.block.column,
                     shared.block.columns, 0, 1);
    }

    static DEVICE void run(const Params &p) {
        auto &shared = shared_memory<Shared>();
        grid_dep_wait();
        Item item;
        for (int i = block_index(); find_item(p, i, item); i += block_count()) {
            if (thread_index() == 0) shared.block.item = item;
            block_sync();
            work(p, shared);
            block_sync();
        }
        grid_dep_trigger();
    }
};

template <int kDim, bool kPacked>
struct AttentionPrefill {
    using Params = AttentionParams;
    static constexpr const char *kName = "attention prefill";
    static constexpr int kThreads = kAttentionThreads, kBlocks = kDim <= 64 ? 2 : 1;

    static DEVICE void run(const Params &p) {
        run_for_device<PrefillBody<kDim, kPacked, false>, PrefillBody<kDim, kPacked, true>>(p);
    }
};

template <int kDim>
SharedBytes shared_bytes(bool packed) {
    return {packed ? sizeof(PrefillShared<kDim, true, false>) : sizeof(PrefillShared<kDim, false, false>),
            sizeof(PrefillShared<kDim, false, true>)};
}

}  // namespace

Kernel<AttentionParams> attention_prefill_kernel(CacheType k, CacheType v, int32_t dim_k, int32_t dim_v) {
    const int32_t dim = dim_k > dim_v ? dim_k : dim_v;
    return is_packed(k) || is_packed(v) ? kernel_for<AttentionPrefill, true>(dim)
                                        : kernel_for<AttentionPrefill, false>(dim);
}

SharedBytes attention_prefill_shared(CacheType k, CacheType v, int32_t dim_k, int32_t dim_v) {
    const int32_t dim = dim_k > dim_v ? dim_k : dim_v;
    const bool packed = is_packed(k) || is_packed(v);
    if (dim <= 64) return shared_bytes<64>(packed);
    if (dim <= 128) return shared_bytes<128>(packed);
    return shared_bytes<256>(packed);
}

}  // namespace runnel::kernels::cuda
