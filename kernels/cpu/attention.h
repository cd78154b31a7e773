// Attention over the paged K/V cache, for query rows that share one K/V head.
//
// The cache stores K and V in pages of kBlockTokens = 32 cells, per layer and K/V head, as binary16 or in
// fewer bits (attention_formats.h); attention reads them as float32:
//   K page: [head_dim_k][32 cells]    transposed: the lanes of a vector are cells in q.k,
//   V page: [32 cells][head_dim_v]    and dimensions in p.v, so neither product sums across lanes.
//
// A row is one query head of one token. Its result (all float32, fma means one rounding):
//   1. score of a cell: fma chain over d ascending of q[d] * k[d], from 0; then * scale; with a soft-cap c
//      then c * tanh(that / c) (vector.h). For the sink cells, q is sink_q. With slopes then + slope * distance,
//      the product rounded first, where distance = cell - min(the token's cell, last_distance_cell).
//   2. The visible cells are split into ranges: the sink cells are the first; the others are split at
//      multiples of kRangeCells of the sequence. Within a range, page by page in ascending order, with a
//      maximum m (from -1e30), 16 sums l and o[head_dim_v] (from 0):
//        m' = the largest of m and the page's visible scores;
//        if m' > m: f = exp(m - m'), l *= f, o *= f, m = m';
//        p = exp(score - m), and 0 for cells that are not visible;
//        l[i] += p[i] + p[i + 16];
//        o[d]: fma chain over the visible cells ascending of p * v[d].
//      At the end of the range: s[i] = l[i] + l[i + 8], l = ((s0+s4) + (s2+s6)) + ((s1+s5) + (s3+s7)).
//   3. Ranges are joined in ascending order: m' = max(m, m_r), a = exp(m - m'), b = exp(m_r - m'),
//      l = fma(l_r, b, l * a), o = fma(o_r, b, o * a). The first range is taken as it is.
//   4. With a sink s: m' = max(m, s), a = exp(m - m'), l = fma(l, a, exp(s - m')), o *= a.
//   5. out = o / l, or zeros if l is 0. m and l of step 4 (3 without a sink) are the row's `sums`.
// With chosen cells, the others are not visible, and a range without a visible cell is left out of step 3. A row
// that chooses all its cells so has the bits of a row without chosen cells. With common_end, the visible cells end
// there for all rows of the tile. With a stride, only the cells stride - 1, 2 * stride - 1, ... are visible.
// (Online softmax: Milakov & Gimelshein 2018; exp: vector.h.) A row depends on nothing else in the batch:
// tiles of any size, ranges on different threads and all instruction sets give bit-equal rows. Cells outside
// a row's window never enter its result, whatever bits they hold.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"

namespace runnel::kernels::cpu {

inline constexpr int32_t kMostTileTokens = 32;  // of tiles with chosen cells

// The K/V pages of one sequence for one layer and one K/V head.
struct KvPages {
    std::byte *k, *v;           // the pages of first_block for this layer and head; v null:
                                // the values are the first head_dim_v dimensions of k
    size_t k_stride, v_stride;  // bytes from a block's page to the next block's
    const BlockId *table;       // cell c is in block table[c / 32]
    int32_t head_dim_k, head_dim_v;
    CacheType k_type = CacheType::F16, v_type = CacheType::F16;
    BlockId first_block = 0;  // whose pages are at k and v
};

// Rows of one sequence: `tokens` consecutive tokens x the `heads` query heads of one K/V head. Token t is in cell
// first_cell + t. It attends to the cells from first_visible() to its own, or to common_end - 1 if that is larger, and
// to the sink cells before them.
struct AttentionTile {
    KvPages pages;
    const float *q;                // row (t, h): q + t * q_stride + h * head_dim_k, after RoPE
    float *out;                    // row (t, h): out + t * out_stride + h * head_dim_v
    int64_t q_stride, out_stride;  // floats from token to token
    int32_t tokens, heads;
    int32_t first_cell;
    int32_t window;  // 0: all earlier cells
    float scale;
    bool chunked = false;           // the window begins at a multiple of its length
    float softcap = 0;              // 0: none
    const float *sinks = nullptr;   // [heads], or null
    const float *slopes = nullptr;  // [heads], or null: no bias by distance
    int32_t sink_cells = 0;         // at most kRangeCells
    const float *sink_q = nullptr;  // with sink cells: the rows of q for them, laid out as q
    int32_t end_cell = INT32_MAX;   // cells from here on are not visible to any row
    int32_t common_end = 0;         // cells before this one are visible also to tokens in earlier cells
    int32_t last_distance_cell = INT32_MAX;  // distances are counted from this cell at most
    // The cells that token t attends to, or null: with `own` its cell, the first min(chosen_count, own / chosen_block + 1)
    // elements of chosen + t * chosen_stride are numbers of blocks of cells (Indexer::block), ascending. With blocks of
    // more than one cell, the last of them is the token's own. chosen_pooled (Indexer::pooled): if the token's cell is the last
    // of its block, the list has one number less at most, and its own block only if that was chosen. window is then 0.
    const float *chosen = nullptr;
    int64_t chosen_stride = 0;
    int32_t chosen_count = 0, chosen_block = 1;
    bool chosen_pooled = false;
    int32_t stride = 1;     // Attention::stride
    float *sums = nullptr;  // row (t, h): sums + t * sums_stride + 2 * h gets m and l; or null
    int64_t sums_stride = 0;
};

// The first cell after the sink cells that a token in cell `own` attends to: own - window + 1, or, chunked,
// own - own % window. Larger than `own` if the token is itself in a sink cell.
constexpr int32_t first_visible(const AttentionTile &tile, int32_t own) {
    if (tile.window == 0) return 0;
    if (tile.chunked) return own - own % tile.window;
    const int32_t first = own < tile.window ? 0 : own - tile.window + 1;
    return first > tile.sink_cells ? first : tile.sink_cells;
}

// One past the last cell that a token in cell `own` attends to.
constexpr int32_t visible_end(const AttentionTile &tile, int32_t own) {
    const int32_t end = own < tile.common_end ? tile.common_end : own + 1;
    return end < tile.end_cell ? end : tile.end_cell;
}

// The scores of an Indexer (attention_steps.h) for consecutive tokens of one sequence and the cells of some pages.
struct IndexTile {
    KvPages pages;         // of the index keys
    const float *q;        // row (t, h): q + t * q_stride + h * head_dim_k, rotated as the keys are
    const float *weights;  // [tokens][weights_stride], of which the first `heads` are used; or null
    // Of token t and cell c: scores + t * scores_stride + c. Without weights, those of head h begin at scores + (t * heads +
    // h) * scores_stride.
    float *scores;
    int64_t q_stride, weights_stride, scores_stride;
    int32_t tokens, heads;
    int32_t first_page, end_page;
};

struct AttentionKernels {
    const char *name;  // "scalar", "avx2", "avx512"

