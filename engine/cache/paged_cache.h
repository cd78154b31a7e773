// The cache of one program: a pool of blocks per layer group, the sequences that hold them, and the prefix
// index that lets sequences share blocks. Handles tokens and block ids, not bytes.
//
// Sharing is an operation on block tables: fork() gives a second sequence the blocks of the first, attach()
// the blocks that any sequence filled with the same text, and a block is copied only on a write to a shared
// one (copy-on-write). Full blocks are published by their text; blocks without a holder are evicted, the
// least recently used first. Recurrent layers have states instead of blocks (state_store.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/cache/block_table.h"
#include "engine/cache/prefix_index.h"
#include "engine/cache/state_store.h"

namespace runnel::cache {

struct GroupLayout {
    int32_t blocks;  // in the pool
    Reach reach{};
    int32_t shares = 1;  // devices that hold the blocks (block_pool.h); above 1 only without a window
};

// The cells of one sequence: a block table per layer group, and the cells' tokens. Belongs to one
// PagedCache, which must outlive it.
class SequenceCache {
  public:
    int32_t length() const { return static_cast<int32_t>(tokens_.size()); }
    const std::vector<int32_t> &tokens() const { return tokens_; }
    std::span<const BlockId> table(size_t group) const { return groups_[group].table(); }
    // Blocks that growing to `length` cells, in steps of up to `batch`, takes from the group's pool.
    int32_t blocks_to_hold(size_t group, int32_t length, int32_t batch) const {
        return groups_[group].blocks_to_hold(length, batch);
    }

    // The most cells, up to `length`, that truncate() can keep. Fewer than `length` if a recurrent layer has
    // no state there; 0 if blocks in the window of a token at `length` were released. The caller must compute
    // the cells after them again. Precondition: 0 <= length <= length().
    int32_t truncatable(int32_t length) const;
    // Keeps the first `length` cells. Precondition: truncatable(length) == length (always true for 0).
    void truncate(int32_t length);

    // The state after the last cell; kNoState without recurrent layers, or without cells.
    StateId state() const { return states_.last(); }
    bool has_states() const { return states_.store() != nullptr; }
    // State slots needed to compute more of the sequence.
    int32_t states_to_hold() const { return !has_states() ? 0 : states_.held().empty() ? 2 : 1; }
    // The last position within the first `length` cells before which all blocks are published and, with
    // recurrent layers, a checkpoint is kept. {0, kNoState} if there is none.
    Checkpoint checkpoint(int32_t length) const;

  private:
    friend class PagedCache;
    std::vector<BlockTable> groups_;
    SequenceStates states_;
    int32_t wanted_checkpoint_ = 0;  // where attach() found cached blocks but no state: save one there
    std::vector<int32_t> tokens_;
    std::vector<BlockKey> keys_;  // of the published full blocks
};

using HeldBlocks = std::vector<std::vector<bool>>;  // [group][block]

struct CacheStatistics {
    int64_t reused_tokens = 0;  // found by attach()
    int64_t copied_blocks = 0;  // on write
    int64_t evicted_blocks = 0;
};

// Slots for the states of recurrent layers; none without such layers.
struct StateLayout {
    int32_t slots = 0;
    int32_t sequences = 0;  // how many grow at the same time: one slot is reserved for each
};

// How a step uses the states of a sequence: fields of kernels::SequenceSpan.
struct StateStep {
    StateId read = kNoState;
    std::vector<kernels::StateWrite> writes;
};

class PagedCache {
  public:
    // root: the key that begins every chain. Caches with different roots share nothing.
    PagedCache(std::span<const GroupLayout> groups, int32_t slack, BlockKey root, StateLayout states = {});

    size_t groups() const { return pools_.size(); }
    const BlockPool &pool(size_t group) const { return *pools_[group]; }
    const BlockPool *states() const { return states_ ? &states_->pool() : nullptr; }  // null: none
    const CacheStatistics &statistics() const { return statistics_; }
    // Whether a token in cell `length` or after it attends to a cell of the block.
    bool is_seen(size_t group, int32_t block, int32_t length) const;

    SequenceCache new_sequence();
    // Returns a second sequence with the same tokens in the same blocks.
    SequenceCache fork(const SequenceCache &sequence);

    // Extends a sequence (possibly empty), a prefix of `tokens`, by the longest cached continuation that
    // ends at a block boundary. At least one token is left to compute, so that there are logits. Returns
    // the number of added cells.
    int32_t attach(SequenceCache &sequence, std::span<const int32_t> tokens);

    // Adds cells for tokens, whose K and V the caller then computes. copies[group]: appended block copies, to
    // be executed before the cells are written. Returns false, with the sequence's cells unchanged, if there
    // are not enough blocks. guesses: how many of the tokens are drafts, which may be rolled back. states:
    // receives the states to read and write, if there are recurrent layers.
    [[nodiscard]] bool grow(SequenceCache &sequence, std::span<const int32_t> tokens,
                            std::span<std::vector<kernels::BlockCopy>> copies, int32_t guesses = 0,
                            StateStep *states = nullptr);

    // Returns a sequence of `tokens` (whole blocks) with its own blocks where `held` is true, and a state.
    // The caller fills and publishes them. nullopt if the pool is too small.
    std::optional<SequenceCache> allocate(std::span<const int32_t> tokens, const HeldBlocks &held);

    // To be called when K and V of the cells are computed: shares the full blocks among the first
    // `length` cells from now on. If a block with the same text is already known, the sequence uses that
    // one and releases its own. Do not publish cells that may be rolled back: a published block is copied
    // before it is written again.
    void publish(SequenceCache &sequence, int32_t length);
    void publish(SequenceCache &sequence) { publish(sequence, sequence.length()); }

  private:
    size_t usable(const SequenceCache &sequence, std::span<const std::vector<BlockId>> found,
                  size_t blocks) const;
    void publish_blocks(SequenceCache &sequence, int32_t length);
    void settle_states(SequenceCache &sequence, int32_t length);
    void grow_states(SequenceCache &sequence, int32_t count, int32_t guesses, StateStep &step);
    bool make_free(size_t group, const BlockTable::Growth &growth);
    void touch(const SequenceCache &sequence);

    int32_t slack_;
    BlockKey root_;
    std::vector<Reach> reaches_;
    std::vector<std::unique_ptr<BlockPool>> pools_;  // stable addresses: sequences point to them
    std::vector<PrefixIndex> indices_;
    std::unique_ptr<StateStore> states_;  // null: no recurrent layers
    CacheStatistics statistics_;
};

}  // namespace runnel::cache
