// The states of recurrent layers: which state slots are free, which position of which text the others hold.
// Only ids are handled here; the bytes live on the device (kernels/backend.h).
//
// A state cannot be cut as K and V can: going back to a position means to have kept the state there, or to
// compute again from an earlier one. Kept states (checkpoints) stand behind whole blocks and are found by the
// same keys as blocks (prefix_index.h), so that undo, edits, other sequences with the same text and sequences
// that were preempted all continue from the nearest one. When slots run out, the checkpoint with the largest
// age / spacing goes: those of one text thin out the further back they are.
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

// Every so many tokens a checkpoint is made: whatever is cut, at most this much is computed again as long as
// the slots last.
inline constexpr int32_t kStateInterval = 256;
// Of the guesses in a step, the state behind this many of the first is kept: if more are accepted and then
// one is rejected, they are computed again.
inline constexpr int32_t kGuessStates = 8;

class StateStore {
  public:
    // reserved: slots that only a step's last state may take.
    StateStore(int32_t slots, int32_t reserved) : pool_(slots), reserved_(reserved) {}

    BlockPool &pool() { return pool_; }
    const BlockPool &pool() const { return pool_; }

    // The checkpoint behind the block of this key and text, or kNoState.
    StateId find(BlockKey key, std::span<const int32_t> tokens) const;
    void touch(BlockKey key);  // it was used just now, if it is there
    // Keeps a slot as that checkpoint, unless there is one. Precondition: it is held and not kept.
    void keep(BlockKey key, std::span<const int32_t> tokens, int32_t position, StateId slot);

    // A slot, for which a checkpoint may have to go; kNoState when all are held. With `spare`, only while more
    // than the reserved ones can be had.
    StateId take(bool spare);
    bool can_take(int32_t count) const { return pool_.free_blocks() + pool_.idle_blocks() >= count; }

  private:
    struct Entry {
        std::array<int32_t, kBlockTokens> tokens;
        int32_t position;
        StateId slot;
        int64_t used;  // clock_ then
    };
    struct Hash {
        size_t operator()(const BlockKey &key) const { return static_cast<size_t>(key.low); }
    };
    bool evict();

    BlockPool pool_;
    int32_t reserved_;
    int64_t clock_ = 0;  // checkpoints kept or used so far
    std::unordered_map<BlockKey, Entry, Hash> entries_;
};

// The states that one sequence holds: the one behind its last cell, and behind its guesses until they are
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
        bool checkpoint;  // to be kept once the tokens are settled
    };
    StateStore *store() const { return store_; }
    std::span<const Held> held() const { return held_; }
    StateId last() const { return held_.empty() ? kNoState : held_.back().slot; }

    // Takes over a slot that the caller holds, behind all others.
    void add(Held held) { held_.push_back(held); }
    void truncate(int32_t length);       // releases those behind `length` cells
    void forget_before(int32_t length);  // releases all that stand before the last one at or before `length`

  private:
    StateStore *store_ = nullptr;
    std::vector<Held> held_;  // ascending positions
};

}  // namespace runnel::cache
