// Top-1 and top-k selection of logits on the device.
//
// Order: larger logits first, the lower token first among equals; values that are not finite come before all
// others, as NaN, so that the host notices them. A logit and its token form one 64-bit key with this order. All keys
// differ, so results do not depend on the order in which blocks run.
//
// Tokens outside a row's mask come last and get the logit -infinity; a logit that is not finite comes first all
// the same.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/kernel.h"

namespace runnel::kernels::cuda {

// One bit per token of each mask: token t is bit t % 32 of word t / 32. `bits` is null if no row has a mask.
struct RowMasks {
    const uint32_t *bits;   // [masks][stride]
    const int32_t *number;  // [rows]: 1 + the row's mask, or 0: the row has none
    int64_t stride;
};

// --- greedy ----------------------------------------------------------------------------------------------

// first[row] = the first token of row `row` in the order above, and its logit.
// `blocks_per_row` blocks share a row.
struct ArgmaxParams {
    const float *logits;  // [rows][stride]
    int64_t stride;
    int32_t vocab, blocks_per_row;
    uint64_t *best;      // [rows]; zero before and after a launch
    uint32_t *counters;  // [rows], likewise
    TopLogit *first;     // [rows]; may be pinned host memory
    RowMasks masks;
};
Kernel<ArgmaxParams> argmax_kernel();
inline constexpr size_t kArgmaxShared = 8 * sizeof(uint64_t) + 16;

// --- candidates ------------------------------------------------------------------------------------------

inline constexpr int kMaxCandidates = 256;
inline constexpr int kSelectChunk = 4096;  // logits per block of the first pass

// First pass: block (row, chunk) = index / chunks, index % chunks writes the chunk's keys (at most k) and its sum over the
// tokens of the mask. Second pass: one block per row sorts the top k of the row's chunks. k = min(k, vocab)
// candidates per row are written.
struct CandidateParams {
    const float *logits;  // [rows][stride]
    int64_t stride;
    int32_t vocab, chunks, k;  // chunks = ceil(vocab / kSelectChunk), 1 <= k <= kMaxCandidates
    uint64_t *keys;            // [rows][chunks][k], scratch
    ExpSum *partial;           // [rows][chunks], scratch
    TopLogit *candidates;      // [rows][k], sorted; may be pinned host memory
    ExpSum *sums;              // [rows]; may be pinned host memory
    RowMasks masks;
};
Kernel<CandidateParams> candidate_chunk_kernel();
Kernel<CandidateParams> candidate_row_kernel();
size_t candidate_shared();

}  // namespace runnel::kernels::cuda
