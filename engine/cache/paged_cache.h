// The cache of one program: a pool of blocks per group of layers, the sequences that hold them, and the index
// that lets sequences share what they have in common. Knows tokens and blocks, not bytes.
//
// Everything that shares is an operation on tables: fork() gives a second sequence the blocks of the first,
// attach() those that any other sequence filled with the same text, and a block is copied only when one of
// several writes into it. Full blocks are published by text; blocks nobody holds are reused, the one that
// was not used for the longest time first.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/cache/prefix_index.h"
#include "engine/cache/sequence.h"

namespace runnel::cache {

struct GroupLayout {
    int32_t blocks;  // of the pool
    Reach reach{};
};

// The cells of one sequence: a block table per group of layers, and the tokens they stand for. Belongs to one
// PagedCache, which must outlive it.
class SequenceCache {
  public:
    int32_t length() const { return static_cast<int32_t>(tokens_.size()); }
    const std::vector<int32_t> &tokens() const { return tokens_; }
    std::span<const BlockId> table(size_t group) const { return groups_[group].table(); }
    // Blocks of the group that growing to `length` cells, in steps of up to `batch`, takes from the pool.
    int32_t blocks_to_hold(size_t group, int32_t length, int32_t batch) const {
        return groups_[group].blocks_to_hold(length, batch);
    }

    // False where blocks that a token in cell `length` sees have left a window: what is behind `length` can
    // then only be had by computing the sequence again. Precondition: 0 <= length <= length().
    bool can_truncate(int32_t length) const;
    // Keeps the first `length` cells. Precondition: can_truncate(length), which 0 always is.
    void truncate(int32_t length);

  private:
    friend class PagedCache;
    std::vector<Sequence> groups_;
    std::vector<int32_t> tokens_;
    std::vector<BlockKey> keys_;  // of the full blocks that are published
};

using HeldBlocks = std::vector<std::vector<bool>>;  // [group][block]

struct CacheStatistics {
    int64_t reused_tokens = 0;  // that attach() found
    int64_t copied_blocks = 0;  // on write
    int64_t evicted_blocks = 0;
};

class PagedCache {
  public:
    // root: the key that begins every chain; sequences of caches with different roots have nothing in common.
    PagedCache(std::span<const GroupLayout> groups, int32_t slack, BlockKey root);

    size_t groups() const { return pools_.size(); }
    const BlockPool &pool(size_t group) const { return *pools_[group]; }
    const CacheStatistics &statistics() const { return statistics_; }

    SequenceCache new_sequence();
    // The same tokens in the same blocks.
    SequenceCache fork(const SequenceCache &sequence);

    // Continues a sequence, possibly empty, of which `tokens` is a continuation, with the longest piece that
    // the cache knows, up to the end of a block, but not with all of `tokens`: one is left to compute, so
    // that there are logits. Returns by how many cells it grew.
    int32_t attach(SequenceCache &sequence, std::span<const int32_t> tokens);

    // Makes room for tokens, of which the caller then computes K and V. copies[group]: to be executed before
    // anything is written, appended to. False, and the sequence has its cells as before, when there are not
    // enough blocks.
    [[nodiscard]] bool grow(SequenceCache &sequence, std::span<const int32_t> tokens,
                            std::span<std::vector<kernels::BlockCopy>> copies);

    // A sequence of `tokens`, whole blocks, with blocks of its own where `held` says so, for the caller to
    // fill and publish. nullopt if there is no room.
    std::optional<SequenceCache> allocate(std::span<const int32_t> tokens, const HeldBlocks &held);

    // K and V of all cells are there: full blocks of the first `length` ones may be shared from now on. Of
    // blocks with the same text, one is enough: the sequence's own goes where another one is known. Cells
    // that may soon be rolled back are better left out: a block that is known is copied before it is written
    // again.
    void publish(SequenceCache &sequence, int32_t length);
    void publish(SequenceCache &sequence) { publish(sequence, sequence.length()); }

  private:
    bool make_free(size_t group, int32_t blocks);
    void touch(const SequenceCache &sequence);

    int32_t slack_;
    BlockKey root_;
    std::vector<Reach> reaches_;
    std::vector<std::unique_ptr<BlockPool>> pools_;  // sequences point at them
    std::vector<PrefixIndex> indices_;
    CacheStatistics statistics_;
};

}  // namespace runnel::cache
