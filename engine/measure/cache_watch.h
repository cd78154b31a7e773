// Watches the block pool of a run after its passes: blocks held, shared and unfilled, and the map of the fullest
// moment.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/cache/paged_cache.h"

namespace runnel::measure {

enum class BlockUse : uint8_t {
    Free,
    Kept,  // no sequence holds it, but a later text may find it
    Held,
    Shared,  // held by several sequences
};

class CacheWatch {
  public:
    // Watches the largest pool: that of the layers without a window, if there are any. Precondition:
    // cache.groups() > 0.
    explicit CacheWatch(const cache::PagedCache &cache);

    // After a pass: the sequences that are in the cache.
    void look(std::span<const cache::SequenceCache *const> sequences);

    // Sums over the calls of look().
    int64_t looks = 0;
    int64_t held_blocks = 0;     // by at least one sequence
    int64_t shared_blocks = 0;   // by several
    int64_t saved_blocks = 0;    // that the sequences would need more without sharing
    int64_t used_cells = 0;      // of held blocks, with a token
    int64_t unfilled_cells = 0;  // of held blocks, without

    int32_t most_held = 0;          // blocks
    std::vector<BlockUse> fullest;  // the pool when most blocks were held
    int32_t blocks() const { return cache_.pool(group_).size(); }
    double unfilled_share() const;  // of the cells of held blocks

  private:
    const cache::PagedCache &cache_;
    size_t group_ = 0;
};

}  // namespace runnel::measure
