#include "engine/cache/block_pool.h"

#include <cassert>
#include <utility>

namespace runnel::cache {

BlockPool::BlockPool(int32_t blocks) : references_(static_cast<size_t>(blocks), 0) {
    free_.reserve(static_cast<size_t>(blocks));
    for (BlockId b = blocks; b-- > 0;) free_.push_back(b);  // block 0 is taken first
}

BlockId BlockPool::take() {
    assert(!free_.empty());
    const BlockId block = free_.back();
    free_.pop_back();
    references_[static_cast<size_t>(block)] = 1;
    return block;
}

void BlockPool::retain(BlockId block) {
    assert(references(block) > 0);
    ++references_[static_cast<size_t>(block)];
}

void BlockPool::release(BlockId block) {
    assert(references(block) > 0);
    if (--references_[static_cast<size_t>(block)] == 0) free_.push_back(block);
}

Sequence::Sequence(Sequence &&other) noexcept
    : pool_(other.pool_), table_(std::move(other.table_)), length_(std::exchange(other.length_, 0)) {
    other.table_.clear();
}

Sequence &Sequence::operator=(Sequence &&other) noexcept {
    if (this != &other) {
        truncate(0);
        pool_ = other.pool_;
        table_ = std::move(other.table_);
        other.table_.clear();
        length_ = std::exchange(other.length_, 0);
    }
    return *this;
}

bool Sequence::append(int32_t count) {
    const int32_t needed =
        (length_ + count + kBlockTokens - 1) / kBlockTokens - static_cast<int32_t>(table_.size());
    if (needed > pool_->free_blocks()) return false;
    for (int32_t i = 0; i < needed; ++i) table_.push_back(pool_->take());
    length_ += count;
    return true;
}

void Sequence::truncate(int32_t length) {
    assert(length >= 0 && length <= length_);
    const size_t keep = static_cast<size_t>((length + kBlockTokens - 1) / kBlockTokens);
    while (table_.size() > keep) {
        pool_->release(table_.back());
        table_.pop_back();
    }
    length_ = length;
}

}  // namespace runnel::cache
