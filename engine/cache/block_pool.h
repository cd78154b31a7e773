// The paged K/V cache's bookkeeping: which blocks of one group of layers are free, used, or worth keeping.
// Only ids are handled here; the bytes live on the device (kernels/backend.h).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace runnel::cache {

using kernels::BlockId;
using kernels::kBlockTokens;

inline constexpr BlockId kNoBlock = -1;

// Fixed number of blocks, each with the number of sequences that hold it. A block that nobody holds is free,
// unless it is marked as kept: then it is idle, and waits for a sequence with the same text (prefix_index.h).
class BlockPool {
  public:
    explicit BlockPool(int32_t blocks);

    int32_t size() const { return static_cast<int32_t>(states_.size()); }
    int32_t free_blocks() const { return static_cast<int32_t>(free_.size()); }
    int32_t idle_blocks() const { return idle_; }  // kept, and held by nobody: free when need be

    BlockId take();               // Precondition: free_blocks() > 0. One sequence holds it then.
    void retain(BlockId block);   // Precondition: it is held or idle.
    void release(BlockId block);  // Precondition: it is held.
    int32_t references(BlockId block) const { return states_[static_cast<size_t>(block)].references; }

    void keep(BlockId block);    // Precondition: it is held and not kept.
    void unkeep(BlockId block);  // Precondition: it is kept. Free at once if nobody holds it.
    bool kept(BlockId block) const { return states_[static_cast<size_t>(block)].kept; }

    // Whoever holds it may write it: nobody else reads it or counts on what it holds.
    bool writable(BlockId block) const { return references(block) == 1 && !kept(block); }

  private:
    struct State {
        int32_t references = 0;
        bool kept = false;
    };
    State &state(BlockId block) { return states_[static_cast<size_t>(block)]; }

    std::vector<State> states_;
    std::vector<BlockId> free_;  // a stack: the block freed last is taken first (its pages are warm)
    int32_t idle_ = 0;
};

}  // namespace runnel::cache
