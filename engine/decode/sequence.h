// One sequence of tokens and its cache. The cache may lag behind the tokens: a Scheduler computes what is
// missing, from a prompt's first chunk to the one token of a running answer, and again after an eviction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/decode/executor.h"

namespace runnel::decode {

class Sequence {
  public:
    explicit Sequence(Executor &executor) : executor_(&executor), cache_(executor.new_sequence()) {}

    // Appends tokens to be computed. Throws DecodeError{BadInput} if they exceed free_cells(); the sequence is
    // then unchanged.
    void append(std::span<const TokenId> tokens);

    // Keeps the first `length` tokens. What the cache cannot keep of them (SequenceCache::truncatable) is
    // computed again, with the same result. Precondition: length <= tokens().size().
    void truncate(size_t length);

    // Replaces everything after the first `from` tokens by `tokens`; `cache` holds the resulting sequence.
    void replace(size_t from, std::span<const TokenId> tokens, SequenceCache cache);

    // Drops the older half of what follows the first `keeping` tokens. The newer half is computed again,
    // since its keys and values depended on the dropped tokens. Returns how many tokens were dropped: 0 if
    // fewer than two follow.
    size_t shift_context(size_t keeping);

    // Becomes the longest prefix of `wanted` that this sequence begins with or that the prefix cache
    // holds. At least the last token of `wanted` is left to append, so that its logits are
    // computed. Returns the length.
    size_t reuse(std::span<const TokenId> wanted);

    // A second sequence of the same tokens, in the same blocks.
    Sequence fork() const;

    // Gives the blocks back and keeps the tokens: the next pass computes them again.
    void evict() { cache_.truncate(0); }

    const std::vector<TokenId> &tokens() const { return tokens_; }
    // Tokens that are not in the cache.
    size_t pending() const { return tokens_.size() - static_cast<size_t>(cache_.length()); }
    size_t free_cells() const { return static_cast<size_t>(executor_->context()) - tokens_.size(); }
    const SequenceCache &cache() const { return cache_; }
    SequenceCache &cache() { return cache_; }
    Executor &executor() const { return *executor_; }

  private:
    Executor *executor_;
    SequenceCache cache_;
    std::vector<TokenId> tokens_;
};

}  // namespace runnel::decode
