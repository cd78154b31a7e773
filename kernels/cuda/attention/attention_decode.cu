// Attention of few tokens per sequence (decode, verification): split K/V. See attention.h for the arithmetic.
//
// A work item is a (sequence, K/V head, tile of 16 rows, split of 256 cells); blocks of 8 warps process the items on a
// persistent grid, so lengths may change between replays of a graph. Per step of 64 cells the warps share the tile: for q . k
// each takes 8 cells, for p . v every eighth 8-column tile of the output; maxima and p pass through shared memory. With packed
// types a block has 4 warps, each of which takes twice as many cells and columns. A short context is one item per head: its time
// is that of a warp's instructions, one after the other, and more warps have fewer each.
//
// 16-bit K and V arrive by cp.async, two steps ahead up to 128 dims. If one of them is packed, both arrive in raw tiles, one step
// ahead, and are unpacked in turn into one tile of 16-bit rows: more blocks then fit on a multiprocessor, which keeps as many
// cells in flight. On sm_75 K and V of any type take turns in that tile, without raw tiles; other blocks hide the latency.
// Every block computes k and v of the batch's new tokens that it needs; tile 0 also stores them in the cache.
// Bytes: each K/V byte of a split once per tile; with several splits 16 (dim_v + 2) floats of scratch
// per item (3% at dim 128), written and read.
#include "kernels/cuda/attention/attention_load.h"
#include "kernels/cuda/attention/attention_split.h"
#include "kernels/cuda/linear/quantize_row.h"
#include "kernels/cuda/runtime/parameters.h"

namespace runnel::kernels::cuda {

namespace {

// kInTurn: K and V take turns in one tile.
template <int kDim, bool kInTurn, int kWarps>
struct DecodeShared {
    static constexpr int kStages = kDim <= 128 ? 2 : 1;
    static constexpr int kTileBytes = kAttentionStep * RowsLayout<kDim>::kRowBytes;
    alignas(128) unsigned char k[kInTurn ? 1 : kStages][kTileBytes];
    alignas(128) unsigned char v[kInTurn ? 1 : kStages][kInTurn ? 128 : kTileBytes];
    alignas(128) unsigned char q[kAttentionRows * RowsLayout<kDim>::kRowBytes];
    alignas(128) unsigned char p[kAttentionRows * 2 * kPStride];
    float maximum[kWarps][kAttentionRows];
    float scratch[kWarps][kMaxHeadDim];
    alignas(128) uint32_t is_last;
    // Packed types: the raw tiles of K and of V follow this struct in shared memory.
};

// Of a block. The scales of packed types are spread over kAttentionThreads threads (attention_load.h).
constexpr int decode_warps(bool packed) {
    return packed ? kAttentionWarps : 2 * kAttentionWarps;
}

struct Item {
    int sequence, kv_head, tile, split;  // split: index among the `splits` of the tile's sequence
    int splits;
    bool sinks;  // a split of the sink cells
    int cell;    // first cell of the split
    int index;   // among all items
};

// Sets `item` to item number `index`; returns false if there are fewer items.
DEVICE bool find_item(const AttentionParams &p, int index, Item &item) {
    const int group = p.heads / p.kv_heads, sequences = *p.sequence_count;
    int rest = index, skipped = p.first_unit, units = p.units;
    for (int s = 0; s < sequences; ++s) {
        const SequenceInfo info = p.sequences[s];
        if (!takes(p, info.count * group)) continue;
        const Splits parts = splits_of(p, info);
        const int splits = parts.sinks + parts.others;
        const int tiles = (info.count * group + kAttentionRows - 1) / kAttentionRows;
        const int first = smaller(skipped, tiles * p.kv_heads);
        const int mine = smaller(tiles * p.kv_heads - first, units), items = splits * mine;
        skipped -= first, units -= mine;
        if (rest < items) {
            const int before = splits == 1 ? rest : rest / splits, unit = first + before;
            const int split = rest - before * splits, head = tiles == 1 ? unit : unit / tiles;
            const bool sinks = split < parts.sinks;
            const int number = sinks ? split : parts.first + split - parts.sinks;
            item = {s, head, unit - head * tiles, split, splits, sinks, number * kAttentionSplit, index};
            return true;
        }
        rest -= items;
    }
    return false;
}

template <int kDim, bool kPacked, bool kTuring>
struct DecodeBody {
    using Params = AttentionParams;
    static constexpr bool kInTurn = kPacked || kTuring;
    static constexpr int kWarps = decode_warps(kPacked);
    using Shared = DecodeShared<kDim, kInTurn, kWarps>;
    static constexpr int kStages = Shared::kStages;
    static constexpr int kTiles = kDim / 8 / kWarps;                // 8-column tiles of o per warp
    static constexpr int kCellTiles = kAttentionStep / 8 / kWarps;  // 8-cell tiles of the scores per warp

