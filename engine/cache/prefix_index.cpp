#include "engine/cache/prefix_index.h"

#include <algorithm>
#include <cassert>
#include <iterator>

#include "gguf/base/hash.h"

namespace runnel::cache {

using base::fold;

BlockKey next_key(BlockKey before, std::span<const int32_t> tokens) {
    BlockKey key = before;
    for (const int32_t token : tokens) {
        const auto t = static_cast<uint64_t>(static_cast<uint32_t>(token));
        key.low = fold(key.low ^ t, 0x9e3779b97f4a7c15 ^ before.high) + 0xbf58476d1ce4e5b9;
        key.high = fold(key.high + t, 0x94d049bb133111eb ^ before.low) ^ 0xd6e8feb86659fd93;
    }
    return key;
}

BlockId PrefixIndex::find(BlockKey key, std::span<const int32_t> tokens) const {
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) return kNoBlock;
    const Entry &entry = *found->second;
    return std::equal(tokens.begin(), tokens.end(), entry.tokens.begin(), entry.tokens.end()) ? entry.block
                                                                                              : -1;
}

void PrefixIndex::insert(BlockKey key, std::span<const int32_t> tokens, BlockId block) {
    assert(tokens.size() == static_cast<size_t>(kBlockTokens));
    if (by_key_.contains(key)) return;
    Entry entry{key, {}, block};
    std::copy(tokens.begin(), tokens.end(), entry.tokens.begin());
    entries_.push_front(entry);
    by_key_.emplace(key, entries_.begin());
    pool_->keep(block);
}

void PrefixIndex::touch(BlockKey key) {
    const auto found = by_key_.find(key);
    if (found != by_key_.end()) entries_.splice(entries_.begin(), entries_, found->second);
}

void PrefixIndex::remove(Entries::iterator entry) {
    pool_->unkeep(entry->block);
    by_key_.erase(entry->key);
    entries_.erase(entry);
}

bool PrefixIndex::evict(int32_t share) {
    for (auto entry = entries_.end(); entry != entries_.begin();) {
        --entry;
        if (pool_->references(entry->block) > 0 || pool_->share_of(entry->block) != share) continue;
        remove(entry);
        return true;
    }
    return false;
}

bool PrefixIndex::give_up(BlockId block) {
    if (pool_->references(block) != 1) return false;
    const auto entry =
        std::find_if(entries_.begin(), entries_.end(), [&](const Entry &e) { return e.block == block; });
    if (entry == entries_.end()) return false;
    remove(entry);
    return true;
}

}  // namespace runnel::cache
