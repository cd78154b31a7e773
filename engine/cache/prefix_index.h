// Full blocks indexed by their text, so that a prompt that begins like an earlier one shares its blocks.
//
// The key of a block is a hash of its tokens and of the previous block's key, so equal keys mean equal text
// from the start of the sequence, and therefore equal K and V. Before a block is
// shared, its own tokens are compared as well. The first key of a chain is a random number of the cache, so that texts
// whose keys collide cannot be prepared in advance.
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

// The key of the block that follows a block with key `before` and holds the kBlockTokens `tokens`.
BlockKey next_key(BlockKey before, std::span<const int32_t> tokens);

// The kept blocks of one pool, ordered by last use.
class PrefixIndex {
  public:
    explicit PrefixIndex(BlockPool &pool) : pool_(&pool) {}

    // The block with this key, or kNoBlock. To use the block, call BlockPool::retain() and touch().
    BlockId find(BlockKey key, std::span<const int32_t> tokens) const;
    // Keeps the block. Does nothing if the key exists. Precondition: it is held and not kept.
    void insert(BlockKey key, std::span<const int32_t> tokens, BlockId block);
    // Marks the block as just used, if it is in the index.
    void touch(BlockKey key);
    // Frees the least recently used idle block of the pool's share. False if there is none.
    bool evict(int32_t share = 0);
    // Removes the block from the index, so that its only holder may write to it. False if it is not
    // kept, or has other holders.
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
    Entries entries_;  // most recently used first
    std::unordered_map<BlockKey, Entries::iterator, Hash> by_key_;
};

}  // namespace runnel::cache
