// Full blocks by what they hold, so that a prompt that begins like an earlier one shares its blocks.
//
// The key of a block is a hash over its tokens and the key of the block before it, so equal keys mean equal
// text from the beginning on; K and V of a cell depend on nothing else. The first key of a chain is the
// cache's own: random, so that nobody can prepare texts whose keys collide, and the tokens of the block
// itself are compared as well.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>

#include "engine/cache/block_pool.h"

namespace runnel::cache {

struct BlockKey {
    uint64_t low = 0, high = 0;
    bool operator==(const BlockKey &) const = default;
};

// The key of the block that follows the one of key `before` and holds `tokens`, kBlockTokens of them.
BlockKey next_key(BlockKey before, std::span<const int32_t> tokens);

// The kept blocks of one pool, in the order in which they were used last.
class PrefixIndex {
  public:
    explicit PrefixIndex(BlockPool &pool) : pool_(&pool) {}

    // kNoBlock if there is none. Using it is a matter of BlockPool::retain and touch().
    BlockId find(BlockKey key, std::span<const int32_t> tokens) const;
    // Keeps the block. Does nothing if the key is taken. Precondition: it is held and not kept.
    void insert(BlockKey key, std::span<const int32_t> tokens, BlockId block);
    // It was used just now, if it is there.
    void touch(BlockKey key);
    // Frees the idle block that was not used for the longest time. False if there is none.
    bool evict();
    // Keeps the block no longer, so that the one sequence that holds it may write to it. False if it is not
    // kept, or held by others, too.
    bool give_up(BlockId block);
    size_t size() const { return entries_.size(); }

  private:
    struct Entry {
        BlockKey key;
        std::array<int32_t, kBlockTokens> tokens;
        BlockId block;
    };
    struct Hash {
        size_t operator()(const BlockKey &key) const { return static_cast<size_t>(key.low); }
    };
    using Entries = std::list<Entry>;
    void remove(Entries::iterator entry);

    BlockPool *pool_;
    Entries entries_;  // the one used last is the first
    std::unordered_map<BlockKey, Entries::iterator, Hash> by_key_;
};

}  // namespace runnel::cache
