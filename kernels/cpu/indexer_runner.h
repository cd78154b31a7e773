// Runs Indexer steps after AttentionRunner::append(keys_of(step)): scores all cells, then chooses some.
//
// The tokens of a batch take turns, so that their scores fit into a buffer of fixed size. In a turn, a unit of work is
// first a range of cells of one sequence, for all its tokens of the turn, then one list of one token. A score and a choice depend on nothing else in the batch (attention.h).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/pool.h"
#include "kernels/program.h"

namespace runnel::kernels::cpu {

class IndexerRunner {
  public:
    // Owned by the backend; everything here outlives the runner.
    struct Surroundings {
        const Program *program;
        const AttentionKernels *kernels;
        Pool *pool;
        const CacheMemory *cache;
        std::span<const LazyBuffer> slots;
        std::span<const LazyBuffer> scratch;  // the largest scratch_bytes() of the program, per thread
    };

    IndexerRunner() = default;
    // Throws BackendError{OutOfMemory}.
    IndexerRunner(const Surroundings &surroundings, const CacheConfig &cache);

    // Bytes of scratch that a step needs per thread.
    static size_t scratch_bytes(const Indexer &step);

    // Called by all threads, with a barrier after it.
    void run(const Indexer &step, const Batch &batch, int thread) noexcept;

  private:
    struct Piece;
    void score(const Indexer &step, const SequenceSpan &sequence, const Piece &piece, int64_t range,
               int32_t turn, int thread) noexcept;
    void choose(const Indexer &step, int32_t token, int32_t list, int32_t cell, int32_t turn) noexcept;
    int32_t group(const Indexer &step) const {
        return s_.program->cache_layers[static_cast<size_t>(step.cache)].group;
    }
    int64_t width(Slot slot) const { return s_.program->slots[static_cast<size_t>(slot)].width; }
    float *row(Slot slot, int32_t token) const {
        return s_.slots[static_cast<size_t>(slot)].as<float>() + token * width(slot);
    }
    // The scores for a token's first list in the turn that begins with token `turn`. Those for its other lists follow.
    float *scores(const Indexer &step, int32_t token, int32_t turn) const {
        return scores_.as<float>() + int64_t{token - turn} * step.lists() * cells_;
    }

    Surroundings s_{};
    int64_t cells_ = 0;  // the most cells of a sequence
    LazyBuffer scores_;  // [lists of a turn][cells_]
};

// Writes the indices of the `count` largest of the scores, the lower index among equals, in ascending order; if
// there are at most `count`, all. -1 follows, up to chosen[count - 1]. NaN is below all numbers.
void choose_largest(std::span<const float> scores, int32_t count, float *chosen) noexcept;

// Step 5 of Indexer for one list, from the scores of all cells up to the token's own. Overwrites the scores. chosen: [top_k].
void choose_blocks(const Indexer &step, std::span<float> scores, float *chosen) noexcept;

}  // namespace runnel::kernels::cpu
