#include "engine/measure/paging.h"

#include <algorithm>
#include <deque>
#include <list>
#include <optional>
#include <unordered_map>
#include <utility>

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

// Pages of a memory, of which requests may share those of equal beginnings.
class Pages {
  public:
    Pages(int64_t pages, bool shares) : free_(pages), shares_(shares) {}

    int64_t free() const { return free_; }
    int64_t saved() const { return saved_; }

    // The pages that a request with `pages` pages needs beyond those that others hold already.
    int64_t missing(const PagingRequest &request, int64_t pages) const {
        if (shares_)
            for (const uint64_t id : request.beginning) pages -= held_.contains(id);
        return pages;
    }
    // Precondition: missing() <= free().
    void take(const PagingRequest &request, int64_t pages) {
        free_ -= pages;
        if (!shares_) return;
        for (const uint64_t id : request.beginning)
            if (++held_[id] > 1) ++free_, ++saved_;
    }
    void take_one() { --free_; }
    void release(const PagingRequest &request, int64_t pages) {
        free_ += pages;
        if (!shares_) return;
        for (const uint64_t id : request.beginning)
            if (const auto at = held_.find(id); --at->second > 0)
                --free_, --saved_;
            else
                held_.erase(at);
    }
    // The number of requests that hold the page.
    int32_t holders(uint64_t id) const { return shares_ ? held_.at(id) : 1; }

  private:
    int64_t free_, saved_ = 0;
    bool shares_;
    std::unordered_map<uint64_t, int32_t> held_;
};

struct Running {
    size_t request;
    int64_t cells;  // with a token
    Range range;    // without paging
    bool admitted_before = false;
};

class Replay {
  public:
    Replay(std::span<const PagingRequest> requests, const PagingMemory &memory, Allocation how)
        : requests_(requests),
          memory_(memory),
          how_(how),
          paged_(how == Allocation::Pages || how == Allocation::Shared),
          ranges_(memory.cells),
          pages_(memory.cells / memory.page, how == Allocation::Shared) {
        result_.requests = static_cast<int64_t>(requests.size());
        for (size_t i = 0; i < requests.size(); ++i) {
            const PagingRequest &one = requests[i];
            const int64_t most = paged_ ? pages(one.prompt + one.answer) * memory.page : reserved(i);
            const int64_t room = paged_ ? pages_.free() * memory.page : memory.cells;
            if (most > room)
                ++result_.too_large;
            else
                waiting_.push_back({i, one.prompt, {}});
        }
    }

    // Stops after step `last`; 0: at the end.
    PagingReplay run(int64_t last, const std::function<void()> &look) {
        while (!waiting_.empty() || !running_.empty()) {
            if (running_.empty()) now_ = std::max(now_, requests_[waiting_.front().request].arrival);
            const bool blocked = admit();
            grow();
            count(blocked);
            if (result_.steps == last) {
                draw();
                return result_;
            }
            finish();
            ++now_;
            if (look && result_.steps % 1024 == 0) look();
        }
        return result_;
    }
    int64_t fullest_step() const { return fullest_step_; }

  private:
    int64_t pages(int64_t cells) const { return (cells + memory_.page - 1) / memory_.page; }
    int64_t reserved(size_t request) const {
        return how_ == Allocation::Context ? memory_.context : requests_[request].limit;
    }
    int64_t held(const Running &one) const {
        return paged_ ? pages(one.cells) * memory_.page : one.range.end - one.range.begin;
    }

