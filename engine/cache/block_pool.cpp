#include "engine/cache/block_pool.h"

#include <cassert>

namespace runnel::cache {

BlockPool::BlockPool(int32_t blocks) : states_(static_cast<size_t>(blocks)) {
    free_.reserve(static_cast<size_t>(blocks));
    for (BlockId b = blocks; b-- > 0;) free_.push_back(b);  // block 0 is taken first
}

BlockId BlockPool::take() {
    assert(!free_.empty());
    const BlockId block = free_.back();
    free_.pop_back();
    state(block).references = 1;
    return block;
}

void BlockPool::retain(BlockId block) {
    assert(references(block) > 0 || kept(block));
    if (state(block).references++ == 0) --idle_;
}

void BlockPool::release(BlockId block) {
    assert(references(block) > 0);
    if (--state(block).references > 0) return;
    if (kept(block))
        ++idle_;
    else
        free_.push_back(block);
}

void BlockPool::keep(BlockId block) {
    assert(references(block) > 0 && !kept(block));
    state(block).kept = true;
}

void BlockPool::unkeep(BlockId block) {
    assert(kept(block));
    state(block).kept = false;
    if (references(block) > 0) return;
    --idle_;
    free_.push_back(block);
}

}  // namespace runnel::cache
