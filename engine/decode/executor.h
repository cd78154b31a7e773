// A program on a device with a paged cache: the one place that runs batches. Knows tokens, not text.
//
// A step takes any number of sequences, each with any number of tokens: a chunk of a prompt, one token of a
// running sequence, several drafts to verify. The Scheduler fills steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/cache/paged_cache.h"
#include "engine/decode/cache_plan.h"
#include "engine/text/token.h"
#include "kernels/backend.h"

namespace runnel::decode {

using text::TokenId;

// The cells of one sequence. Belongs to one Executor, which must outlive it.
using SequenceCache = cache::SequenceCache;

// Free blocks (evictable ones included) of each group's pool, then state slots if there are recurrent layers:
// for a caller that plans ahead.
using FreeBlocks = std::vector<int32_t>;

// The tokens that one sequence brings to a step; they go to the cells from cache->length() on.
struct StepInput {
    SequenceCache *cache;
    std::span<const TokenId> tokens;  // at least one
    int32_t logit_rows = 1;           // number of last tokens that get a row of logits
    // The tokens with a row, except the first, may be drafts: their cells are not shared yet.
    // For a draft branch: its first `shared` tokens (fewer than all) are those from index `shared_from` of
    // the step being built. They are not computed again. Other sequences do not share the branch's cells yet.
    int32_t shared = 0, shared_from = 0;
    // How many of the largest logits are enough for each row; 0: full rows are needed.
    int32_t candidates = 0;
};

// The rows of a step: either full rows, or (`logits` is then unchanged) the largest logits of each row.
struct StepOutput {
    std::vector<float> logits;                  // [rows][vocab]
    std::vector<kernels::TopLogit> candidates;  // [rows][count], descending; empty: full rows
    std::vector<float>
        sums;  // [rows], of exp(logit - largest) over the row or its mask; empty for one candidate
    std::vector<bool> masked;  // [rows], whether the candidates are those of a mask; empty: none are
};

struct ExecutorOptions {
    int32_t context;        // most cells of a sequence
    int32_t batch = 512;    // most tokens of a step
    int32_t sequences = 1;  // that share the pool
    int64_t cells = 0;      // in the pool, at least one context; 0: context * sequences
    int32_t slack = 256;    // cells beyond a window (CacheShape in cache_plan.h)
    CacheTypes types = {};
    int32_t kept = 0;   // CacheShape::kept
    int32_t ranks = 1;  // CacheShape::ranks
};

// What Executor::restore() reads: each block that `held` names and a later token needs, in two threads, then the state of
// recurrent layers. They fill `bytes`; false: that cannot be had.
struct SavedBlocks {
    std::function<bool(size_t group, size_t block, std::span<std::byte> bytes)> read_block;
    std::function<bool(std::span<std::byte> bytes)> read_state;
};

class Executor {
  public:
    // Loads the program onto the device. The weights' bytes must stay mapped. Throws BackendError.
    Executor(std::unique_ptr<kernels::Backend> backend, const kernels::Program &program,
             const ExecutorOptions &options);

    SequenceCache new_sequence() { return cache_.new_sequence(); }
    // A second sequence with the same cells, in the same blocks: a block is copied when one of them writes.
    SequenceCache fork(const SequenceCache &sequence) { return cache_.fork(sequence); }
    // Extends a sequence with cached blocks of the same tokens, whichever sequence computed them: see
    // PagedCache::attach. Returns the number of cells added.
    int32_t attach(SequenceCache &sequence, std::span<const TokenId> tokens) {
        return cache_.attach(sequence, tokens);
    }
    const cache::PagedCache &cache() const { return cache_; }

    // For prompt files: read_block() copies the bytes of a block; restore() puts saved blocks of `tokens`
    // (whole blocks) into the cache, where attach() finds them from then on. It returns false, and the cache stays as
    // it was, if there is no room or `saved` cannot read.
    size_t block_bytes(size_t group) const { return block_bytes_[group]; }
    void read_block(size_t group, cache::BlockId block, std::span<std::byte> bytes);
    bool restore(std::span<const TokenId> tokens, const cache::HeldBlocks &held, const SavedBlocks &saved);
    // The state of recurrent layers after those tokens, for prompt files; 0 bytes without such layers.
    size_t state_bytes() const { return state_bytes_; }
    void read_state(kernels::StateId slot, std::span<std::byte> bytes);

