// What the devices that divide a cache group do for a batch: lists, which are the same on all of them but for whose is whose.
// See divided_attention.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace runnel::kernels::cuda {

// A cache group, of which each of `ranks` devices has `blocks` blocks (CacheConfig::shares).
struct DividedGroup {
    int32_t group = 0, ranks = 1, rank = 0, blocks = 0;
    int64_t room = 0;  // tokens times splits whose partial results fit in memory at a time
    int32_t rank_of(BlockId block) const { return block / blocks; }
};

// Most tokens of a sequence whose partial results are exchanged; with more, keys and values are.
inline constexpr int32_t kFewTokens = 16;

struct DividedBatch {
    // Sequences with few tokens whose partial results fit in memory together. Offsets are in the words below.
    struct Round {
        size_t held, divided, places;    // HeldSplit[], DividedSequence[], int32_t[]
        int32_t held_splits, sequences;  // the numbers of the first two
        int32_t most_tokens;             // of a sequence
        std::vector<int64_t> ends;       // by rank: the end of its places
    };
    // Tokens for which a rank attends.
    struct Run {
        int32_t rank, first, count;
    };
    std::vector<Round> rounds;
    // The sequences with many tokens: SequenceInfo of all sequences, with zeros for the others.
    size_t whole = 0;  // with all tokens
    size_t own = 0;    // with those for which this rank attends, if the ranks divide the tokens
    int32_t many_tokens = 0;
    std::vector<Run> runs;           // adjacent tokens of these sequences; rank is 0
    std::vector<Run> own_runs;       // if the ranks divide the tokens: of all ranks, in their order
    size_t pages = 0;                // BlockId[]: the blocks of these sequences, each once, by rank
    std::vector<int32_t> page_ends;  // by rank
};

// Appends the lists to `words`, which are copied to the device as they are.
DividedBatch divide_batch(const DividedGroup &group, const Batch &batch, std::vector<int32_t> &words);

}  // namespace runnel::kernels::cuda
