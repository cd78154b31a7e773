// Attention of wide heads (attention.h): more than 256 dimensions, or latent ones of any size. For decode and
// prefill; attention_append.cu has stored k and v of the batch in the cache before.
//
// A block of 8 warps takes a tile of 16 rows and one split of its cells, or all splits one after the other
// (wide_work()). Shared memory holds the queries and one tile of 64 cells x 576 values of 16 bits, which K
// and V use in turn: 96 KB, so one block fits on every device of sm_80 and later, and two on those with 227
// KB. The values of latent layers are the K tile itself. While a step is computed, the cells of the next are
// prefetched into L2; from there packed types are loaded through registers, 16-bit ones by cp.async. Scores:
// a warp computes 16 cells over half of the chunks of 16 dimensions, and two warps' sums are added. Eight
// warps then read queries and keys as often as four would with all chunks, and no chain of products is longer
// than 18. p . v: a warp computes every eighth 8-column tile of the output.
//
// Cost. Bytes: every K/V byte of a split once per tile of 16 rows. Latent attention with h heads reads the
// cache h / 16 times per token, but the tiles of one split are adjacent in the grid and share it in L2. Side
// by side: 16 (dim_v + 2) floats of scratch per item, written and read (each 11% of a split's bytes at 576 /
// 512); in order: as much per split, except the first and last. One launch more than narrow decode (append).
// Per tile and step: padded_k / 2 + dim_v / 2 + 32 mma of 16x8x16; in shared memory 128 padded_k bytes
// written (128 dim_v more if not latent) and 256 padded_k + 128 dim_v + 16384 read. At 576 / 512 that is 576
// mma and 296 KB, which take 2370 clocks at 128 bytes per clock, about four per mma. So on data-center
// devices the limit is shared memory, or for up to 16 heads (one tile) the bandwidth of device memory.
// tests/gpu/PREDICTIONS.md has the expected times. Tiles of 32 rows would save a third of the traffic of
// shared memory, but do not fit in 99 KB.
//
// With chosen cells (AttentionParams::chosen), heads of any size run here: a tile has rows of one token only, whose cells
// are the chosen ones, numbered from 0. For each split the block looks up where they are in the cache. Everything else
// is the same, so a token that chooses all its cells has the bits of dense wide attention. Bytes: the chosen cells once
// per tile, also in prefill, where dense tiles share cells among tokens unless a token's heads fill them.
#include <type_traits>

#include "kernels/cuda/attention/attention_split.h"

