#include "engine/cache/block_pool.h"

#include <cassert>
#include <numeric>

namespace runnel::cache {

BlockPool::BlockPool(int32_t blocks, int32_t shares)
    : states_(static_cast<size_t>(blocks)),
      free_(static_cast<size_t>(shares)),
      idle_(static_cast<size_t>(shares)) {
    assert(blocks % shares == 0);
    for (Blocks &free : free_) free.reserve(static_cast<size_t>(blocks / shares));
    for (BlockId b = blocks; b-- > 0;) free_beside(b).push_back(b);  // the first block is taken first
}

int32_t BlockPool::free_blocks() const {
    size_t blocks = 0;
    for (const Blocks &free : free_) blocks += free.size();
    return static_cast<int32_t>(blocks);
}

int32_t BlockPool::idle_blocks() const {
    return std::accumulate(idle_.begin(), idle_.end(), 0);
}

BlockId BlockPool::take(int32_t share) {
    Blocks &free = free_[static_cast<size_t>(share)];
    assert(!free.empty());
    const BlockId block = free.back();
    free.pop_back();
    state(block).references = 1;
    return block;
}

void BlockPool::retain(BlockId block) {
    assert(references(block) > 0 || kept(block));
    if (state(block).references++ == 0) --idle_beside(block);
}

void BlockPool::release(BlockId block) {
    assert(references(block) > 0);
    if (--state(block).references > 0) return;
    if (kept(block))
        ++idle_beside(block);
    else
        free_beside(block).push_back(block);
}

void BlockPool::keep(BlockId block) {
    assert(references(block) > 0 && !kept(block));
    state(block).kept = true;
}

void BlockPool::unkeep(BlockId block) {
    assert(kept(block));
    state(block).kept = false;
    if (references(block) > 0) return;
    --idle_beside(block);
    free_beside(block).push_back(block);
}

}  // namespace runnel::cache
