// Attention over the paged K/V cache: kernels with the same arithmetic.
//
// The cache of a layer: pages of K and of V, each (block, head) in one contiguous run (cache_pages.h).
// Cell c of a sequence is in block table[c / 32]. The cache keeps k after norm and RoPE.
//
// A row is one query head of one token. The rows of a sequence that share a K/V head are numbered token *
// group + head and split into tiles of 16, the M of the matrix product. Every kernel computes a row as
// follows:
//   1. q and k: RMS norm over the head (optional; sum of squares: lane d % 32, ascending, then warp_sum),
//      then RoPE (norm_after_rope: the other order), then for q a factor. If the cache is rotated, q, k
//      and v are multiplied by the Hadamard matrix: sums and differences of elements 1, 2, 4, ... apart,
//      then a division by the root of its size. q is rounded to 16 bits, k and v to the cache's type.
//   2. The row attends to one or two runs of cells: the sink cells, for which q is rotated for another
//      position, and those from first_visible() to its own, or to common_end - 1 if that is larger. Each run
//      has splits of 256 cells, anchored at cell 0, and those have steps of 64. Within a split, from m =
//      -1e30, l = 0, o = 0, for each step with a cell that is visible to some row of the tile:
//        s = q . k (products of 16-bit values, f32 sums by mma over dim_k in chunks of 16; for wide heads
//        the sum over the first half of the chunks, rounded up, plus the sum over the others), s *= scale,
//        s = cap * tanh(s * (1 / cap)), with slopes s = fma(slope, cell - the row's own cell, s) (sink cells:
//        min(own cell, sink_position)), s *= log2(e), -infinity for cells not visible to the row; m' =
//        max(m, the step's s); f = 2^(m - m'); p = 2^(s - m'), rounded to 16 bits; l = l f + sum p, o = o
//        f + p . v, by mma over the cells in chunks of 16.
//   3. Splits are joined in order, those of sink cells first: m' = max(m, m_s), a = 2^(m - m'), b = 2^(m_s
//      - m'), l = fma(l, a, l_s b), o = fma(o, a, o_s b); the first is taken as it is.
//   4. With a sink: m' = max(m, sink log2(e)), l = l 2^(m - m') + 2^(sink log2(e) - m'), o = o 2^(m - m').
//   5. out = o * (1 / l); if values are rotated, rotate_heads_kernel() rotates it back.
// Steps without a visible cell change nothing (f = 1, p = 0), and rows share no arithmetic, so a row's
// bits are the same from all kernels, for every batch, chunk, grid and page order. One exception: a value of
// v that is not finite (f16 overflows beyond 65504) also makes NaN of earlier rows of its tile, which do not
// see its cell: their p is 0, and 0 times infinity is NaN. (Online softmax: Milakov & Gimelshein 2018;
// tiles: FlashAttention-2, Dao 2023; split K/V: Flash-Decoding.)
//
// Wide heads are those of more than 256 dimensions and those of latent layers of any size. The values of
// latent layers are the first dim_v dimensions of their keys (multi-head latent attention). Wide heads
// have one kernel for decode and prefill, attention_wide_kernel(). Latent layers are not rotated, as on
// the CPU.
//
// If several devices divide a cache, each computes its own splits (attention_held_kernel(), attention_wide_held_kernel()), and
// attention_join_kernel() does steps 3 to 5 with those of all; divided_attention.h says when.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/cache_pages.h"
#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/runtime/kernel.h"

