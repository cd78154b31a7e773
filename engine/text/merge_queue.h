// The order in which neighbouring symbols are merged: lowest rank first, leftmost first among equal ranks.
//
// For a word of usual length that is a binary heap. Over a million candidates a heap would spend its time in
// cache misses, so for long words candidates are kept in one bucket per rank instead: a bucket is put in order
// once, when its turn comes. A merge hardly ever makes a candidate of a rank that has had its turn; the few of
// those go to the heap, which keeps the worst case at n log n.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <queue>
#include <vector>

#include "engine/text/token.h"

namespace runnel::text {

struct Candidate {
    uint32_t position;  // of the left symbol
    uint32_t bytes;     // of both symbols: tells whether one of them has changed since
    TokenId id;         // what the two become
};

class MergeQueue {
  public:
    // Ranks are below `ranks`.
    explicit MergeQueue(size_t ranks) : ranks_(ranks) {}

    // Before the first push for a word of so many bytes. Precondition: the queue is empty.
    void start(size_t bytes);
    void push(uint32_t rank, Candidate candidate);
    // The next candidate; nullopt when the queue is empty.
    std::optional<Candidate> pop();

  private:
    static constexpr uint32_t kEmpty = UINT32_MAX;
    static constexpr size_t kLongWord = 512;
    struct Link {
        Candidate candidate;
        uint32_t next;  // in the same bucket
    };
    struct Late {
        uint32_t rank;
        Candidate candidate;
        // std::push_heap keeps the greatest in front.
        bool operator<(const Late &other) const {
            return rank != other.rank ? rank > other.rank : candidate.position > other.candidate.position;
        }
    };
    bool open_next_bucket();

    size_t ranks_;
    std::vector<uint32_t> buckets_;  // rank -> first link; made for the first long word
    std::vector<Link> links_;
    std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> waiting_;  // ranks of filled buckets
    std::vector<Candidate> open_;   // the bucket whose turn it is, by position
    size_t next_ = 0;               // in open_
    int64_t rank_ = -1;             // of open_; candidates up to it go to the heap
    std::vector<Late> late_;        // the heap
};

inline void MergeQueue::start(size_t bytes) {
    rank_ = bytes < kLongWord ? UINT32_MAX : -1;
    if (bytes >= kLongWord && buckets_.empty()) buckets_.assign(ranks_, kEmpty);
}

inline void MergeQueue::push(uint32_t rank, Candidate candidate) {
    if (rank <= rank_) {
        late_.push_back({rank, candidate});
        std::push_heap(late_.begin(), late_.end());
        return;
    }
    uint32_t &first = buckets_[rank];
    if (first == kEmpty) waiting_.push(rank);
    links_.push_back({candidate, first});
    first = static_cast<uint32_t>(links_.size() - 1);
}

inline bool MergeQueue::open_next_bucket() {
    open_.clear();
    next_ = 0;
    if (waiting_.empty()) {
        links_.clear();
        return false;
    }
    const uint32_t rank = waiting_.top();
    waiting_.pop();
    for (uint32_t at = buckets_[rank]; at != kEmpty; at = links_[at].next) open_.push_back(links_[at].candidate);
    buckets_[rank] = kEmpty;
    rank_ = rank;
    std::reverse(open_.begin(), open_.end());  // most were pushed from left to right
    const auto before = [](const Candidate &a, const Candidate &b) { return a.position < b.position; };
    if (!std::is_sorted(open_.begin(), open_.end(), before)) std::sort(open_.begin(), open_.end(), before);
    return true;
}

inline std::optional<Candidate> MergeQueue::pop() {
    if (late_.empty() && next_ == open_.size() && !open_next_bucket()) return std::nullopt;
    const bool has_open = next_ < open_.size();
    const bool take_late = !late_.empty() && (!has_open || late_.front().rank < rank_ ||
                                              late_.front().candidate.position < open_[next_].position);
    if (!take_late) return open_[next_++];
    std::pop_heap(late_.begin(), late_.end());
    const Candidate candidate = late_.back().candidate;
    late_.pop_back();
    return candidate;
}

}  // namespace runnel::text