    // The state of a block while it processes an item.
    struct State {
        RowSpace space;
        Run run;
        LaneRows rows;
        CellRange cells;  // the tile's cells that are in the cache, and those that the batch adds
        int first_row;
        int first, last;  // steps
        bool appends;
        Sums<kTiles> sums;
        Scales<kDim> k_scales, v_scales;
    };

    // --- the new tokens of the batch -----------------------------------------------------------------------

    // Computes k or v of the batch's tokens whose cells are in this step.
    // Stores the first `padded` values of each in shared memory.
    // Tile 0 also stores the heads in the cache.
    template <bool kKeys>
    static DEVICE void make(const Params &p, const State &state, float *scratch, int step, int padded,
                            unsigned char *to) {
        const SequenceInfo &s = state.space.sequence;
        const CachePages &pages = kKeys ? p.k_cache : p.v_cache;
        const int begin = step * kAttentionStep, end = smaller(state.cells.made, begin + kAttentionStep);
        const int first = state.cells.end > begin ? state.cells.end : begin;
        // One token: its key and its value are computed at the same time, by warps that have no queries if there are few.
        constexpr int kFirstWarp = kWarps - (kKeys ? 3 : 2);
        for (int cell = first + (warp_index() + kWarps - kFirstWarp) % kWarps; cell < end; cell += kWarps) {
            const int row = cell - begin;
            const int token = s.first + cell - s.past;
            const float *from = kKeys ? p.k + token * p.k_stride : p.v + token * p.v_stride;
            make_head(kKeys ? key_recipe(p, token) : value_recipe(p),
                      from + int64_t{state.space.cache.kv_head} * pages.dims, scratch);
            unsigned char *page =
                page_of(pages, p.kv_heads, state.space.cache.table, state.space.cache.kv_head, cell);
            store_head<kPacked>(pages, page, cell, scratch, state.appends, [&](int d, uint16_t value) {
                if (d < padded) RowsLayout<kDim>::store(to, row, d, value);
            });
            warp_sync();
        }
    }

    static DEVICE ValueRange k_values(const Params &p) { return {0, p.dim_k, padded_k(p)}; }
    static DEVICE ValueRange v_values(const Params &p) { return {0, p.dim_v, p.dim_v}; }
    static DEVICE unsigned char *raw_k(Shared &shared) {
        return reinterpret_cast<unsigned char *>(&shared) + sizeof(Shared);
    }
    static DEVICE unsigned char *raw_v(const Params &p, Shared &shared) {
        return raw_k(shared) + kAttentionStep * raw_row_bytes<kDim>(p.k_cache.type);
    }
    static DEVICE unsigned char *k_tile(Shared &shared, int step) {
        return shared.k[kInTurn ? 0 : step % kStages];
    }
    static DEVICE unsigned char *v_tile(Shared &shared, int step) {
        if constexpr (kInTurn)
            return shared.k[0];
        else
            return shared.v[step % kStages];
    }

    // New cells are written by make(); cp.async does not touch their rows.
    static DEVICE void start_k(const Params &p, State &state, Shared &shared, int step) {
        if (step <= state.last && !kTuring) {
            if constexpr (kInTurn) {
                load_raw(p, state.space.cache, p.k_cache, k_values(p), step, state.cells, raw_k(shared),
                         state.k_scales);
            } else {
                load_cells<kDim, 32 * kWarps>(p, state.space.cache, p.k_cache, k_values(p), step, state.cells,
                                              k_tile(shared, step));
                make<true>(p, state, shared.scratch[warp_index()], step, padded_k(p), k_tile(shared, step));
            }
        }
        cp_async_commit();
    }