namespace runnel::kernels::cuda {

namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kWarpRows = kAttentionStep / kWarps;  // rows of a tile that a warp loads
constexpr int kTiles = kMaxWideV / 8 / kWarps;      // 8-column tiles of o per warp
using TileRows = RowsLayout<kMaxWideK>;

struct Item {
    int sequence, kv_head, tile;
    int first, count, splits;  // splits [first, first + count) of `splits`
    int partial, apart;        // index of the partial result of split 0, and distance to the next split's
};

// The state of a block in its current item and split, common to all threads. In shared memory,
// because the loop needs the registers.
struct Block {
    Item item;
    CacheHead cache;
    Run run;
    CellRange cells;          // of the run, visible to the tile
    int first, last;          // steps of the split
    bool starts, ends;        // of the item's splits visible to the tile, this is the first, or the last
    bool other_run;           // the queries in shared memory are not those of this run
    bool begun, begun_sinks;  // for thread 0: a visible split was begun; the latest one has sink cells
};

struct WideShared {
    alignas(128) unsigned char tile[kAttentionStep * TileRows::kRowBytes];  // used by K and V in turn
    alignas(128) unsigned char q[kAttentionRows * TileRows::kRowBytes];
    alignas(128) unsigned char p[kAttentionRows * 2 * kPStride];
    float second[kScoreWarps<2>][8][32];  // scores over the second half of the dimensions, per lane
    Maxima<2> maximum;
    RowCells rows[kAttentionRows];  // of the current run
    uint32_t is_last;
    Block block;
};
struct ChosenShared : WideShared {
    int32_t places[kAttentionSplit];  // of the split's cells: page * kPageCells + cell of the page
};
static_assert(sizeof(ChosenShared) <= 99 << 10 && kAttentionSplit == kThreads);
static_assert(kWideTotals == (4 * kTiles + 4) * kThreads);
// load_queries() uses the tile as scratch before K arrives.
static_assert(sizeof(WideShared::tile) >= kWarps * kMaxWideK * sizeof(float));

// Item number `index`; false if there are fewer. Tiles that read the same cells are adjacent. Items that compute all
// splits of a tile take the tiles in descending order, because the last tiles attend to the most cells.
DEVICE bool find_item(const AttentionParams &p, int index, Item &item) {
    const int sequences = *p.sequence_count;
    int rest = index, partial = 0;
    for (int s = 0; s < sequences; ++s) {
        const WideWork work = wide_work(p, p.sequences[s], p.side_by_side - partial);
        if (rest < work.items) {
            const int tile = rest % work.tiles, others = rest / work.tiles;
            if (work.side_by_side) {
                const int kv_head = others / work.splits;
                item = {s,
                        kv_head,
                        tile,
                        others % work.splits,
                        1,
                        work.splits,
                        partial + kv_head * work.splits * work.tiles + tile,
                        work.tiles};
            } else {
                item = {
                    s, rest % p.kv_heads, work.tiles - 1 - rest / p.kv_heads, 0, work.splits, work.splits, 0,
                    0};
            }
            return true;
        }
        rest -= work.items;
        partial += work.side_by_side ? work.items : 0;
    }
    return false;
}

// The tiles of a token with chosen cells. In its items, Item::tile counts those of all tokens of the batch.
DEVICE int token_tiles(const AttentionParams &p) {
    return (p.heads / p.kv_heads + kAttentionRows - 1) / kAttentionRows;
}

DEVICE bool find_chosen_item(const AttentionParams &p, int index, Item &item) {
    const WideWork work = chosen_work(p);
    if (index >= work.items) return false;
    const int tiles = token_tiles(p), splits = work.side_by_side ? work.splits : 1;
    const int tile = index % tiles, others = index / tiles, split = others % splits, heads = others / splits;
    const int token = heads / p.kv_heads;
    int sequence = 0;
    while (token >= p.sequences[sequence].first + p.sequences[sequence].count) ++sequence;
    item = {sequence,
            heads % p.kv_heads,
            token * tiles + tile,
            split,
            work.side_by_side ? 1 : work.splits,
            work.splits,
            heads * splits * tiles + tile,
            tiles};
    return true;
}

// The number, among a token's chosen cells, of the last.
DEVICE int last_chosen(const AttentionParams &p, int own) {
    if (p.stride > 1) return smaller((own + 1) / p.stride, p.chosen_count) - 1;  // -1: none
    if (p.chosen_block == 1) return smaller(own, p.chosen_count - 1);
    const int block = own / p.chosen_block;
    if (p.chosen_pooled && own == (block + 1) * p.chosen_block - 1)
        return smaller(block + 1, p.chosen_count - 1) * p.chosen_block - 1;
    return smaller(block, p.chosen_count - 1) * p.chosen_block + own - block * p.chosen_block;
}

// --- cells into the tile ---------------------------------------------------------------------------------

// K or V of a K/V head in the two pages of a step. kUnits: units of 16 packed bytes that a thread loads at a time.
struct StepPages {
    static constexpr int kUnits = 3;
    unsigned char *first, *second;  // undefined if no cell of the page is in the range

    DEVICE unsigned char *of(int row) const { return row < kPageCells ? first : second; }
    DEVICE int at(int row) const { return row % kPageCells; }
};

// The same for chosen cells.
struct StepPlaces {
    static constexpr int kUnits = 2;
    const CachePages &pages;
    const int32_t *places;  // of the step's cells

