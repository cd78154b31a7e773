// The cache of one program: a pool of blocks per group of layers, the sequences that hold them, and the index
// that lets sequences share what they have in common. Knows tokens and blocks, not bytes.
//
// Everything that shares is an operation on tables: fork() gives a second sequence the blocks of the first,
// attach() those that any other sequence filled with the same text, and a block is copied only when one of
// several writes into it. Full blocks are published by text; blocks nobody holds are reused, the one that
// was not used for the longest time first. Recurrent layers have states instead of blocks (state_store.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/cache/prefix_index.h"
#include "engine/cache/sequence.h"
#include "engine/cache/state_store.h"

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

    // The most cells, up to `length` of them, that truncate() can keep: fewer where a recurrent layer has no
    // state behind `length` cells, none where blocks that a token there sees have left a window. What is
    // behind them can only be had by computing it again. Precondition: 0 <= length <= length().
    int32_t truncatable(int32_t length) const;
    // Keeps the first `length` cells. Precondition: truncatable(length) == length, as it is for 0.
    void truncate(int32_t length);

    // The state behind the last cell; kNoState without recurrent layers, or without cells.
    StateId state() const { return states_.last(); }
    bool has_states() const { return states_.store() != nullptr; }
    // Slots that it takes to compute more of the sequence.
    int32_t states_to_hold() const { return !has_states() ? 0 : states_.held().empty() ? 2 : 1; }
    // The last of the first `length` cells behind which whole blocks are published and, of recurrent layers,
    // a checkpoint is kept: in `slot`. {0, kNoState} if there is none.
    struct Checkpoint {
        int32_t position;
        StateId slot;
    };
    Checkpoint checkpoint(int32_t length) const;

  private:
    friend class PagedCache;
    std::vector<Sequence> groups_;
    SequenceStates states_;
    int32_t wanted_checkpoint_ = 0;  // where another text with the same beginning went on differently
    std::vector<int32_t> tokens_;
    std::vector<BlockKey> keys_;  // of the full blocks that are published
};

using HeldBlocks = std::vector<std::vector<bool>>;  // [group][block]

struct CacheStatistics {
    int64_t reused_tokens = 0;  // that attach() found
    int64_t copied_blocks = 0;  // on write
    int64_t evicted_blocks = 0;
};

// Slots for states of recurrent layers; none without such layers.
struct StateLayout {
    int32_t slots = 0;
    int32_t sequences = 0;  // that grow at the same time: so many slots are left to them alone
};

// What a step does with the states of a sequence: kernels::SequenceSpan.
struct StateStep {
    StateId read = kNoState;
    std::vector<kernels::StateWrite> writes;
};

class PagedCache {
  public:
    // root: the key that begins every chain; sequences of caches with different roots have nothing in common.
    PagedCache(std::span<const GroupLayout> groups, int32_t slack, BlockKey root, StateLayout states = {});

    size_t groups() const { return pools_.size(); }
    const BlockPool &pool(size_t group) const { return *pools_[group]; }
    const BlockPool *states() const { return states_ ? &states_->pool() : nullptr; }  // null: it has none
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
    // enough blocks. guesses: how many of the tokens may soon be rolled back. states: gets what the step reads
    // and writes, where there are recurrent layers.
    [[nodiscard]] bool grow(SequenceCache &sequence, std::span<const int32_t> tokens,
                            std::span<std::vector<kernels::BlockCopy>> copies, int32_t guesses = 0,
                            StateStep *states = nullptr);

    // A sequence of `tokens`, whole blocks, with blocks of its own where `held` says so, and a state, for the
    // caller to fill and publish. nullopt if there is no room.
    std::optional<SequenceCache> allocate(std::span<const int32_t> tokens, const HeldBlocks &held);

    // K and V of all cells are there: full blocks of the first `length` ones may be shared from now on. Of
    // blocks with the same text, one is enough: the sequence's own goes where another one is known. Cells
    // that may soon be rolled back are better left out: a block that is known is copied before it is written
    // again.
    void publish(SequenceCache &sequence, int32_t length);
    void publish(SequenceCache &sequence) { publish(sequence, sequence.length()); }

  private:
    size_t usable(const SequenceCache &sequence, std::span<const std::vector<BlockId>> found,
                  size_t blocks) const;
    void publish_blocks(SequenceCache &sequence, int32_t length);
    void settle_states(SequenceCache &sequence, int32_t length);
    void grow_states(SequenceCache &sequence, int32_t count, int32_t guesses, StateStep &step);
    bool make_free(size_t group, int32_t blocks);
    void touch(const SequenceCache &sequence);

    int32_t slack_;
    BlockKey root_;
    std::vector<Reach> reaches_;
    std::vector<std::unique_ptr<BlockPool>> pools_;  // sequences point at them
    std::vector<PrefixIndex> indices_;
    std::unique_ptr<StateStore> states_;  // null: no recurrent layers
    CacheStatistics statistics_;
};

}  // namespace runnel::cache