    static DEVICE void start_v(const Params &p, State &state, Shared &shared, int step) {
        if (step <= state.last && !kTuring) {
            if constexpr (kInTurn) {
                load_raw(p, state.space.cache, p.v_cache, v_values(p), step, state.cells, raw_v(p, shared),
                         state.v_scales);
            } else {
                load_cells<kDim, 32 * kWarps>(p, state.space.cache, p.v_cache, v_values(p), step, state.cells,
                                              v_tile(shared, step));
                make<false>(p, state, shared.scratch[warp_index()], step, p.dim_v, v_tile(shared, step));
            }
        }
        cp_async_commit();
    }

    // --- one step ------------------------------------------------------------------------------------------

    // Computes the scores of this warp's cells: c[n] has those of the n-th 8.
    static DEVICE void scores(const Params &p, const State &state, Shared &shared, int step,
                              float (&c)[kCellTiles][4]) {
        const int first = 8 * kCellTiles * warp_index();
#pragma unroll
        for (int n = 0; n < kCellTiles; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) c[n][i] = 0;
        const int chunks = padded_k(p) / 16;
        const Products products = products_of(p.k_cache);
        uint32_t keys[4];
#pragma unroll
        for (int chunk = 0; chunk < kDim / 16; ++chunk) {
            if (chunk >= chunks) break;
            uint32_t a[4];
            load_a<kDim>(shared.q, chunk, a);
            if constexpr (kCellTiles == 1) {
                if (chunk % 2 == 0)
                    load_k_of_8<kDim>(k_tile(shared, step), first, chunk / 2, 2 * chunks, keys);
                products.mma(c[0], a, {keys[chunk % 2 * 2], keys[chunk % 2 * 2 + 1]});
            } else {
                load_k<kDim>(k_tile(shared, step), first, chunk, keys);
                products.mma(c[0], a, {keys[0], keys[1]});
                products.mma(c[1], a, {keys[2], keys[3]});
            }
        }
        const int cell = step * kAttentionStep + first + 2 * (lane_index() & 3);
        finish_scores(p, state.rows, cell, c, [&] { return RowTile{state.space, state.first_row}; });
    }

    static DEVICE void accumulate(const Params &p, State &state, Shared &shared, int step) {
        add_step<kDim, kWarps>(p, state.sums, shared.p, v_tile(shared, step));
    }

    // The loop starts one step early, so that loads are issued in one place only; q is computed while the first
    // arrive. The load of the next step's K is issued as soon as its buffer is free, and V likewise.
    static DEVICE void steps(const Params &p, State &state, Shared &shared) {
#pragma unroll 1
        for (int step = state.first - 1; step <= state.last; ++step) {
            const bool computes = step >= state.first;
            float c[kCellTiles][4];
            if constexpr (kInTurn) {
                if (computes) {
                    cp_async_wait<1>();
                    block_sync();
                    unpack_k(p, state, shared, step);
                    block_sync();
                }
                start_k(p, state, shared, step + 1);
                if (computes) {
                    scores(p, state, shared, step, c);
                    share_maximum(shared.maximum, c);
                    cp_async_wait<1>();
                    block_sync();
                    rescale_step<kWarps>(p, state.sums, shared.maximum, shared.p, c);
                    unpack_v(p, state, shared, step);
                    block_sync();
                }
                start_v(p, state, shared, step + 1);
                if (computes) {
                    accumulate(p, state, shared, step);
                    block_sync();
                }
            } else {
                if constexpr (kStages == 2) {
                    start_k(p, state, shared, step + 1);
                    start_v(p, state, shared, step + 1);
                }
                if (computes) {
                    cp_async_wait<kStages == 2 ? 3 : 1>();
                    block_sync();
                    scores(p, state, shared, step, c);
                    share_maximum(shared.maximum, c);
                    block_sync();
                }
                if constexpr (kStages == 1) start_k(p, state, shared, step + 1);
                if (computes) {
                    rescale_step<kWarps>(p, state.sums, shared.maximum, shared.p, c);
                    cp_async_wait<kStages == 2 ? 2 : 1>();
                    block_sync();
                    accumulate(p, state, shared, step);
                    block_sync();
                }
                if constexpr (kStages == 1) start_v(p, state, shared, step + 1);
            }
            if (!computes)
                load_queries<kDim>(p, state.space, state.run, state.first_row, warp_index(), kWarps,
                                   shared.scratch[warp_index()], shared.q);
        }
        cp_async_wait<0>();
    }