    DEVICE unsigned char *of(int row) const {
        return pages.bytes + static_cast<uint32_t>(places[row]) / kPageCells * pages.page_bytes();
    }
    DEVICE int at(int row) const { return static_cast<uint32_t>(places[row]) % kPageCells; }
};

DEVICE StepPages pages_of(const AttentionParams &p, const CachePages &pages, const CacheHead &head,
                          const CellRange &cells, int step) {
    const auto page = [&](int cell) {
        const bool used = cell < cells.end && cell + kPageCells > cells.begin;
        return used ? page_of(pages, p.kv_heads, head.table, head.kv_head, cell) : pages.bytes;
    };
    return {page(step * kAttentionStep), page(step * kAttentionStep + kPageCells)};
}

// Loads the values [0, count) of a 16-bit type, then zeros up to `padded`. A warp loads every eighth row.
template <class Pages>
DEVICE void load_values(const CachePages &pages, const Pages &from, const CellRange &cells, int step,
                        int count, int padded, unsigned char *tile) {
    for (int row = warp_index(); row < kAttentionStep; row += kWarps) {
        const bool cached = cells.cached(step * kAttentionStep + row);
        const unsigned char *values = from.of(row) + from.at(row) * pages.row_bytes;
        for (int chunk = lane_index(); 8 * chunk < padded; chunk += 32) {
            const bool valid = cached && 8 * chunk < count;
            cp_async16(tile + TileRows::offset(row, chunk), valid ? values + 16 * chunk : pages.bytes, valid);
        }
    }
    cp_async_commit();
}

// Types whose levels unpack_nibbles() reads. (In order, because a comparison takes fewer registers than has_nibbles().)
constexpr bool is_nibble_type(CacheType type) {
    return type >= CacheType::Q4_1;
}
static_assert([] {
    bool same = true;
    for (int i = 0; i <= static_cast<int>(CacheType::IQ4_NL); ++i) {
        const auto type = static_cast<CacheType>(i);
        same = same && is_nibble_type(type) == (has_nibbles(type) && type != CacheType::Q4_0);
    }
    return same;
}());

// Unpacks the values [0, padded) of a type with nibbles, other than Q4_0. A warp unpacks every eighth row, a lane one block
// of 32 values of it. One load is in flight, because registers are short.
template <class Pages>
DEVICE void unpack_nibble_values(const CachePages &pages, const Pages &from, const CellRange &cells, int step,
                                 int padded, unsigned char *tile) {
    const int block = lane_index();
    if (32 * block >= padded) return;
#pragma unroll 1
    for (int row = warp_index(); row < kAttentionStep; row += kWarps) {
        if (!cells.cached(step * kAttentionStep + row)) {
#pragma unroll 1
            for (int chunk = 4 * block; chunk < 4 * block + 4; ++chunk)
                st128(tile + TileRows::offset(row, chunk), {0, 0, 0, 0});
            continue;
        }
        const CellBytes cell = cell_bytes(pages, from.of(row), from.at(row));
        const unsigned char *words = cell.values + 16 * block;
        BlockParts parts = block_parts(pages.type, cell, block);
#pragma unroll 1
        for (int chunk = 4 * block; chunk < 4 * block + 4;
             ++chunk, words += 4) {  // (whole blocks fit in a row)
            st128(tile + TileRows::offset(row, chunk),
                  unpack_nibbles(pages.type, *reinterpret_cast<const uint32_t *>(words), parts.scales,
                                 parts.fifth_bits));
            parts.fifth_bits >>= 8;
        }
    }
}

// Unpacks the values [0, padded) of Q8_0, Q4_0 or FP8, which the cache has padded with zeros. A unit is 16 bytes
// with 16 or 32 values that share a scale; a warp unpacks every eighth row.
template <class Pages>
DEVICE void unpack_values(const CachePages &pages, const Pages &from, const CellRange &cells, int step,
                          int padded, unsigned char *tile) {
    constexpr int kUnits = Pages::kUnits;
    const bool nibbles = pages.type == CacheType::Q4_0;
    const int chunks = nibbles ? 4 : 2, units = (padded + 8 * chunks - 1) / (8 * chunks);
    const int page_values = kPageCells * pages.row_bytes, end = kWarpRows * units;
    const auto row_of = [&](int unit) { return warp_index() + unit / units * kWarps; };
    const auto is_cached = [&](int unit) {
        return unit < end && cells.cached(step * kAttentionStep + row_of(unit));
    };
#pragma unroll 1
    for (int first = lane_index(); first < end; first += 32 * kUnits) {
        uint4 bytes[kUnits];
        uint32_t scale[kUnits];
#pragma unroll
        for (int i = 0; i < kUnits; ++i) {
            const int unit = first + 32 * i, row = row_of(unit), u = unit % units;
            scale[i] = 0;
            if (!is_cached(unit)) continue;
            const unsigned char *page = from.of(row);
            const int at = from.at(row);
            bytes[i] = ld128(page + at * pages.row_bytes + 16 * u);
            if (has_scales(pages.type))
                scale[i] =
                    0x00010001u * reinterpret_cast<const uint16_t *>(
                                      page + page_values + at * pages.scale_bytes)[nibbles ? u : u / 2];
        }
#pragma unroll
        for (int i = 0; i < kUnits; ++i) {
            const int unit = first + 32 * i, chunk = unit % units * chunks;
            if (unit >= end) break;
            const uint32_t words[4] = {bytes[i].x, bytes[i].y, bytes[i].z, bytes[i].w};
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                if (k >= chunks || 8 * (chunk + k) >= padded) break;
                uint4 eight = {0, 0, 0, 0};
                if (is_cached(unit))
                    eight = unpack_eight(
                        pages.type,
                        nibbles ? uint2{words[k], 0} : uint2{words[2 * k % 4], words[2 * k % 4 + 1]},
                        scale[i]);
                st128(tile + TileRows::offset(row_of(unit), chunk + k), eight);
            }
        }
    }
}