    // Whether the next request waits for memory.
    bool admit() {
        while (!waiting_.empty() && running_.size() < static_cast<size_t>(memory_.parallel)) {
            Running next = waiting_.front();
            const PagingRequest &request = requests_[next.request];
            if (request.arrival > now_) return false;
            if (paged_) {
                // It also needs room for the token of its first step.
                const int64_t first = std::min(next.cells + 1, request.prompt + request.answer);
                if (pages_.missing(request, pages(first)) > pages_.free()) return true;
                pages_.take(request, pages(next.cells));
            } else {
                const auto range = ranges_.take(reserved(next.request));
                if (!range) return true;
                next.range = *range;
            }
            if (!std::exchange(next.admitted_before, true)) result_.waited += now_ - request.arrival;
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
            if (paged_ && pages(one.cells + 1) > pages(one.cells)) {
                while (pages_.free() == 0 && running_.size() > i + 1) preempt();
                if (pages_.free() == 0) {  // it is the newest itself
                    preempt();
                    break;
                }
                pages_.take_one();
            }
            ++one.cells;
        }
    }

    void preempt() {
        const Running &newest = running_.back();
        pages_.release(requests_[newest.request], pages(newest.cells));
        waiting_.push_front(newest);
        running_.pop_back();
        ++result_.preemptions;
    }

    void count(bool blocked) {
        int64_t used = 0, all_held = 0;
        for (const Running &one : running_) used += one.cells, all_held += held(one);
        const int64_t saved = pages_.saved() * memory_.page;
        used -= saved, all_held -= saved;
        ++result_.steps;
        result_.running += static_cast<int64_t>(running_.size());
        result_.most_running = std::max(result_.most_running, static_cast<int32_t>(running_.size()));
        if (all_held > result_.most_held) result_.most_held = all_held, fullest_step_ = result_.steps;
        result_.all += memory_.cells;
        result_.used += used;
        result_.saved += saved;
        result_.internal_waste += all_held - used;
        if (blocked) result_.external_waste += memory_.cells - all_held;
    }

    void finish() {
        std::erase_if(running_, [&](const Running &one) {
            const PagingRequest &request = requests_[one.request];
            if (one.cells < request.prompt + request.answer) return false;
            if (paged_)
                pages_.release(request, pages(one.cells));
            else
                ranges_.release(one.range);
            return true;
        });
    }

    void draw() {
        std::vector<PageUse> &map = result_.fullest;
        const auto use = [&](int64_t page, PageUse how) {
            if (static_cast<size_t>(page) >= map.size()) map.resize(static_cast<size_t>(page) + 1);
            map[static_cast<size_t>(page)] = std::max(map[static_cast<size_t>(page)], how);
        };
        std::unordered_map<uint64_t, bool> drawn;
        for (const Running &one : running_) {
            if (!paged_) {
                for (int64_t cell = one.range.begin; cell < one.range.end; ++cell)
                    use(cell / memory_.page,
                        cell - one.range.begin < one.cells ? PageUse::Filled : PageUse::Reserved);
                continue;
            }
            const auto &beginning = requests_[one.request].beginning;
            for (int64_t page = 0; page < pages(one.cells); ++page) {
                const bool known = static_cast<size_t>(page) < beginning.size();
                const uint64_t id = known ? beginning[static_cast<size_t>(page)] : 0;
                if (!known || pages_.holders(id) == 1)
                    map.push_back(PageUse::Filled);
                else if (!std::exchange(drawn[id], true))
                    map.push_back(PageUse::Shared);
            }
        }
    }

    std::span<const PagingRequest> requests_;
    const PagingMemory memory_;
    const Allocation how_;
    const bool paged_;
    FirstFit ranges_;
    Pages pages_;
    std::deque<Running> waiting_;
    std::vector<Running> running_;  // in the order of admission
    int64_t now_ = 0;               // the step, those without a request counted
    int64_t fullest_step_ = 0;
    PagingReplay result_;
};

}  // namespace

PagingReplay replay(std::span<const PagingRequest> requests, const PagingMemory &memory, Allocation how,
                    const std::function<void()> &look) {
    Replay whole(requests, memory, how);
    PagingReplay result = whole.run(0, look);
    // The same again, up to the step to draw.
    if (result.most_held > 0)
        result.fullest = Replay(requests, memory, how).run(whole.fullest_step(), look).fullest;
    return result;
}

}  // namespace runnel::measure
