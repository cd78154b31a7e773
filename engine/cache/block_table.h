// The block table of one sequence in one group of layers.
//
// If several devices share the pool, kRangeBlocks consecutive blocks of a sequence are on one of them, so that it can
// attend to these cells alone; which one is chosen when the first of them is taken.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/cache/block_pool.h"

namespace runnel::cache {

// The cells that the layers of a group attend to: a token in cell p sees the cells c with p - window < c <= p, and
// always the first `sinks` cells.
struct Reach {
    int32_t window = 0;  // 0: all earlier cells
    int32_t sinks = 0;   // used only with a window
};

// Cell c is in block table()[c / kBlockTokens]. If the group has a window, blocks that leave it return to the
// pool and their entries become kNoBlock; the kernels never read them. `slack` more cells are held, so that a
// sequence can be rolled back by that many.
class BlockTable {
  public:
    explicit BlockTable(BlockPool &pool, Reach reach = {}, int32_t slack = 0)
        : pool_(&pool), reach_(reach), slack_(slack) {}
    ~BlockTable() { clear(); }
    BlockTable(const BlockTable &) = delete;
    BlockTable &operator=(const BlockTable &) = delete;
    BlockTable(BlockTable &&other) noexcept;
    BlockTable &operator=(BlockTable &&other) noexcept;

    int32_t length() const { return length_; }
    std::span<const BlockId> table() const { return table_; }

    // Returns a second table with the same blocks. The next write to either goes to a copy (copy-on-write).
    BlockTable fork() const;

    // Releases the blocks that no later token attends to, even after a rollback by `slack` cells.
    void drop_unseen();
    // The blocks that make_writable() and append(count) take from the pool: the share of each. A new range goes where
    // most blocks are free or idle.
    struct Growth {
        std::optional<int32_t> copied = {};  // of make_writable()
        std::vector<int32_t> added = {};
    };
    Growth growth(int32_t count) const;
    // Number of these blocks.
    int32_t blocks_needed(int32_t count) const;
    // Replaces the block of the next cell by a new one if it is shared or kept. The caller copies the bytes.
    // Precondition: the share of that block has a free one.
    [[nodiscard]] std::optional<kernels::BlockCopy> make_writable();
    // Adds `count` cells, with blocks of these shares: growth(count).added. Returns false, and changes nothing, if they
    // have too few. Precondition: make_writable() has nothing to do.
    [[nodiscard]] bool append(int32_t count, std::span<const int32_t> shares);
    [[nodiscard]] bool append(int32_t count) { return append(count, growth(count).added); }

    // True if all cells visible to a token in cell `length` are held. Precondition: 0 <= length <= length().
    bool can_truncate(int32_t length) const;
    // Keeps the first `length` cells and releases the blocks after them. Precondition: can_truncate(length).
    void truncate(int32_t length);
    void clear() { truncate(0); }

    // The first block after the sinks that a token in cell `length` attends to.
    int32_t first_block_seen(int32_t length) const;
    // Number of blocks that growing to `length` cells, in steps of at most `batch`, takes from the pool,
    // minus the blocks that it releases on the way. Precondition: length >= length().
    int32_t blocks_to_hold(int32_t length, int32_t batch) const;
    // Replaces the sequence's cells by those of `table`, and retains its blocks. Entries that no later token attends to
    // may be kNoBlock. Precondition: the other blocks are full, and held or idle.
    void adopt(std::span<const BlockId> table);
    // Replaces the block at `index` by one with the same content. Precondition: there is a block at `index`.
    void replace(size_t index, BlockId block);

  private:
    void drop(int32_t block);
    bool is_copied(int32_t count) const;
    int32_t sink_blocks() const { return (reach_.sinks + kBlockTokens - 1) / kBlockTokens; }

    BlockPool *pool_;
    Reach reach_;
    int32_t slack_;
    std::vector<BlockId> table_;
    int32_t length_ = 0;
    int32_t first_held_ = 0;  // blocks between the sinks and this one are released
};

}  // namespace runnel::cache