// Prefetches the step's cells into L2; one thread per cell. values(row): the address of a cell's values.
template <class Values>
DEVICE void prefetch_step(const AttentionParams &p, const CachePages &pages, const CellRange &cells, int step,
                          const Values &values) {
    const int row = thread_index();
    if (p.no_prefetch || row >= kAttentionStep || !cells.cached(step * kAttentionStep + row)) return;
    prefetch_l2(values(row), static_cast<uint32_t>(pages.row_bytes));
}

// --- the kernel ------------------------------------------------------------------------------------------

template <bool kChosen>
struct WideBody {
    using Params = AttentionParams;
    using Shared = std::conditional_t<kChosen, ChosenShared, WideShared>;

    static DEVICE RowSpace space_of(const Params &p, const Block &block) {
        RowSpace space = row_space(p, block.item.sequence, block.item.kv_head);
        if constexpr (kChosen) {  // one token, whose cells are numbered from 0
            const int token = block.item.tile / token_tiles(p);
            const int own = space.sequence.past + token - space.sequence.first;
            space.sequence = {token, 1, last_chosen(p, own)};
            space.rows = space.group;
        }
        return space;
    }
    static DEVICE int first_row(const Params &p, const Block &block) {
        return (kChosen ? block.item.tile % token_tiles(p) : block.item.tile) * kAttentionRows;
    }

    // Looks up where the cells of the split that begin_split() has set are.
    static DEVICE void find_places(const Params &p, Shared &shared) {
        if constexpr (kChosen) {
            const Block &block = shared.block;
            const int cell =
                block.first * kAttentionStep / kAttentionSplit * kAttentionSplit + thread_index();
            const float *chosen = p.chosen + block.item.tile / token_tiles(p) * p.chosen_stride +
                                  block.item.kv_head * p.chosen_list;
            int place = 0;
            if (cell < block.cells.end) {
                const int i = p.chosen_block == 1 ? cell : cell / p.chosen_block;
                const int number = p.chosen ? static_cast<int>(chosen[i]) : i;
                const int from = p.stride > 1 ? (number + 1) * p.stride - 1
                                              : number * p.chosen_block + cell - i * p.chosen_block;
                const int page = block.cache.table[from / kPageCells] * p.kv_heads + block.cache.kv_head;
                place = page * kPageCells + from % kPageCells;
            }
            shared.places[thread_index()] = place;
            block_sync();
        }
    }
    static DEVICE StepPlaces places_of(const ChosenShared &shared, const CachePages &pages, int step) {
        return {pages, shared.places + step * kAttentionStep % kAttentionSplit};
    }

