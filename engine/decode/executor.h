// A program on a device with a paged cache: the one place that runs batches. Knows tokens, not text.
//
// A step takes any number of sequences, each with any number of tokens: a chunk of a prompt, one token of a
// running sequence, several drafts to verify. A scheduler fills a step; a Session is a scheduler of one.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/cache/block_pool.h"
#include "engine/text/token.h"
#include "kernels/backend.h"

namespace runnel::decode {

using text::TokenId;

// How much of the model's context there is memory for.
struct ContextPlan {
    int32_t context;     // cells of one sequence
    bool reduced;        // less than the model was made for, for want of memory
    size_t cache_bytes;  // of that context
};

// Bytes of cache for `cells` cells, rounded up to whole blocks.
size_t cache_bytes(const kernels::Program &program, int64_t cells);

// Bytes of all weights that the program reads.
size_t weight_bytes(const kernels::Program &program);

// asked: cells, or 0: `own`, the context the model was made for, reduced to what fits beside the weights in
// the device's free memory. Throws DecodeError{OutOfMemory} with the numbers when `asked` does not fit, or
// when there is no room for a context at all.
ContextPlan plan_context(const kernels::Program &program, const kernels::DeviceInfo &device, int64_t asked,
                         int64_t own);

// The cells of one sequence: a block table per group of layers. Belongs to one Executor.
class SequenceCache {
  public:
    int32_t length() const { return groups_.empty() ? length_ : groups_.front().length(); }
    // Keeps the first `length` cells. Precondition: 0 <= length <= length().
    void truncate(int32_t length);

  private:
    friend class Executor;
    std::vector<cache::Sequence> groups_;
    int32_t length_ = 0;  // of programs without attention
};

// The tokens that one sequence brings to a step; they go to the cells from cache->length() on.
struct StepInput {
    SequenceCache *cache;
    std::span<const TokenId> tokens;  // at least one
    int32_t logit_rows = 1;           // logits are wanted for the last so many tokens
};

struct ExecutorOptions {
    int32_t context;        // cells per sequence
    int32_t batch = 512;    // most tokens of a step
    int32_t sequences = 1;  // that exist at the same time
};

class Executor {
  public:
    // Loads the program onto the device. The weights' bytes must stay mapped. Throws BackendError.
    Executor(std::unique_ptr<kernels::Backend> backend, const kernels::Program &program,
             const ExecutorOptions &options);

    SequenceCache new_sequence();

    // Runs one step. `logits` becomes [sum of logit_rows][vocab()], in the order of the inputs. Returns
    // false, with the caches as they were before, when *cancel became true. Exceptions leave the caches as
    // they were: DecodeError{OutOfMemory} when the pool has no blocks left, DecodeError{BadInput} for a token
    // id that is not in the vocabulary, BackendError. Precondition: the tokens of all inputs together are at
    // most batch_size(), and no sequence grows beyond context().
    bool step(std::span<const StepInput> inputs, std::vector<float> &logits,
              const std::atomic<bool> *cancel = nullptr);

    int32_t context() const { return options_.context; }
    int32_t batch_size() const { return options_.batch; }
    int32_t vocab() const { return vocab_; }
    kernels::DeviceInfo device() const { return backend_->info(); }

  private:
    bool execute(std::span<const StepInput> inputs, std::span<float> logits, const std::atomic<bool> *cancel);

    std::unique_ptr<kernels::Backend> backend_;
    ExecutorOptions options_;
    int32_t vocab_;
    int32_t token_ids_;                                     // rows of the embedding table
    std::vector<std::unique_ptr<cache::BlockPool>> pools_;  // per group; sequences point at them
    std::vector<int32_t> tokens_, positions_, rows_;        // of the step at hand
    std::vector<kernels::SequenceSpan> spans_;
};

}  // namespace runnel::decode