    // A step is built of inputs, then run. add() takes the blocks that the input needs; false, and nothing
    // changes, when the pool has too few. Throws DecodeError{BadInput} for a token id that is not in the
    // vocabulary. The cache must stay where it is, and keep its length, until run() or discard().
    // Preconditions: the tokens of all inputs that are not shared are together at most batch_size(), no
    // sequence grows beyond context() or occurs twice, shared tokens are in the same cells in both
    // sequences.
    [[nodiscard]] bool add(const StepInput &input);
    int32_t step_tokens() const { return static_cast<int32_t>(tokens_.size()); }  // of the step being built
    // Runs the step that was built (not an empty one). `logits` becomes [sum of logit_rows][vocab()], in the
    // order of the inputs. Returns false when *cancel became true; the caches are then as they were before
    // add(), also when BackendError is thrown.
    bool run(std::vector<float> &logits, const std::atomic<bool> *cancel = nullptr);
    // Runs the step, but returns only the largest logits of each row if all inputs have candidates > 0 and
    // the device can select (selects()): as many as the largest `candidates` of an input, at most
    // most_candidates(); of a row with a mask only tokens of the mask. `masks`: as in kernels::Batch.
    bool run(StepOutput &output, const std::atomic<bool> *cancel = nullptr,
             std::span<const kernels::TokenMask> masks = {});
    bool selects() const { return candidates_ > 0 && most_candidates() > 0; }
    // The most candidates per row that the device can select; 0: it cannot.
    int32_t most_candidates() const { return backend_->most_candidates(); }
    // Reads a whole row of the step that was run last.
    void read_logits(int32_t row, std::span<float> logits) { backend_->read_logits(row, logits); }
    // Drops the step being built; the caches are as they were before it.
    void discard();

    // Builds and runs a step of these inputs. Throws what add() and run() throw, and DecodeError{OutOfMemory}
    // when the pool has no blocks left; the caches are then as they were.
    bool step(std::span<const StepInput> inputs, std::vector<float> &logits,
              const std::atomic<bool> *cancel = nullptr);

    FreeBlocks free_blocks() const;
    // Takes from `free` the blocks that growing `cache` to `length` cells (at most context()) needs. False
    // when there are too few; `free` is then undefined.
    [[nodiscard]] bool claim(FreeBlocks &free, const SequenceCache &cache, int64_t length) const;

    int32_t context() const { return options_.context; }
    int64_t cells() const { return options_.cells; }  // of the pool, for layers without a window
    int32_t batch_size() const { return options_.batch; }
    int32_t vocab() const { return vocab_; }
    CacheTypes types() const { return options_.types; }
    // For a second program that reads this one's cache; without pools if the device has none to share.
    kernels::CacheConfig shared_cache() const;
    kernels::DeviceInfo device() const { return backend_->info(); }
    std::string gather_note() const { return backend_->gather_note(); }
    int64_t launches() const { return backend_->launches(); }
    kernels::ExpertTraffic expert_traffic() const { return backend_->expert_traffic(); }

  private:
    struct Grown {
        SequenceCache *cache;
        int32_t before;   // its length before the step
        int32_t settled;  // its length after the step, without drafts
    };
    // A block of a text to be restored: its number within the text, and in the cache.
    struct Place {
        size_t group, index;
        cache::BlockId block;
    };
    bool fill_memory(std::span<const Place> places, const SavedBlocks &saved);
    bool fill_device(std::span<const Place> places, const SavedBlocks &saved);
    void begin_step();
    void copy_blocks();
    template <class Execute>
    bool execute(const std::atomic<bool> *cancel, std::span<const kernels::TokenMask> masks,
                 Execute &&on_device);

    std::unique_ptr<kernels::Backend> backend_;
    ExecutorOptions options_;
    kernels::CacheConfig config_;
    int32_t vocab_;
    int32_t token_ids_;  // rows of the embedding table
    cache::PagedCache cache_;
    size_t state_bytes_;
    std::vector<size_t> block_bytes_;                      // per group
    std::vector<std::vector<kernels::BlockCopy>> copies_;  // per group
    // The step being built.
    std::vector<int32_t> tokens_, positions_, rows_;
    std::vector<kernels::SequenceSpan> spans_;
    std::vector<Grown> grown_;
    std::vector<kernels::ExpSum> sums_;
    int32_t candidates_ = 0;  // enough for all rows so far; 0: full rows
};

}  // namespace runnel::decode
