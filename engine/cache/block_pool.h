// The free list of the paged K/V cache: which blocks of one layer group are free, held by sequences, or kept
// for reuse. Handles ids only; the bytes live on the device (kernels/backend.h).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace runnel::cache {

using kernels::BlockId;
using kernels::kBlockTokens;

inline constexpr BlockId kNoBlock = -1;

// A fixed number of blocks, each with a count of the sequences that hold it. A block without holders is free,
// unless it is kept: then it is idle until a sequence with the same text takes it (prefix_index.h).
class BlockPool {
  public:
    explicit BlockPool(int32_t blocks);

    int32_t size() const { return static_cast<int32_t>(states_.size()); }
    int32_t free_blocks() const { return static_cast<int32_t>(free_.size()); }
    int32_t idle_blocks() const { return idle_; }  // kept blocks without a holder, evicted when needed

    BlockId take();               // Precondition: free_blocks() > 0. The caller becomes its holder.
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

    std::vector<State> states_;
    std::vector<BlockId> free_;  // a stack: the last freed block is taken first (its pages are warm)
    int32_t idle_ = 0;
};

}  // namespace runnel::cache