    static DEVICE void unpack_k(const Params &p, const State &state, Shared &shared, int step) {
        if constexpr (kTuring)
            unpack_cells<kDim, kPacked, 32 * kWarps>(p, state.space.cache, p.k_cache, k_values(p), step,
                                                     state.cells, shared.k[0]);
        else
            unpack<kDim>(p, state.space.cache, p.k_cache, k_values(p), step, state.cells, raw_k(shared),
                         state.k_scales, shared.k[0]);
        make<true>(p, state, shared.scratch[warp_index()], step, padded_k(p), shared.k[0]);
    }
    static DEVICE void unpack_v(const Params &p, const State &state, Shared &shared, int step) {
        if constexpr (kTuring)
            unpack_cells<kDim, kPacked, 32 * kWarps>(p, state.space.cache, p.v_cache, v_values(p), step,
                                                     state.cells, shared.k[0]);
        else
            unpack<kDim>(p, state.space.cache, p.v_cache, v_values(p), step, state.cells, raw_v(p, shared),
                         state.v_scales, shared.k[0]);
        make<false>(p, state, shared.scratch[warp_index()], step, p.dim_v, shared.k[0]);
    }

    // --- the item ------------------------------------------------------------------------------------------

    static DEVICE State begin(const Params &p, const Item &item) {
        State state;
        state.space = row_space(p, item.sequence, item.kv_head);
        const SequenceInfo &s = state.space.sequence;
        const Run run = run_of(p, item.sinks);
        const int first_row = item.tile * kAttentionRows;
        state.run = run;
        state.first_row = first_row;
        state.rows = lane_rows(p, state.space, run, first_row);
        // Tile 0 appends all new tokens of the split, including those visible only to later tiles.
        state.appends = item.tile == 0;
        const int new_end = s.past + s.count, cached_end = p.k ? s.past : new_end;
        const auto within = [&](int cell) { return cell < run.begin ? run.begin : smaller(cell, run.end); };
        state.cells = {first_visible(p, run, state.space.own_cell(first_row)), within(cached_end),
                       within(new_end)};
        const int seen_end = state.appends ? new_end : state.space.end_of(first_row + kAttentionRows);
        const int begin = state.cells.begin > item.cell ? state.cells.begin : item.cell;
        const int end = smaller(within(seen_end), item.cell + kAttentionSplit);
        state.first = begin / kAttentionStep;
        state.last = begin < end ? (end - 1) / kAttentionStep : state.first - 1;
        state.sums.clear();
        return state;
    }

    static DEVICE void work(const Params &p, Shared &shared, const Item &item) {
        State state = begin(p, item);
        const int first_row = item.tile * kAttentionRows;
        steps(p, state, shared);
        bool complete = item.splits == 1;
        if (complete) {
            store_output(p, state.space, state.sums, first_row, 0, p.dim_v, warp_index(), kWarps);
        } else {
            store_partial<kWarps>(p, state.sums, item.index);
            uint32_t *counter =
                p.counters + (int64_t{item.sequence} * p.kv_heads + item.kv_head) * p.max_tiles + item.tile;
            complete = is_last(counter, item.splits, shared.is_last);
            if (complete)
                join_splits<kDim, kWarps>(p, state.space, first_row, item.index - item.split, 1, item.splits);
        }
        block_sync();
        if (complete && p.prepare.x != nullptr) prepare_tile(p, state.space, first_row);
    }

    // Quantizes the outputs of a tile's tokens for the K/V head; a warp takes one group of 256 columns at a time.
    static DEVICE void prepare_tile(const Params &p, const RowSpace &space, int first_row) {
        const int columns = space.group * p.dim_v, groups = columns / kActivationGroup;
        const int first = first_row / space.group,
                  end = (smaller(first_row + kAttentionRows, space.rows) + space.group - 1) / space.group;
        for (int i = warp_index(); i < (end - first) * groups; i += kWarps)
            quantize_group_of(p.prepare, space.sequence.first + first + i / groups,
                              space.cache.kv_head * groups + i % groups);
    }

