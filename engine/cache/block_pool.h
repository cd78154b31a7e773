// The free list of the paged K/V cache: which blocks of one layer group are free, held by sequences, or kept
// for reuse. Handles ids only; the bytes live on the device (kernels/backend.h), or on several, each of which has a share of
// the blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace runnel::cache {

using kernels::BlockId;
using kernels::kBlockTokens;

inline constexpr BlockId kNoBlock = -1;

// Consecutive cells of a sequence that a divided cache keeps on one device.
inline constexpr int32_t kRangeBlocks = kernels::kRangeCells / kBlockTokens;

// A fixed number of blocks, each with a count of the sequences that hold it. A block without holders is free,
// unless it is kept: then it is idle until a sequence with the same text takes it (prefix_index.h).
class BlockPool {
  public:
    // shares: the devices that hold the blocks, each an equal range of the ids. Precondition: it divides `blocks`.
    explicit BlockPool(int32_t blocks, int32_t shares = 1);

    int32_t size() const { return static_cast<int32_t>(states_.size()); }
    int32_t shares() const { return static_cast<int32_t>(free_.size()); }
    int32_t share_of(BlockId block) const { return block / (size() / shares()); }
    int32_t free_blocks() const;
    int32_t idle_blocks() const;  // kept blocks without a holder, evicted when needed
    int32_t free_blocks(int32_t share) const { return static_cast<int32_t>(free(share).size()); }
    int32_t idle_blocks(int32_t share) const { return idle_[static_cast<size_t>(share)]; }

    // Precondition: the share has a free block. The caller becomes its holder.
    BlockId take(int32_t share = 0);
    void retain(BlockId block);   // Precondition: it is held or idle.
    void release(BlockId block);  // Precondition: it is held.
    int32_t references(BlockId block) const { return states_[static_cast<size_t>(block)].references; }

    void keep(BlockId block);    // Precondition: it is held and not kept.
    void unkeep(BlockId block);  // Precondition: it is kept. Frees it if it has no holder.
    bool kept(BlockId block) const { return states_[static_cast<size_t>(block)].kept; }

    // Its only holder may write it: no other sequence reads it, and the prefix index does not list it.
    bool writable(BlockId block) const { return references(block) == 1 && !kept(block); }

  private:
    struct State {
        int32_t references = 0;
        bool kept = false;
    };
    State &state(BlockId block) { return states_[static_cast<size_t>(block)]; }

    using Blocks = std::vector<BlockId>;
    const Blocks &free(int32_t share) const { return free_[static_cast<size_t>(share)]; }
    Blocks &free_beside(BlockId block) { return free_[static_cast<size_t>(share_of(block))]; }
    int32_t &idle_beside(BlockId block) { return idle_[static_cast<size_t>(share_of(block))]; }

    std::vector<State> states_;
    std::vector<Blocks> free_;  // by share; a stack: the last freed block is taken first (its pages are warm)
    std::vector<int32_t> idle_;  // by share
};

}  // namespace runnel::cache