    // Sets the visible cells and steps of split `i` of the item; called by one thread.
    static DEVICE void begin_split(const Params &p, Block &block, int i) {
        const RowSpace space = space_of(p, block);
        const int split = block.item.first + i;
        const Splits parts = splits_of(p, space.sequence);
        const bool sinks = split < parts.sinks;
        const Run run = run_of(p, sinks);
        const int first_cell = (sinks ? split : parts.first + split - parts.sinks) * kAttentionSplit;
        const int seen = first_visible(p, run, space.own_cell(first_row(p, block)));
        const int tile_end = space.end_of(first_row(p, block) + kAttentionRows),
                  end = smaller(tile_end, run.end);
        const bool starts = i == 0 || !block.begun;
        block.starts = starts;
        block.other_run = starts || block.begun_sinks != sinks;
        block.cache = space.cache;
        block.run = run;
        block.cells = {seen, end, end};
        const int begin = seen > first_cell ? seen : first_cell;
        const int last_end = smaller(end, first_cell + kAttentionSplit);
        const bool sees = begin < last_end;
        block.first = begin / kAttentionStep;
        block.last = sees ? (last_end - 1) / kAttentionStep : begin / kAttentionStep - 1;
        block.begun = sees || !starts;
        if (sees) block.begun_sinks = sinks;
        block.ends = tile_end <= smaller(run.end, first_cell + kAttentionSplit) || i + 1 == block.item.count;
    }