    static DEVICE void run(const Params &p) {
        auto &shared = shared_memory<Shared>();
        fetch_parameters(p);
        grid_dep_wait();
        if (!p.late_trigger) grid_dep_trigger();
        Item item;
        for (int i = block_index(); find_item(p, i, item); i += block_count()) work(p, shared, item);
        if (p.late_trigger) grid_dep_trigger();
    }
};

// The splits of AttentionParams::held.
template <int kDim, bool kPacked, bool kTuring>
struct HeldBody {
    using Params = AttentionParams;
    using Decode = DecodeBody<kDim, kPacked, kTuring>;

    static DEVICE void run(const Params &p) {
        auto &shared = shared_memory<typename Decode::Shared>();
        grid_dep_wait();
        grid_dep_trigger();
        for (int i = block_index(); i < p.held_splits * p.most_units; i += block_count()) {
            HeldItem item;
            if (!find_held(p, i, item)) continue;
            auto state = Decode::begin(p, {item.split.sequence, item.kv_head, item.tile, 0, 1, false,
                                           item.split.split * kAttentionSplit, 0});
            Decode::steps(p, state, shared);
            store_held<Decode::kWarps>(p, state.sums, state.space, state.first_row, item.split.place);
            block_sync();
        }
    }
};

template <int kDim, bool kPacked>
struct AttentionHeld {
    using Params = AttentionParams;
    static constexpr const char *kName = "attention to held splits";
    static constexpr int kThreads = 32 * decode_warps(kPacked), kBlocks = kDim > 128 ? 1 : kPacked ? 4 : 2;

    static DEVICE void run(const Params &p) {
        run_for_device<HeldBody<kDim, kPacked, false>, HeldBody<kDim, kPacked, true>>(p);
    }
};

template <int kDim, bool kPacked>
struct AttentionDecode {
    using Params = AttentionParams;
    static constexpr const char *kName = "attention decode";
    static constexpr int kThreads = 32 * decode_warps(kPacked), kBlocks = kDim > 128 ? 1 : kPacked ? 4 : 2;

    static DEVICE void run(const Params &p) {
        run_for_device<DecodeBody<kDim, kPacked, false>, DecodeBody<kDim, kPacked, true>>(p);
    }
};

template <int kDim>
SharedBytes shared_bytes(CacheType k, CacheType v) {
    if (!is_packed(k) && !is_packed(v)) {
        constexpr int kWarps = decode_warps(false);
        return {sizeof(DecodeShared<kDim, false, kWarps>), sizeof(DecodeShared<kDim, true, kWarps>)};
    }
    constexpr size_t kInTurn = sizeof(DecodeShared<kDim, true, decode_warps(true)>);
    const int raw = kAttentionStep * (raw_row_bytes<kDim>(k) + raw_row_bytes<kDim>(v));
    return {kInTurn + static_cast<size_t>(raw), kInTurn};
}

}  // namespace

Kernel<AttentionParams> attention_decode_kernel(CacheType k, CacheType v, int32_t dim_k, int32_t dim_v) {
    const int32_t dim = dim_k > dim_v ? dim_k : dim_v;
    return is_packed(k) || is_packed(v) ? kernel_for<AttentionDecode, true>(dim)
                                        : kernel_for<AttentionDecode, false>(dim);
}

Kernel<AttentionParams> attention_held_kernel(CacheType k, CacheType v, int32_t dim_k, int32_t dim_v) {
    const int32_t dim = dim_k > dim_v ? dim_k : dim_v;
    return is_packed(k) || is_packed(v) ? kernel_for<AttentionHeld, true>(dim)
                                        : kernel_for<AttentionHeld, false>(dim);
}

SharedBytes attention_decode_shared(CacheType k, CacheType v, int32_t dim_k, int32_t dim_v) {
    const int32_t dim = dim_k > dim_v ? dim_k : dim_v;
    if (dim <= 64) return shared_bytes<64>(k, v);
    if (dim <= 128) return shared_bytes<128>(k, v);
    return shared_bytes<256>(k, v);
}

}  // namespace runnel::kernels::cuda
