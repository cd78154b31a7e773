#include "engine/text/merge_queue.h"

#include <algorithm>

namespace runnel::text {

void MergeQueue::start(size_t bytes) {
    rank_ = bytes < kLongWord ? int64_t{UINT32_MAX} : -1;
    if (bytes < kLongWord) return;
    if (buckets_.empty()) buckets_.resize(ranks_);
    chunks_.reserve(bytes / Chunk::kCapacity +
                    ranks_ / 8);  // address space, mostly: what is used gets touched
    open_.reserve(bytes);
}

void MergeQueue::push_to_bucket(uint32_t rank, Candidate candidate) {
    Head &head = buckets_[rank];
    if (head == 0) waiting_.push(rank);
    if (head == 0 || head % 8 == Chunk::kCapacity) {
        uint32_t chunk = free_;
        if (chunk != UINT32_MAX) {
            free_ = chunks_[chunk].next;
        } else {
            chunk = static_cast<uint32_t>(chunks_.size());
            chunks_.emplace_back();
        }
        chunks_[chunk].next = head;
        head = chunk * 8;
    }
    chunks_[head / 8].candidates[head % 8] = candidate;
    ++head;
}

bool MergeQueue::open_next_bucket() {
    open_.clear();
    next_ = 0;
    if (waiting_.empty()) return false;
    const uint32_t rank = waiting_.top();
    waiting_.pop();
    for (Head at = buckets_[rank]; at != 0;) {
        Chunk &chunk = chunks_[at / 8];
        for (uint32_t i = at % 8; i-- > 0;) open_.push_back(chunk.candidates[i]);
        const Head next = chunk.next;
        chunk.next = free_;
        free_ = at / 8;
        at = next;
    }
    buckets_[rank] = 0;
    rank_ = rank;
    std::reverse(open_.begin(), open_.end());  // most were pushed from left to right
    const auto before = [](const Candidate &a, const Candidate &b) { return a.position < b.position; };
    if (!std::is_sorted(open_.begin(), open_.end(), before)) std::sort(open_.begin(), open_.end(), before);
    return true;
}

}  // namespace runnel::text