    // Scores of this warp's 16 cells over its half of the dimensions: c[0] the first 8 cells, c[1] the rest.
    static DEVICE void half_scores(const Params &p, Shared &shared, float (&c)[2][4]) {
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) c[n][i] = 0;
        const int chunks = padded_k(p) / 16, middle = (chunks + 1) / 2;
        const bool second = warp_index() >= kScoreWarps<2>;
        const int first_cell = 16 * (warp_index() % kScoreWarps<2>), end = second ? chunks : middle;
        const Products products = products_of(p.k_cache);
#pragma unroll 2
        for (int chunk = second ? middle : 0; chunk < end; ++chunk) {
            uint32_t a[4], b[4];
            load_a<kMaxWideK>(shared.q, chunk, a);
            load_k<kMaxWideK>(shared.tile, first_cell, chunk, b);
            products.mma(c[0], a, {b[0], b[1]});
            products.mma(c[1], a, {b[2], b[3]});
        }
        if (!second) return;
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                shared.second[warp_index() - kScoreWarps<2>][4 * n + i][lane_index()] = c[n][i];
    }

    // Each of the first kScoreWarps<2> warps finishes the scores of its cells and publishes each row's maximum.
    static DEVICE void finish(const Params &p, Shared &shared, int step, float (&c)[2][4]) {
        if (warp_index() >= kScoreWarps<2>) return;
        const RowCells &low = shared.rows[lane_index() >> 2], &high = shared.rows[(lane_index() >> 2) + 8];
        const LaneRows rows{{low.first, high.first}, {low.last, high.last}};
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) c[n][i] += shared.second[warp_index()][4 * n + i][lane_index()];
        }
        const int cell = step * kAttentionStep + 16 * warp_index() + 2 * (lane_index() & 3);
        finish_scores(p, rows, cell, c, [&] {
            return RowTile{space_of(p, shared.block), first_row(p, shared.block)};
        });
        share_maximum(shared.maximum, c);
    }

    // Fills the tile: unpacks a packed type, or issues the copy of a 16-bit one. Returns at once if `packed`
    // does not describe the type: steps() calls this at different places for the two kinds of types.
    static DEVICE void load(const Params &p, Shared &shared, const CachePages &pages, int step, int count,
                            int padded, bool packed) {
        if (is_packed(pages.type) != packed) return;
        if constexpr (kChosen)
            load_from(places_of(shared, pages, step), shared, pages, step, count, padded, packed);
        else
            load_from(pages_of(p, pages, shared.block.cache, shared.block.cells, step), shared, pages, step,
                      count, padded, packed);
    }
    template <class Pages>
    static DEVICE void load_from(const Pages &from, Shared &shared, const CachePages &pages, int step,
                                 int count, int padded, bool packed) {
        if (packed && is_nibble_type(pages.type))
            unpack_nibble_values(pages, from, shared.block.cells, step, padded, shared.tile);
        else if (packed)
            unpack_values(pages, from, shared.block.cells, step, padded, shared.tile);
        else
            load_values(pages, from, shared.block.cells, step, count, padded, shared.tile);
    }
    static DEVICE void start_k(const Params &p, Shared &shared, int step, bool packed) {
        load(p, shared, p.k_cache, step, p.dim_k, padded_k(p), packed);
    }
    static DEVICE void start_v(const Params &p, Shared &shared, int step, bool packed) {
        if (!p.latent) load(p, shared, p.v_cache, step, p.dim_v, p.dim_v, packed);
    }
    static DEVICE void prefetch(const Params &p, const Shared &shared, const CachePages &pages, int step) {
        if (step > shared.block.last) return;
        prefetch_step(p, pages, shared.block.cells, step, [&](int row) {
            if constexpr (kChosen) {
                const StepPlaces from = places_of(shared, pages, step);
                return from.of(row) + from.at(row) * pages.row_bytes;
            } else {
                const CacheHead &head = shared.block.cache;
                return page_of(pages, p.kv_heads, head.table, head.kv_head, step * kAttentionStep + row) +
                       row % kPageCells * pages.row_bytes;
            }
        });
    }

    static DEVICE void steps(const Params &p, Shared &shared, Sums<kTiles> &sums) {
#pragma unroll 1
        for (int step = shared.block.first; step <= shared.block.last; ++step) {
            start_k(p, shared, step, false);
            start_k(p, shared, step, true);
            if (!p.latent) prefetch(p, shared, p.v_cache, step);
            prefetch(p, shared, p.k_cache, step + 1);
            cp_async_wait<0>();
            block_sync();
            float c[2][4];
            half_scores(p, shared, c);
            block_sync();
            start_v(p, shared, step, false);
            finish(p, shared, step, c);
            block_sync();
            rescale_step<kWarps>(p, sums, shared.maximum, shared.p, c);
            start_v(p, shared, step, true);
            cp_async_wait<0>();
            block_sync();
            add_step<kMaxWideK, kWarps>(p, sums, shared.p, shared.tile);
            block_sync();
        }
    }

    // At the end of a split, unless it is the item's only one: joins the sums into the total, or in the last
    // split the total into the sums. The total is in global scratch, in a part of each thread's own,
    // because registers and shared memory are full.
    static DEVICE void end_split(const Params &p, Sums<kTiles> &sums, bool first, bool last) {
        if (first && last) return;
        float *total = p.totals + int64_t{block_index()} * kWideTotals + thread_index();
        const auto join_into = [&](float &there, float mine, const Join &weight) {
            const float joined = first ? mine : fma_rn(there, weight.a, mine * weight.b);
            if (!last) there = joined;
            return joined;
        };
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float &m = total[(4 * kTiles + i) * kThreads], &l = total[(4 * kTiles + 2 + i) * kThreads];
            const Join weight = first ? Join{sums.m[i], 0, 1} : join(m, sums.m[i]);
            if (!last) m = weight.m;
            sums.m[i] = weight.m;
            sums.l[i] = join_into(l, sums.l[i], weight);
#pragma unroll
            for (int n = 0; n < kTiles; ++n)
#pragma unroll
                for (int j = 2 * i; j < 2 * i + 2; ++j)
                    sums.o[n][j] = join_into(total[(4 * n + j) * kThreads], sums.o[n][j], weight);
        }
    }

    // Queries for the run of the current split, computed in the memory of the tile.
    static DEVICE void make_queries(const Params &p, Shared &shared) {
        load_queries<kMaxWideK>(p, space_of(p, shared.block), shared.block.run, first_row(p, shared.block),
                                warp_index(), kWarps,
                                reinterpret_cast<float *>(shared.tile) + warp_index() * kMaxWideK, shared.q);
        block_sync();
    }

    // Computes all splits of the item and joins them in order.
    static DEVICE void sum_splits(const Params &p, Shared &shared, Sums<kTiles> &sums) {
        const Block &block = shared.block;
        sums.clear();
#pragma unroll 1
        for (int i = 0; i < block.item.count; ++i) {
            if (thread_index() == 0) begin_split(p, shared.block, i);
            block_sync();
            if (block.first <= block.last) {
                find_places(p, shared);
                const int row = thread_index();
                if (row < kAttentionRows)
                    shared.rows[row] = row_cells(p, space_of(p, block), block.run, first_row(p, block) + row);
                if (block.other_run) make_queries(p, shared);
                sums.clear();
                steps(p, shared, sums);
                end_split(p, sums, block.starts, block.ends);
            }
            const bool ends = block.ends;
            block_sync();
            if (ends) break;
        }
    }

    static DEVICE void work(const Params &p, Shared &shared) {
        Sums<kTiles> sums;
        sum_splits(p, shared, sums);
        const Item &item = shared.block.item;
        const RowSpace space = space_of(p, shared.block);
        const int row = first_row(p, shared.block);
        if (item.count == item.splits) {
            store_output(p, space, sums, row, 0, p.dim_v, warp_index(), kWarps);
            if (p.sums && warp_index() == 0 && (lane_index() & 3) == 0) {
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    store_sums(p, space, row + (lane_index() >> 2) + 8 * i, sums.m[i], sums.l[i]);
            }
            return;
        }
        store_partial<kWarps>(p, sums, item.partial + item.first * item.apart);
        if (is_last(p.counters + item.partial, item.splits, shared.is_last))
            join_splits<kMaxWideV, kWarps, true>(p, space, row, item.partial, item.apart, item.splits);
    }

    static DEVICE void run(const Params &p) {
        auto &shared = shared_memory<Shared>();
        grid_dep_wait();
        if (!p.late_trigger) grid_dep_trigger();
        Item item;
        for (int i = block_index(); kChosen ? find_chosen_item(p, i, item) : find_item(p, i, item);
             i += block_count()) {
            if (thread_index() == 0) shared.block.item = item;
            block_sync();
            work(p, shared);
            block_sync();
        }
        if (p.late_trigger) grid_dep_trigger();
    }
};