    // Stores k and v of tokens in cells [cell, cell + tokens). k: [tokens][k_stride], of which the first
    // head_dim_k of each row are used; v likewise, if the pages have one.
    void (*append)(const KvPages &pages, int32_t cell, int32_t tokens, const float *k, int64_t k_stride,
                   const float *v, int64_t v_stride) noexcept;

    // Steps 1 to 5 for all rows. scratch: attention_scratch(...) floats, aligned to 64 bytes.
    void (*attend)(const AttentionTile &tile, float *scratch) noexcept;

    // Steps 1 and 2 for one range, 0 <= index < range_count(tile): writes the tile's partial results for
    // join(). partial: attention_partial(tile) floats, any alignment. Used for few rows and a long
    // sequence: every (K/V head, range) is then a separate unit of work.
    void (*attend_range)(const AttentionTile &tile, int32_t index, float *partial, float *scratch) noexcept;

    // Steps 3-5 over `ranges` = range_count(tile) adjacent partial results.
    void (*join)(const AttentionTile &tile, const float *partials, int32_t ranges) noexcept;

    // Step 3 for one range, which is number `range` of the sequence: joins its partial results to those of the ranges
    // before it. The result is that of one range: join(tile, joined, 1), without sink cells, completes it.
    void (*add_range)(const AttentionTile &tile, int32_t range, const float *partial, float *joined) noexcept;

    // Writes the scores of all cells of the pages: an fma chain over h ascending, from 0, of weights[h] *
    // max(q_h . k, 0), where q_h . k is a chain as in step 1; without weights, q_h . k itself. Cells after the end of the sequence get any value.
    // scratch: index_scratch() floats, aligned to 64 bytes.
    void (*index_scores)(const IndexTile &tile, float *scratch) noexcept;
};

const AttentionKernels &attention_scalar();
const AttentionKernels *attention_avx2();  // null if the CPU lacks it (cpu_has_avx2() in vector.h)
const AttentionKernels *attention_avx512();
const AttentionKernels &attention_best();

// Floats of scratch for tiles of up to tokens * heads = `rows` rows.
size_t attention_scratch(int32_t head_dim_k, int32_t head_dim_v, int32_t rows);

// Floats of scratch for index_scores().
size_t index_scratch(int32_t head_dim);

// Number of tokens per tile for prefill: the tile's rows stay in the CPU cache, and each page is converted only once.
int32_t attention_tile_tokens(int32_t heads);

// The number of ranges visible to any row of the tile: one of sink cells, if there are any, then one per kRangeCells.
int32_t range_count(const AttentionTile &tile);

// Floats of the partial results of one range.
size_t attention_partial(const AttentionTile &tile);

// Multiplies each head, in place, by the Hadamard matrix of rotates_keys() (backend.h): sums and differences
// of elements 1, 2, 4, ... apart, then a division by the square root of the power of two.
void rotate_heads(float *heads, int32_t count, int32_t head_dim) noexcept;

}  // namespace runnel::kernels::cpu
