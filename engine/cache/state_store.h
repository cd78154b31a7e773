// The states of recurrent layers: which state slots are free, and the text position of the others. Handles
// ids only; the bytes live on the device (kernels/backend.h).
//
// Unlike K and V, a state cannot be truncated: to go back to a position, the state there must have been kept,
// or is computed again from an earlier one. Kept states (checkpoints) are at block boundaries and are found
// by the keys of blocks (prefix_index.h), so undo, edits, other sequences with the same text and preempted
// sequences all continue from the nearest one. When slots run out, a checkpoint is evicted that was not used for
// long and that saves few tokens: the one with the largest age / (tokens since the checkpoint before it). So
// the checkpoints of a text get sparser with the distance from its end. The first ones age more slowly, because a
// changed system prompt or first message, or another conversation that begins alike, continues from there.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/cache/block_pool.h"
#include "engine/cache/prefix_index.h"

namespace runnel::cache {

using kernels::kNoState;
using kernels::StateId;

// Tokens between checkpoints: while slots are available, at most this many are
// computed again after a truncation.
inline constexpr int32_t kStateInterval = 256;
// States are kept after each of the first drafts of a step, up to this many. If more drafts are accepted before
// one is rejected, the further ones are computed again.
inline constexpr int32_t kGuessStates = 8;

// A position of a text, and the slot that keeps the state there.
struct Checkpoint {
    int32_t position = 0;  // tokens of the text before it
    StateId slot = kNoState;
};

class StateStore {
  public:
    // reserved: slots that only the last state of a step may take.
    StateStore(int32_t slots, int32_t reserved) : pool_(slots), reserved_(reserved) {}

    BlockPool &pool() { return pool_; }
    const BlockPool &pool() const { return pool_; }

    // The checkpoint after the block with this key and text, or kNoState.
    StateId find(BlockKey key, std::span<const int32_t> tokens) const;
    void touch(BlockKey key);  // marks it as just used, if it exists
    // Keeps a slot as the checkpoint of that key, unless one exists. Precondition: it is held and not kept.
    // `before`: the checkpoint before it in the same text, if any.
    void keep(BlockKey key, std::span<const int32_t> tokens, Checkpoint checkpoint, Checkpoint before);

    // Takes a slot, evicting a checkpoint if necessary; kNoState if all are held. With `spare`, only while
    // more than the reserved slots are available.
    StateId take(bool spare);
    bool can_take(int32_t count) const { return pool_.free_blocks() + pool_.idle_blocks() >= count; }

  private:
    struct Entry {
        std::array<int32_t, kBlockTokens> tokens;
        Checkpoint checkpoint;
        Checkpoint before;  // the one from which this state would be computed again
        int64_t used;       // value of clock_ at the last use
    };
    double eviction_score(const Entry &entry) const;
    struct Hash {
        size_t operator()(const BlockKey &key) const { return static_cast<size_t>(key.low); }
    };
    bool evict();

    BlockPool pool_;
    int32_t reserved_;
    int64_t clock_ = 0;  // number of checkpoints kept or used so far
    std::unordered_map<BlockKey, Entry, Hash> entries_;
};

// The states that one sequence holds: after its last cell, and after drafts until they are
// verified.
class SequenceStates {
  public:
    SequenceStates() = default;  // of a program without recurrent layers
    explicit SequenceStates(StateStore &store) : store_(&store) {}
    ~SequenceStates() { truncate(0); }
    SequenceStates(const SequenceStates &) = delete;
    SequenceStates &operator=(const SequenceStates &) = delete;
    SequenceStates(SequenceStates &&other) noexcept;
    SequenceStates &operator=(SequenceStates &&other) noexcept;
    SequenceStates fork() const;

    struct Held {
        int32_t position;
        StateId slot;
        bool checkpoint;  // to be kept once the tokens are verified
    };
    StateStore *store() const { return store_; }
    std::span<const Held> held() const { return held_; }
    StateId last() const { return held_.empty() ? kNoState : held_.back().slot; }

    // Takes over a slot that the caller holds; its position is the last one.
    void add(Held held) { held_.push_back(held); }
    void truncate(int32_t length);       // releases the states after `length` cells
    void forget_before(int32_t length);  // releases all before the last state at or before `length`

  private:
    StateStore *store_ = nullptr;
    std::vector<Held> held_;  // ascending positions
};

}  // namespace runnel::cache