// The splits of AttentionParams::held.
struct AttentionWideHeld {
    using Params = AttentionParams;
    using Wide = WideBody<false>;
    static constexpr const char *kName = "attention wide, to held splits";
    static constexpr int kThreads = cuda::kThreads, kBlocks = 2;

    static DEVICE void run(const Params &p) {
        auto &shared = shared_memory<Wide::Shared>();
        grid_dep_wait();
        grid_dep_trigger();
        for (int i = block_index(); i < p.held_splits * p.most_units; i += block_count()) {
            HeldItem item;
            if (!find_held(p, i, item)) continue;
            if (thread_index() == 0)
                shared.block.item = {
                    item.split.sequence, item.kv_head, item.tile, item.split.split, 1, 2, 0, 0};
            block_sync();
            Sums<kTiles> sums;
            Wide::sum_splits(p, shared, sums);
            store_held<kWarps>(p, sums, Wide::space_of(p, shared.block), item.tile * kAttentionRows,
                               item.split.place);
            block_sync();
        }
    }
};

struct AttentionWide : WideBody<false> {
    static constexpr const char *kName = "attention wide";
    static constexpr int kThreads = cuda::kThreads, kBlocks = 2;
};

struct AttentionChosen : WideBody<true> {
    static constexpr const char *kName = "attention of chosen cells";
    static constexpr int kThreads = cuda::kThreads, kBlocks = 2;
};

}  // namespace

Kernel<AttentionParams> attention_wide_kernel() {
    return kernel_of<AttentionWide>();
}

Kernel<AttentionParams> attention_wide_held_kernel() {
    return kernel_of<AttentionWideHeld>();
}

size_t attention_wide_shared() {
    return sizeof(WideShared);
}

Kernel<AttentionParams> attention_chosen_kernel() {
    return kernel_of<AttentionChosen>();
}

size_t attention_chosen_shared() {
    return sizeof(ChosenShared);
}

}  // namespace runnel::kernels::cuda
