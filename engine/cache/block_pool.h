// The paged K/V cache's bookkeeping: which blocks are free, and which blocks a sequence owns, in order.
// Only ids are handled here; the bytes live on the device (kernels/backend.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"

namespace runnel::cache {

using kernels::BlockId;
using kernels::kBlockTokens;

// Fixed number of blocks with reference counts. A block is free when its count is zero.
class BlockPool {
  public:
    explicit BlockPool(int32_t blocks);

    int32_t size() const { return static_cast<int32_t>(references_.size()); }
    int32_t free_blocks() const { return static_cast<int32_t>(free_.size()); }
    BlockId take();  // Precondition: free_blocks() > 0. The count becomes 1.
    void retain(BlockId block);
    void release(BlockId block);
    int32_t references(BlockId block) const { return references_[static_cast<size_t>(block)]; }

  private:
    std::vector<int32_t> references_;
    std::vector<BlockId> free_;  // a stack: the block freed last is taken first (its pages are warm)
};

// The block table of one sequence in one pool. Cell c lives in table()[c / kBlockTokens].
class Sequence {
  public:
    explicit Sequence(BlockPool &pool) : pool_(&pool) {}
    ~Sequence() { truncate(0); }
    Sequence(const Sequence &) = delete;
    Sequence &operator=(const Sequence &) = delete;
    Sequence(Sequence &&other) noexcept;
    Sequence &operator=(Sequence &&other) noexcept;

    int32_t length() const { return length_; }
    std::span<const BlockId> table() const { return table_; }

    // Makes room for `count` more cells. False, and nothing changes, when the pool has too few blocks.
    [[nodiscard]] bool append(int32_t count);
    // Keeps the first `length` cells and returns the blocks behind them. Precondition: 0 <= length <=
    // length().
    void truncate(int32_t length);

  private:
    BlockPool *pool_;
    std::vector<BlockId> table_;
    int32_t length_ = 0;
};

}  // namespace runnel::cache
