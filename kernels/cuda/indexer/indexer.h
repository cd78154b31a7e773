// Indexers (kernels::Indexer in attention_steps.h): which cells a token attends to.
//
// The keys of an indexer are a layer of the cache with one head, always F16 and rotated by the Hadamard matrix;
// attention_append_kernel() writes them. Then three kernels:
//   1. queries: RoPE and rotation of every head of q, in place, in float32 (attention.h, step 1);
//   2. scores of the tokens that see more than all_cells cells, for their cells up to the token's own. q is rounded to
//      binary16, and d_h = q_h . k by mma over the dimensions in blocks of 32. With weights, lane t of the four that share a
//      cell adds the heads 2 t and 2 t + 1 of each group of 8, in ascending order: s_t = fma(weights[h], max(d_h, 0), s_t),
//      from 0; the score is (s_0 + s_1) + (s_2 + s_3). Without, each head has the score d_h;
//   3. choice: the largest score of each block (pooled: that of its last cell), which takes the place of the cells' scores;
//      then the `local` newest blocks and of the others those with the largest scores, together top_k, the lower block among
//      equals, in ascending order; NaN is below all numbers, and -0 equals 0. Pooled: top_k - 1 of the whole blocks, and the
//      unfinished one. A token with at most all_cells cells chooses all. -1 follows.
// A score depends on its token and cell alone, so a choice does not depend on the batch, the turns or the order of pages.
// The CPU multiplies q in float32: cells whose scores differ by less than the rounding of q may be chosen on one device
// and not on the other.
//
// The scores of a launch are for one turn of tokens with up to kIndexTurn lists, so that they fit into a buffer of fixed size.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/cache_pages.h"
#include "kernels/cuda/runtime/kernel.h"

namespace runnel::kernels::cuda {

inline constexpr int32_t kIndexTurn = 64;      // lists
inline constexpr int32_t kMostIndexKey = 128;  // dimensions, a multiple of 8

struct IndexQueriesParams {
    float *q;                  // [token][stride]: heads side by side
    const int32_t *positions;  // [token]
    int64_t stride;
    RopeParams rope;
    int32_t tokens, heads, dim;
};
// One warp per head, any grid. Bytes per head: 8 dim.
Kernel<IndexQueriesParams> index_queries_kernel();
size_t index_queries_shared();

struct IndexParams {
    const float *q;        // [token][stride], after index_queries_kernel(); 16-byte aligned rows
    const float *weights;  // [token][stride], or null
    int64_t q_stride, weights_stride;
    CachePages keys;
    const SequenceInfo *sequences;  // [*sequence_count]
    const int32_t *sequence_count;
    const int32_t *tables;  // [sequence][table_stride]: blocks
    int64_t table_stride;
    float *scores;  // of list l of token `first + i` and cell c: scores[(i * lists + l) * scores_stride + c]
    int64_t scores_stride;
    float *chosen;  // [token][chosen_stride], lists * top_k are written
    int64_t chosen_stride;
    int32_t heads, top_k;
    int32_t first, end;  // the tokens of the turn
    int32_t lists = 1;   // without weights: heads
    int32_t block = 1, local = 0;
    bool pooled = false;
    int32_t all_cells;  // Indexer::all_cells()
};

// Any grid. A block computes the scores of 256 cells for up to 4 tokens of a sequence. Per item: 512 dim bytes of keys read
// once, and 4 dim bytes of q per token and head, mostly from L2; 2 (dim / 16) (heads / 8) mma of 16x8x16 per warp and token.
Kernel<IndexParams> index_scores_kernel();
size_t index_scores_shared();

// One block per list of the turn, any grid. Reads the scores of the blocks six times: four times to find the least chosen
// one, a byte at a time, then to count and to write. At 128k cells in blocks of one that is 3 MB from L2 by one block.
Kernel<IndexParams> index_choice_kernel();
size_t index_choice_shared();

}  // namespace runnel::kernels::cuda
