#include "engine/cache/block_table.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace runnel::cache {
namespace {

int32_t blocks_for(int32_t cells) {
    return static_cast<int32_t>((int64_t{cells} + kBlockTokens - 1) / kBlockTokens);
}

}  // namespace

BlockTable::BlockTable(BlockTable &&other) noexcept
    : pool_(other.pool_),
      reach_(other.reach_),
      slack_(other.slack_),
      table_(std::move(other.table_)),
      length_(std::exchange(other.length_, 0)),
      first_held_(std::exchange(other.first_held_, 0)) {
    other.table_.clear();
}

BlockTable &BlockTable::operator=(BlockTable &&other) noexcept {
    if (this != &other) {
        clear();
        pool_ = other.pool_;
        reach_ = other.reach_;
        slack_ = other.slack_;
        table_ = std::move(other.table_);
        other.table_.clear();
        length_ = std::exchange(other.length_, 0);
        first_held_ = std::exchange(other.first_held_, 0);
    }
    return *this;
}

BlockTable BlockTable::fork() const {
    BlockTable copy(*pool_, reach_, slack_);
    copy.table_ = table_;
    copy.length_ = length_;
    copy.first_held_ = first_held_;
    for (const BlockId block : table_)
        if (block != kNoBlock) pool_->retain(block);
    return copy;
}

int32_t BlockTable::first_block_seen(int32_t length) const {
    if (reach_.window == 0) return 0;
    return std::max(std::max(0, length - reach_.window + 1) / kBlockTokens, sink_blocks());
}

void BlockTable::drop(int32_t block) {
    BlockId &entry = table_[static_cast<size_t>(block)];
    if (entry != kNoBlock) pool_->release(entry);
    entry = kNoBlock;
}

void BlockTable::drop_unseen() {
    if (reach_.window == 0) return;
    const int32_t first =
        std::min(first_block_seen(std::max(0, length_ - slack_)), static_cast<int32_t>(table_.size()));
    for (int32_t block = std::max(first_held_, sink_blocks()); block < first; ++block) drop(block);
    first_held_ = std::max(first_held_, first);
}

bool BlockTable::is_copied(int32_t count) const {
    return count > 0 && length_ % kBlockTokens != 0 && !pool_->writable(table_.back());
}

int32_t BlockTable::blocks_needed(int32_t count) const {
    return blocks_for(length_ + count) - static_cast<int32_t>(table_.size()) + (is_copied(count) ? 1 : 0);
}

BlockTable::Growth BlockTable::growth(int32_t count) const {
    Growth growth;
    std::vector<int32_t> left;  // by share: blocks that are not taken yet
    for (int32_t share = 0; share < pool_->shares(); ++share)
        left.push_back(pool_->free_blocks(share) + pool_->idle_blocks(share));
    const auto take = [&](int32_t share) {
        --left[static_cast<size_t>(share)];
        return share;
    };
    const auto begin = static_cast<int32_t>(table_.size()), end = blocks_for(length_ + count);
    int32_t share = table_.empty() || table_.back() == kNoBlock ? 0 : pool_->share_of(table_.back());
    if (is_copied(count)) growth.copied = take(share);
    for (int32_t block = begin; block < end; ++block) {
        if (block % kRangeBlocks == 0)
            share = static_cast<int32_t>(std::ranges::max_element(left) - left.begin());
        growth.added.push_back(take(share));
    }
    return growth;
}

std::optional<kernels::BlockCopy> BlockTable::make_writable() {
    if (length_ % kBlockTokens == 0 || pool_->writable(table_.back())) return std::nullopt;
    const BlockId shared = table_.back(), own = pool_->take(pool_->share_of(shared));
    pool_->release(shared);
    table_.back() = own;
    return kernels::BlockCopy{shared, own};
}

bool BlockTable::append(int32_t count, std::span<const int32_t> shares) {
    assert(!is_copied(count) && static_cast<int32_t>(shares.size()) == blocks_needed(count));
    for (int32_t share = 0; share < pool_->shares(); ++share)
        if (std::ranges::count(shares, share) > pool_->free_blocks(share)) return false;
    for (const int32_t share : shares) table_.push_back(pool_->take(share));
    length_ += count;
    return true;
}

bool BlockTable::can_truncate(int32_t length) const {
    assert(length >= 0 && length <= length_);
    return first_block_seen(length) >= std::min(first_held_, blocks_for(length));
}

void BlockTable::truncate(int32_t length) {
    assert(can_truncate(length));
    const int32_t keep = blocks_for(length);
    while (static_cast<int32_t>(table_.size()) > keep) {
        if (table_.back() != kNoBlock) pool_->release(table_.back());
        table_.pop_back();
    }
    length_ = length;
    first_held_ = std::min(first_held_, keep);
}

int32_t BlockTable::blocks_to_hold(int32_t length, int32_t batch) const {
    const int32_t needed = blocks_needed(length - length_);
    if (reach_.window == 0) return needed;
    const auto held = table_.size() - static_cast<size_t>(std::count(table_.begin(), table_.end(), kNoBlock));
    // Both ends of the window may lie inside a block, and one block may have to be copied.
    const int64_t most =
        sink_blocks() + int64_t{reach_.window} / kBlockTokens + (int64_t{slack_} + batch) / kBlockTokens + 4;
    return std::min(needed, static_cast<int32_t>(std::max<int64_t>(0, most - static_cast<int64_t>(held))));
}

void BlockTable::adopt(std::span<const BlockId> table) {
    BlockTable next(*pool_, reach_, slack_);
    next.table_.assign(table.begin(), table.end());
    next.length_ = static_cast<int32_t>(table.size()) * kBlockTokens;
    const auto hole = std::find(next.table_.rbegin(), next.table_.rend(), kNoBlock);
    next.first_held_ = reach_.window == 0 ? 0 : static_cast<int32_t>(next.table_.rend() - hole);
    for (int32_t block = 0; block < static_cast<int32_t>(next.table_.size()); ++block) {
        BlockId &entry = next.table_[static_cast<size_t>(block)];
        if (block >= next.first_held_ || block < sink_blocks())
            pool_->retain(entry);
        else
            entry = kNoBlock;  // its content is known, but no token attends to it
    }
    *this = std::move(next);
}

void BlockTable::replace(size_t index, BlockId block) {
    assert(table_[index] != kNoBlock && table_[index] != block);
    pool_->retain(block);
    pool_->release(table_[index]);
    table_[index] = block;
}

}  // namespace runnel::cache