namespace runnel::kernels::cuda {

inline constexpr int kAttentionRows = 16;    // rows per tile
inline constexpr int kAttentionStep = 64;    // cells per step
inline constexpr int kAttentionSplit = 256;  // cells per split
inline constexpr int kPageCells = kBlockTokens;
// The largest dim_k and dim_v of narrow heads, and of wide ones. All dimensions are multiples of 8.
inline constexpr int kMaxHeadDim = 256, kMaxWideK = 576, kMaxWideV = 512;

enum class RopePairs : int32_t { None, Adjacent, Halves };

// One sequence of the batch: tokens [first, first + count), which are in cells [past, past + count). Cells
// [past - shared, past) belong to the tokens [shared_from, shared_from + shared) of another sequence:
// attention_append_kernel() writes them before they are read. Cells before common_end are visible also to tokens in
// earlier cells: past + count if the span is both_ways (kernels/backend.h), else 0.
struct SequenceInfo {
    int32_t first, count, past;
    int32_t shared = 0, shared_from = 0;
    int32_t common_end = 0;
};

// Angle of pair j at position p: p * turns[j] / 2^64 of a full turn, so the reduction of the angle is exact.
struct RopeParams {
    const uint64_t *turns;  // [rotated / 2]: inv_freq / (2 pi) * 2^64; a weight
    float magnitude;
    RopePairs pairs;
    int32_t first, rotated;  // dimensions [first, first + rotated) are rotated, the others pass through
};
uint64_t rope_turns(double inv_freq);

// A split of a sequence, of which a device has the cells (AttentionParams::held).
struct HeldSplit {
    int32_t sequence, split;
    int32_t place;  // in AttentionParams::partial, in tokens, each of which has `heads` rows: [kv_head][row]
};

// A sequence whose splits several devices hold: the place of split i is AttentionParams::places[first + i].
struct DividedSequence {
    int32_t sequence, first, splits;
};

struct AttentionParams {
    const float *q;      // [token][stride], heads side by side, before norm and RoPE
    const float *k, *v;  // likewise; null: already in the cache (shared K/V); latent: v is null
    float *out;          // [token][out_stride]: [heads][dim_v]
    int64_t q_stride, k_stride, v_stride, out_stride;
    CachePages k_cache, v_cache;    // latent: v_cache is k_cache
    const SequenceInfo *sequences;  // [*sequence_count]
    const int32_t *sequence_count;  // in device memory, like everything that changes between batches
    const int32_t *tables;          // [sequence][table_stride]: blocks
    const int32_t *positions;       // [token], for RoPE
    const float *q_factors;         // [token]: q is multiplied by it (temperature), or null
    const float *q_norm, *k_norm;   // [dim_k], or null; weights
    const float *sinks, *slopes;    // [heads], or null; weights
    float *partial;                 // decode: attention_partial_floats(...), any contents
    uint32_t *counters;  // decode: [sequences * kv_heads * max_tiles]; zero before and after a launch
                         // wide: [side_by_side]
    float *totals;       // prefill: attention_prefill_totals(...), any contents;
                         // wide: [blocks of the launch][kWideTotals]
    RopeParams rope;
    int64_t table_stride;
    int32_t heads, kv_heads, dim_k, dim_v;
    float scale, norm_eps;
    float softcap, softcap_inverse;  // cap and 1 / cap; a cap of 0 means none
    int32_t window;                  // 0: all earlier cells are visible; else cells c with own - c < window,
    int32_t chunked;                 // or, if chunked is not 0, cells c >= own - own % window
    // Sliding windows only: the cells [0, sink_cells) are visible to all queries, rotated for
    // min(position, sink_position).
    int32_t sink_cells, sink_position;
    int32_t norm_after_rope;
    int32_t max_tiles;  // decode: the largest number of tiles of a sequence and K/V head
    // The launch processes the sequences with min_rows < count * (heads / kv_heads) <= max_rows.
    int32_t min_rows, max_rows;
    int32_t shared;        // append: if not 0, only shared cells are written, those of all sequences
    int32_t latent;        // wide: if not 0, the values are the first dim_v dimensions of the keys
    int32_t side_by_side;  // wide: capacity of `partial` and `counters`, in items (wide_work())
    // decode: the range of tiles to process, [first_unit, first_unit + units), counted over all K/V heads of
    // the launch's sequences in order.
    int32_t first_unit = 0, units = INT32_MAX;
    // decode: prepare.x is `out`; the block that completes a token's heads of a K/V head quantizes them. See
    // can_prepare(). Null x: nothing is quantized.
    QuantizeParams prepare{};
    // For measurements (switches.h). late_trigger: the decode and wide kernels trigger the next launch only at their
    // end. no_prefetch: the wide kernel does not prefetch.
    int32_t late_trigger = 0, no_prefetch = 0;
    // attention_chosen_kernel(): token t, in cell `own`, attends to the blocks of chosen_block cells with the numbers
    // chosen[t][i], i < min(chosen_count, own / chosen_block + 1), which ascend. If blocks have more than one cell, the last is
    // the token's own, up to its cell. chosen_pooled (Indexer::pooled): if that cell is the last of its block, the list has one
    // number less at most, and all of its blocks are whole. K/V head h has the list that begins h * chosen_list floats later
    // (0: the heads share one). tokens: of the batch.
    const float *chosen = nullptr;
    int64_t chosen_stride = 0;
    int32_t chosen_count = 0, chosen_block = 1, chosen_list = 0, tokens = 0;
    bool chosen_pooled = false;
    // attention_chosen_kernel(): with a stride (Attention::stride), a token attends to the last cells of the whole blocks of
    // `stride` cells up to its own: of the first min(chosen_count, (own + 1) / stride) of its list, or without `chosen` of
    // all, of which there are at most chosen_count. chosen_block is then 1.
    int32_t stride = 1;
    // Wide heads: Attention::sums, [token][sums_stride]: [heads][2], or null.
    float *sums = nullptr;
    int64_t sums_stride = 0;
    // Of a cache that several devices divide (divided_attention.h), without a window. The device has the blocks
    // [first_block, end_block); block 0 would be at k_cache.bytes. append: cells in other blocks are left alone.
    int32_t first_block = 0, end_block = INT32_MAX;
    // attention_held_kernel(), attention_wide_held_kernel(): the splits to compute, with k in the cache already. Their rows
    // [m, l, o] are left in `partial`, and attention_join_kernel() joins them. most_units: the most K/V heads times tiles of
    // a sequence.
    const HeldSplit *held = nullptr;
    int32_t held_splits = 0, most_units = 0;
    // attention_join_kernel(): most_rows: the most rows of a sequence and K/V head.
    const DividedSequence *divided = nullptr;
    const int32_t *places = nullptr;
    int32_t divided_sequences = 0, most_rows = 0;
};

// Whether a launch of `tokens` tokens may set AttentionParams::prepare: the heads of a K/V head are whole
// groups of 256 columns, and a tile of rows holds all of them for its tokens.
constexpr bool can_prepare(const QuantizeParams &prepare, int32_t tokens, int32_t group, int32_t dim_v) {
    return !needs_whole_rows(prepare) && prepare.out.codes != nullptr &&
           group * dim_v % kActivationGroup == 0 &&
           (kAttentionRows % group == 0 || (tokens == 1 && group <= kAttentionRows));
}

constexpr bool is_wide(bool latent, int32_t dim_k, int32_t dim_v) {
    return latent || dim_k > kMaxHeadDim || dim_v > kMaxHeadDim;
}

// The first cell after the sink cells that the token in cell `own` attends to; larger than
// `own` if `own` is itself a sink cell.
constexpr int32_t first_visible(const AttentionParams &p, int32_t own) {
    if (p.window == 0) return 0;
    const int32_t first = p.chunked ? own - own % p.window : own - p.window + 1;
    return first > p.sink_cells ? first : p.sink_cells;
}

// The splits visible to some row of a sequence: `sinks` splits of sink cells, then splits [first, first + others).
struct Splits {
    int32_t sinks, first, others;
};
constexpr Splits splits_of(const AttentionParams &p, const SequenceInfo &s) {
    const int32_t cells = s.past + s.count, sink_cells = cells < p.sink_cells ? cells : p.sink_cells;
    const int32_t first = first_visible(p, s.past) / kAttentionSplit;
    const int32_t others = (cells - 1) / kAttentionSplit - first + 1;
    return {(sink_cells + kAttentionSplit - 1) / kAttentionSplit, first, others > 0 ? others : 0};
}

// Decode and verification: one block per (sequence, K/V head, tile, split), on a persistent grid of any size;
// the last block of a (sequence, K/V head, tile) joins its splits. Also normalizes, rotates and appends the
// new tokens' k and v, once per (sequence, K/V head). Reads every K/V byte once per tile.
Kernel<AttentionParams> attention_decode_kernel(CacheType k, CacheType v, int32_t dim_k, int32_t dim_v);
SharedBytes attention_decode_shared(CacheType k, CacheType v, int32_t dim_k, int32_t dim_v);

// The same for AttentionParams::held: the same shared memory, k and v in the cache, no joins.
Kernel<AttentionParams> attention_held_kernel(CacheType k, CacheType v, int32_t dim_k, int32_t dim_v);

// Floats of AttentionParams::partial for launches with at most `items` (sequence, K/V head, tile,
// split).
constexpr int64_t attention_partial_floats(int64_t items, int32_t dim_v) {
    return items * kAttentionRows * (dim_v + 2);
}

// Prefill: attention_append_kernel() first, if there are k and v, then one block per 64 rows, on a
// persistent grid of any size.
Kernel<AttentionParams> attention_prefill_kernel(CacheType k, CacheType v, int32_t dim_k, int32_t dim_v);
SharedBytes attention_prefill_shared(CacheType k, CacheType v, int32_t dim_k, int32_t dim_v);
inline constexpr int kPrefillRows = 64;

// Upper bound on the blocks of a launch of this kernel, or of the wide one, on any device, so that the memory
// for totals is known in advance: kernels with totals run at most two blocks per multiprocessor (three on
// sm_75), and no device of 2025 has 256 multiprocessors (of sm_75: 80).
inline constexpr int64_t kMostAttentionBlocks = 512;
constexpr int64_t prefill_blocks(int32_t heads, int32_t kv_heads, int64_t tokens) {
    const int64_t items = kv_heads * (tokens * (heads / kv_heads) / kPrefillRows + tokens);
    return items < kMostAttentionBlocks ? items : kMostAttentionBlocks;
}
// Floats of AttentionParams::totals for a launch of this many blocks: heads of more than 128 dimensions keep
// their totals there, and on sm_75 all heads do.
constexpr int64_t attention_prefill_totals(int32_t dim_k, int32_t dim_v, int64_t blocks, bool on_turing) {
    return on_turing || dim_k > 128 || dim_v > 128 ? blocks * kPrefillRows * 128 : 0;
}

// Wide heads: attention_append_kernel() first, if there is k, then all sequences in one launch, on a
// persistent grid of any size. attention_wide.cu states the cost.
Kernel<AttentionParams> attention_wide_kernel();
// The same for AttentionParams::held, without joins.
Kernel<AttentionParams> attention_wide_held_kernel();
inline constexpr int kWideTotals = 9216;
size_t attention_wide_shared();

// The work on a sequence, divided into `items`, each for one block. If side_by_side, an item is one split of one
// tile and K/V head, and the last block to finish a tile joins its results from AttentionParams::partial.
// Otherwise an item is a tile with all its splits, one after the other, which needs no partial results and is
// equally fast when the tiles fill the device. The bits are the same.
struct WideWork {
    int32_t tiles, splits;
    bool side_by_side;
    int32_t items;
};
inline constexpr int32_t kWideTiles = 128;  // so many tiles, over all K/V heads, fill the device

// The largest number of items that a layer processes side by side: enough for one token with 131072 cells.
constexpr int32_t wide_room(int32_t heads, int32_t kv_heads) {
    return kv_heads * ((heads / kv_heads + kAttentionRows - 1) / kAttentionRows) * (131072 / kAttentionSplit);
}

// room: the items of AttentionParams::side_by_side that the previous sequences do not use.
constexpr WideWork wide_work(const AttentionParams &p, const SequenceInfo &s, int32_t room) {
    const Splits parts = splits_of(p, s);
    const int32_t tiles = (s.count * (p.heads / p.kv_heads) + kAttentionRows - 1) / kAttentionRows;
    const int32_t splits = parts.sinks + parts.others, all = tiles * p.kv_heads;
    const bool side_by_side = splits > 1 && all < kWideTiles && splits <= room / all;
    return {tiles, splits, side_by_side, side_by_side ? all * splits : all};
}

// Chosen cells, heads of any size (latent or not, also narrow ones): as attention_wide_kernel(). A row attends to its
// token's chosen cells alone: steps 2 to 5 with the i-th of them in place of cell i. There is no window, and there are no
// slopes. (DeepSeek-V3.2, 2025; blocks, and a choice of each K/V head: MiniMax-M3, 2026.)
// Also layers with a stride, with or without chosen cells (DeepSeek-V4, 2026).
Kernel<AttentionParams> attention_chosen_kernel();
size_t attention_chosen_shared();

// Joins the splits of AttentionParams::divided, in order, from `partial` and writes `out`. Any grid, no shared memory.
Kernel<AttentionParams> attention_join_kernel();
// Upper bound on its blocks with work.
int64_t attention_join_blocks(const AttentionParams &params);

// Copies pages of K and V between a cache, or a part of one, and a run of bytes that is sent to another device.
struct CopyPagesParams {
    unsigned char *k, *v;    // [block][heads] pages; if v_page is 0, there are none of V
    unsigned char *packed;   // [heads][count]: a page of K and one of V
    const int32_t *blocks;   // [count]
    int64_t k_page, v_page;  // bytes of a page, multiples of 32
    int32_t count, heads;
    bool unpack;  // from `packed` to the pages, else from the pages to `packed`
};
Kernel<CopyPagesParams> copy_pages_kernel();  // any grid, no shared memory
int64_t copy_pages_blocks(const CopyPagesParams &params);

// The work on all tokens: every token has its own tiles. Splits beyond a token's cells are empty items, so that the items
// do not depend on lengths.
constexpr WideWork chosen_work(const AttentionParams &p) {
    const int32_t tiles = (p.heads / p.kv_heads + kAttentionRows - 1) / kAttentionRows * p.tokens;
    const int32_t splits = (p.chosen_count * p.chosen_block + kAttentionSplit - 1) / kAttentionSplit;
    const int64_t all = int64_t{tiles} * p.kv_heads;
    const bool side_by_side = splits > 1 && all < kWideTiles && splits <= p.side_by_side / all;
    return {tiles, splits, side_by_side, static_cast<int32_t>(side_by_side ? all * splits : all)};
}

// Normalizes and rotates k and v of the sequences with min_rows < rows <= max_rows, or of shared cells, and
// stores them in the cache. Any grid.
Kernel<AttentionParams> attention_append_kernel();
inline constexpr size_t kAppendShared = 4 * 4 * kMaxWideK;

// Multiplies every head of x by the Hadamard matrix (backend.h), in place: undoes the rotation of values.
struct RotateHeadsParams {
    float *x;  // [token][stride]; each row starts with [heads][dim]
    int64_t stride;
    int32_t tokens, heads, dim;
};
Kernel<RotateHeadsParams> rotate_heads_kernel();  // any grid; shared memory: kAppendShared

// Rope of attention_steps.h: one warp per head, on any grid.
struct RopeHeadsParams {
    float *x;  // [token][stride]: [heads][dim]
    int64_t stride;
    const int32_t *positions;  // [token]
    RopeParams rope;
    int32_t tokens, heads, dim, block;
    bool back;
};
Kernel<RopeHeadsParams> rope_heads_kernel();

}  // namespace runnel::kernels::cuda
