#include "engine/measure/cache_watch.h"

#include <algorithm>
#include <map>

namespace runnel::measure {

using cache::BlockId, cache::kBlockTokens;

CacheWatch::CacheWatch(const cache::PagedCache &cache) : cache_(cache) {
    for (size_t g = 1; g < cache.groups(); ++g)
        if (cache.pool(g).size() > cache.pool(group_).size()) group_ = g;
}

void CacheWatch::look(std::span<const cache::SequenceCache *const> sequences) {
    const cache::BlockPool &pool = cache_.pool(group_);
    std::vector<BlockUse> map(static_cast<size_t>(pool.size()), BlockUse::Free);
    int32_t held = 0;
    for (BlockId block = 0; block < pool.size(); ++block) {
        const int32_t holders = pool.references(block);
        BlockUse &use = map[static_cast<size_t>(block)];
        if (holders == 0 && pool.kept(block)) use = BlockUse::Kept;
        if (holders > 0) use = holders > 1 ? BlockUse::Shared : BlockUse::Held, ++held;
        shared_blocks += holders > 1;
        saved_blocks += std::max(0, holders - 1);
    }
    // The last block of a sequence is the one that may be partly filled.
    std::map<BlockId, int32_t> filled;
    for (const cache::SequenceCache *sequence : sequences) {
        const auto table = sequence->table(group_);
        if (table.empty() || sequence->length() % kBlockTokens == 0) continue;
        int32_t &cells = filled[table.back()];
        cells = std::max(cells, sequence->length() % kBlockTokens);
    }
    int64_t unfilled = 0;
    for (const auto &[block, cells] : filled) unfilled += kBlockTokens - cells;
    ++looks;
    held_blocks += held;
    unfilled_cells += unfilled;
    used_cells += int64_t{held} * kBlockTokens - unfilled;
    if (held > most_held || fullest.empty()) most_held = held, fullest = std::move(map);
}

double CacheWatch::unfilled_share() const {
    const int64_t all = held_blocks * kBlockTokens;
    return all > 0 ? static_cast<double>(unfilled_cells) / static_cast<double>(all) : 0;
}

}  // namespace runnel::measure
