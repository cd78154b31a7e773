// The order in which neighbouring symbols are merged: lowest rank first, leftmost first among equal ranks.
//
// For a word of usual length that is a binary heap. Over a million candidates a heap would spend its time in
// cache misses, so for long words candidates are kept in one bucket per rank instead: a bucket is put in
// order once, when its turn comes. A merge hardly ever makes a candidate of a rank that has had its turn; the
// few of those go to the heap, which keeps the worst case at n log n.
#pragma once

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

    // Before the first push for a word of so many bytes (below 2^31). Precondition: the queue is empty.
    void start(size_t bytes);
    void push(uint32_t rank, Candidate candidate) {
        if (rank <= rank_) {
            heap_.push({rank, candidate});
        } else {
            push_to_bucket(rank, candidate);
        }
    }
    // The next candidate; nullopt when the queue is empty.
    std::optional<Candidate> pop();
    // The position of a candidate whose turn is some pops away, so that its symbols can be fetched; 0 if
    // unknown.
    uint32_t upcoming() const { return next_ + kAhead < open_.size() ? open_[next_ + kAhead].position : 0; }

  private:
    static constexpr size_t kLongWord = 512;
    static constexpr size_t kAhead = 12;

    // The candidates of a bucket stand in a list of these, one cache line each.
    struct alignas(64) Chunk {
        static constexpr uint32_t kCapacity = 5;
        Candidate candidates[kCapacity];
        uint32_t next;  // a Head
    };
    // Index of the first chunk of a list, times 8, plus the number of candidates in it; 0 for an empty list.
    using Head = uint32_t;

    struct Ranked {
        uint32_t rank;
        Candidate candidate;
        // The greatest is in front of a std::priority_queue.
        bool operator<(const Ranked &other) const {
            return rank != other.rank ? rank > other.rank : candidate.position > other.candidate.position;
        }
    };
    void push_to_bucket(uint32_t rank, Candidate candidate);
    bool open_next_bucket();

    size_t ranks_;
    std::priority_queue<Ranked> heap_;  // candidates of ranks up to rank_
    int64_t rank_ = -1;                 // of the bucket whose turn it is

    std::vector<Head> buckets_;  // by rank; made for the first long word
    std::vector<Chunk> chunks_;
    uint32_t free_ = UINT32_MAX;  // a list of unused chunks, through `next`; UINT32_MAX ends it
    std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> waiting_;  // ranks of filled buckets
    std::vector<Candidate> open_;  // what is in the bucket whose turn it is, by position
    size_t next_ = 0;              // in open_
};

inline std::optional<Candidate> MergeQueue::pop() {
    if (next_ == open_.size() && heap_.empty() && !open_next_bucket()) return std::nullopt;
    const bool has_open = next_ < open_.size();
    if (!heap_.empty()) {
        const Ranked &first = heap_.top();
        if (!has_open || first.rank < rank_ || first.candidate.position < open_[next_].position) {
            const Candidate candidate = first.candidate;
            heap_.pop();
            return candidate;
        }
    }
    return open_[next_++];
}

}  // namespace runnel::text
