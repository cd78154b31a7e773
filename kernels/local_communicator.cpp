// A rank copies what it sends into a buffer that all ranks share, waits until all have done so, and copies what it
// receives from the others' buffers. No rank touches another's own memory, so a rank that fails can leave at once. There
// are two sets of buffers, for even and odd operations: when all ranks have called operation n + 1, all have read what
// operation n sent, so operation n + 2 may use its buffers again. Each operation therefore waits only once.
#include <algorithm>
#include <array>
#include <cassert>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include "kernels/collective.h"

namespace runnel::kernels {
namespace {

// What the ranks share.
class Group {
  public:
    Group(int size, std::chrono::milliseconds deadline)
        : deadline_(deadline), at_(static_cast<size_t>(size)) {
        for (auto &calls : calls_) calls.resize(at_.size());
    }

    int size() const { return static_cast<int>(at_.size()); }

    // The call of `rank` in its next operation, for the rank to fill in before meet().
    Call &next_call(int rank) {
        const std::lock_guard lock(mutex_);
        if (failure_) throw_failure();  // other ranks may still read what the previous but one operation sent
        Call &call = calls_[at_[static_cast<size_t>(rank)].called % 2][static_cast<size_t>(rank)];
        call.reset(size());
        return call;
    }

    // Waits until all ranks have called this operation. Returns their calls, which stay as they are until `rank` calls
    // its next operation.
    std::vector<const Call *> meet(int rank) {
        std::unique_lock lock(mutex_);
        const uint64_t operation = at_[static_cast<size_t>(rank)].called++;
        std::vector<const Call *> calls;
        for (const Call &call : calls_[operation % 2]) calls.push_back(&call);
        if (const std::optional<int> gone = missing(operation, /*left=*/true))
            fail(rank_name(*gone) + " ended before " + name(operation));
        else if (!missing(operation))
            if (const std::string differs = disagreement(calls); !differs.empty())
                fail(differs + " (" + name(operation) + ")");
        if (!missing(operation)) {
            changed_.notify_all();
        } else if (const auto end = std::chrono::steady_clock::now() + deadline_;
                   !changed_.wait_until(lock, end, [&] { return failure_ || !missing(operation); })) {
            fail(rank_name(*missing(operation)) + " did not reach " + name(operation) + " within " +
                 std::to_string(deadline_.count()) + " ms");
        }
        if (failure_) throw_failure();
        return calls;
    }

    void abort(int rank, const std::string &why) noexcept {
        const std::lock_guard lock(mutex_);
        try {
            fail(rank_name(rank) + ": " + why);
        } catch (const std::exception &) {  // out of memory
            fail({});
        }
    }

    // The rank calls no operation any more.
    void leave(int rank) noexcept {
        const std::lock_guard lock(mutex_);
        Rank &mine = at_[static_cast<size_t>(rank)];
        mine.left = true;
        if (std::ranges::none_of(at_, [&](const Rank &other) { return other.called > mine.called; })) return;
        try {
            fail(rank_name(rank) + " ended before " + name(mine.called));
        } catch (const std::exception &) {
            fail({});
        }
    }

  private:
    struct Rank {
        uint64_t called = 0;  // number of operations
        bool left = false;
    };

    static std::string name(uint64_t operation) { return "operation " + std::to_string(operation + 1); }

    // The first rank that has not called the operation; with `left`, only one that never will.
    std::optional<int> missing(uint64_t operation, bool left = false) const {
        for (size_t rank = 0; rank < at_.size(); ++rank)
            if (at_[rank].called <= operation && (!left || at_[rank].left)) return static_cast<int>(rank);
        return std::nullopt;
    }

    void fail(std::string why) noexcept {
        if (failure_) return;
        failure_ = std::move(why);
        changed_.notify_all();
    }

    [[noreturn]] void throw_failure() const {
        throw BackendError(BackendError::Kind::Failed, failure_->empty() ? "a rank failed" : *failure_);
    }

    const std::chrono::milliseconds deadline_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::optional<std::string> failure_;
    std::vector<Rank> at_;
    std::array<std::vector<Call>, 2> calls_;  // of even and odd operations, by rank
};

class LocalCommunicator final : public MeetingCommunicator {
  public:
    LocalCommunicator(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}
    ~LocalCommunicator() override { group_->leave(rank_); }

    int rank() const override { return rank_; }
    int size() const override { return group_->size(); }
    void abort(const std::string &why) noexcept override { group_->abort(rank_, why); }

  private:
    Call &next_call() override { return group_->next_call(rank_); }
    std::vector<const Call *> meet() override { return group_->meet(rank_); }

    std::shared_ptr<Group> group_;
    int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_local_communicators(int size,
                                                                    std::chrono::milliseconds deadline) {
    assert(size >= 1);
    const auto group = std::make_shared<Group>(size, deadline);
    std::vector<std::unique_ptr<Communicator>> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.push_back(std::make_unique<LocalCommunicator>(group, rank));
    return ranks;
}

}  // namespace runnel::kernels
