#include "engine/measure/paging.h"

#include <algorithm>
#include <deque>
#include <list>
#include <optional>

namespace runnel::measure {
namespace {

struct Range {
    int64_t begin, end;
};

// Contiguous ranges of a memory, first fit.
class FirstFit {
  public:
    explicit FirstFit(int64_t cells) : cells_(cells) {}

    std::optional<Range> take(int64_t size) {
        int64_t begin = 0;
        auto next = taken_.begin();
        while (next != taken_.end() && next->begin - begin < size) begin = (next++)->end;
        if (next == taken_.end() && cells_ - begin < size) return std::nullopt;
        const Range range{begin, begin + size};
        taken_.insert(next, range);
        return range;
    }
    void release(Range range) {
        taken_.remove_if([&](const Range &one) { return one.begin == range.begin; });
    }

  private:
    int64_t cells_;
    std::list<Range> taken_;  // ascending
};

struct Running {
    size_t request;
    int64_t cells;  // with a token
    Range range;    // without paging
};

class Replay {
  public:
    Replay(std::span<const PagingRequest> requests, const PagingMemory &memory, Allocation how)
        : requests_(requests),
          memory_(memory),
          how_(how),
          ranges_(memory.cells),
          free_pages_(memory.cells / memory.page) {
        result_.requests = static_cast<int64_t>(requests.size());
        for (size_t i = 0; i < requests.size(); ++i) {
            const PagingRequest &one = requests[i];
            const int64_t most =
                how == Allocation::Pages ? pages(one.prompt + one.answer) * memory.page : reserved(i);
            const int64_t room = how == Allocation::Pages ? free_pages_ * memory.page : memory.cells;
            if (most > room)
                ++result_.too_large;
            else
                waiting_.push_back({i, one.prompt, {}});
        }
    }

    PagingReplay run() {
        while (!waiting_.empty() || !running_.empty()) {
            const bool blocked = admit();
            grow();
            count(blocked);
            finish();
        }
        return result_;
    }

  private:
    int64_t pages(int64_t cells) const { return (cells + memory_.page - 1) / memory_.page; }
    int64_t reserved(size_t request) const {
        return how_ == Allocation::Context ? memory_.context : requests_[request].limit;
    }
    int64_t held(const Running &one) const {
        return how_ == Allocation::Pages ? pages(one.cells) * memory_.page : one.range.end - one.range.begin;
    }

    // Whether the next request waits for memory.
    bool admit() {
        while (!waiting_.empty() && running_.size() < static_cast<size_t>(memory_.parallel)) {
            Running next = waiting_.front();
            if (how_ == Allocation::Pages) {
                // It also needs room for the token of its first step.
                const PagingRequest &request = requests_[next.request];
                const int64_t first = std::min(next.cells + 1, request.prompt + request.answer);
                if (pages(first) > free_pages_) return true;
                free_pages_ -= pages(next.cells);
            } else {
                const auto range = ranges_.take(reserved(next.request));
                if (!range) return true;
                next.range = *range;
            }
            running_.push_back(next);
            waiting_.pop_front();
        }
        return false;
    }

    void grow() {
        for (size_t i = 0; i < running_.size(); ++i) {
            Running &one = running_[i];
            const PagingRequest &request = requests_[one.request];
            if (one.cells == request.prompt + request.answer) continue;  // nothing to generate
            if (how_ == Allocation::Pages && pages(one.cells + 1) > pages(one.cells)) {
                while (free_pages_ == 0 && running_.size() > i + 1) preempt();
                if (free_pages_ == 0) {  // it is the newest itself
                    preempt();
                    break;
                }
                --free_pages_;
            }
            ++one.cells;
        }
    }

    void preempt() {
        free_pages_ += pages(running_.back().cells);
        waiting_.push_front(running_.back());
        running_.pop_back();
        ++result_.preemptions;
    }

    void count(bool blocked) {
        int64_t used = 0, all_held = 0;
        for (const Running &one : running_) used += one.cells, all_held += held(one);
        ++result_.steps;
        result_.running += static_cast<int64_t>(running_.size());
        result_.most_running = std::max(result_.most_running, static_cast<int32_t>(running_.size()));
        result_.most_held = std::max(result_.most_held, all_held);
        result_.all += memory_.cells;
        result_.used += used;
        result_.internal_waste += all_held - used;
        if (blocked) result_.external_waste += memory_.cells - all_held;
    }

    void finish() {
        std::erase_if(running_, [&](const Running &one) {
            const PagingRequest &request = requests_[one.request];
            if (one.cells < request.prompt + request.answer) return false;
            if (how_ == Allocation::Pages)
                free_pages_ += pages(one.cells);
            else
                ranges_.release(one.range);
            return true;
        });
    }

    std::span<const PagingRequest> requests_;
    const PagingMemory memory_;
    const Allocation how_;
    FirstFit ranges_;
    int64_t free_pages_;
    std::deque<Running> waiting_;
    std::vector<Running> running_;  // in the order of admission
    PagingReplay result_;
};

}  // namespace

PagingReplay replay(std::span<const PagingRequest> requests, const PagingMemory &memory, Allocation how) {
    return Replay(requests, memory, how).run();
}

}  // namespace runnel::measure
