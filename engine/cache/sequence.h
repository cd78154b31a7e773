// The block table of one sequence in one group of layers.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/cache/block_pool.h"

namespace runnel::cache {

// Which cells the layers of a group look at: a token in cell p sees p - window < cell <= p and, in every
// case, the first `sinks` cells.
struct Reach {
    int32_t window = 0;  // 0: all earlier cells
    int32_t sinks = 0;   // matters with a window only
};

// Cell c lives in table()[c / kBlockTokens]. Where the group has a window, blocks that leave it go back to
// the pool and their entries become kNoBlock: the kernels never look there. `slack` more cells are held, so
// that a sequence can be rolled back by so many.
class Sequence {
  public:
    explicit Sequence(BlockPool &pool, Reach reach = {}, int32_t slack = 0)
        : pool_(&pool), reach_(reach), slack_(slack) {}
    ~Sequence() { clear(); }
    Sequence(const Sequence &) = delete;
    Sequence &operator=(const Sequence &) = delete;
    Sequence(Sequence &&other) noexcept;
    Sequence &operator=(Sequence &&other) noexcept;

    int32_t length() const { return length_; }
    std::span<const BlockId> table() const { return table_; }

    // The same cells, in the same blocks. Whoever writes next gets a copy of what it writes into.
    Sequence fork() const;

    // Returns the blocks that no token from here on sees, nor one after a roll-back by `slack` cells.
    void drop_unseen();
    // Blocks that make_writable() and append(count) take from the pool.
    int32_t blocks_needed(int32_t count) const;
    // Makes the block of the next cell the sequence's own, if it has one that others count on. The caller
    // copies the bytes. Precondition: the pool has a free block.
    [[nodiscard]] std::optional<kernels::BlockCopy> make_writable();
    // Makes room for `count` more cells. False, and nothing changes, when the pool has too few blocks.
    // Precondition: make_writable() has nothing to do.
    [[nodiscard]] bool append(int32_t count);

    // Everything that a token in cell `length` sees is still here. Precondition: 0 <= length <= length().
    bool can_truncate(int32_t length) const;
    // Keeps the first `length` cells and returns the blocks behind them. Precondition: can_truncate(length).
    void truncate(int32_t length);
    void clear() { truncate(0); }

    // The first block that a token in cell `length` sees behind the sinks.
    int32_t first_block_seen(int32_t length) const;
    // Blocks that growing to `length` cells, in steps of at most `batch`, takes from the pool beyond those it
    // gives back on the way. Precondition: length >= length().
    int32_t blocks_to_hold(int32_t length, int32_t batch) const;
    // Continues after the cells of `table`, which may hold kNoBlock where no later token looks; holds those
    // that are seen, and no longer what it had. Precondition: they are held or idle, all of them full.
    void adopt(std::span<const BlockId> table);
    // Uses another block of the same content in place of the one at `index`. Precondition: there is one.
    void replace(size_t index, BlockId block);

  private:
    void drop(int32_t block);
    int32_t sink_blocks() const { return (reach_.sinks + kBlockTokens - 1) / kBlockTokens; }

    BlockPool *pool_;
    Reach reach_;
    int32_t slack_;
    std::vector<BlockId> table_;
    int32_t length_ = 0;
    int32_t first_held_ = 0;  // behind the sinks, blocks below this one are gone
};

}  // namespace runnel::cache
