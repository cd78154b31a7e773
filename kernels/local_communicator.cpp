// A rank copies what it sends into a buffer that all ranks share, waits until all have done so, and copies what it
// receives from the others' buffers. No rank touches another's own memory, so a rank that fails can leave at once. There
// are two sets of buffers, for even and odd operations: when all ranks have called operation n + 1, all have read what
// operation n sent, so operation n + 2 may use its buffers again. Each operation therefore waits only once.
#include <algorithm>
#include <array>
#include <cassert>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "kernels/communicator.h"

namespace runnel::kernels {
namespace {

// The size of a message and the other rank, which gets or sends it.
struct Message {
    int rank;
    size_t bytes;
};

// What a rank does in an operation.
struct Call {
    enum class Kind { AllGather, Exchange, Broadcast, Barrier };
    Kind kind = Kind::Barrier;
    int root = 0;                          // of Broadcast
    std::vector<size_t> sizes;             // of AllGather: by rank; of Broadcast: one
    std::vector<Message> sends, receives;  // of Exchange: these may differ between the ranks
    std::vector<std::byte> sent;           // the bytes, message after message

    bool agrees(const Call &other) const {
        return kind == other.kind && root == other.root && sizes == other.sizes;
    }
};

// "all_gather of 12 + 0 + 4 bytes"
std::string text(const Call &call) {
    std::string sizes;
    for (const size_t size : call.sizes) sizes += (sizes.empty() ? "" : " + ") + std::to_string(size);
    switch (call.kind) {
        case Call::Kind::AllGather:
            return "all_gather of " + sizes + " bytes";
        case Call::Kind::Exchange:
            return "exchange";
        case Call::Kind::Broadcast:
            return "broadcast of " + sizes + " bytes from rank " + std::to_string(call.root);
        case Call::Kind::Barrier:
            return "barrier";
    }
    return "";
}

std::string rank_name(int rank) {
    return "rank " + std::to_string(rank);
}

// Sizes of the messages to or from one rank, in order.
std::vector<size_t> sizes_with(const std::vector<Message> &messages, int rank) {
    std::vector<size_t> sizes;
    for (const Message &message : messages)
        if (message.rank == rank) sizes.push_back(message.bytes);
    return sizes;
}

// Empty if all ranks do the same; otherwise what differs. The rank that is named first does not do what most do.
std::string disagreement(const std::vector<Call> &calls) {
    const auto alike = [&](size_t rank) {
        return std::ranges::count_if(calls, [&](const Call &call) { return call.agrees(calls[rank]); });
    };
    size_t usual = 0;
    for (size_t rank = 1; rank < calls.size(); ++rank)
        if (alike(rank) > alike(usual)) usual = rank;
    for (size_t rank = 0; rank < calls.size(); ++rank)
        if (!calls[rank].agrees(calls[usual]))
            return rank_name(static_cast<int>(rank)) + " called " + text(calls[rank]) + ", but " +
                   rank_name(static_cast<int>(usual)) + " called " + text(calls[usual]);
    if (calls[0].kind != Call::Kind::Exchange) return "";
    const int size = static_cast<int>(calls.size());
    for (int from = 0; from < size; ++from)
        for (int to = 0; to < size; ++to) {
            const std::vector<size_t> sent = sizes_with(calls[static_cast<size_t>(from)].sends, to);
            const std::vector<size_t> expected = sizes_with(calls[static_cast<size_t>(to)].receives, from);
            const std::string sends = rank_name(from) + " sends ", ranks = rank_name(to) + ", which expects ";
            if (sent.size() != expected.size())
                return sends + std::to_string(sent.size()) + " messages to " + ranks +
                       std::to_string(expected.size());
            for (size_t i = 0; i < sent.size(); ++i)
                if (sent[i] != expected[i])
                    return sends + std::to_string(sent[i]) + " bytes to " + ranks +
                           std::to_string(expected[i]);
        }
    return "";
}

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
        call.sizes.clear();
        call.sends.clear();
        call.receives.clear();
        call.sent.clear();
        call.root = 0;
        return call;
    }

    // Waits until all ranks have called this operation. Returns their calls, which stay as they are until `rank` calls
    // its next operation.
    const std::vector<Call> &meet(int rank) {
        std::unique_lock lock(mutex_);
        const uint64_t operation = at_[static_cast<size_t>(rank)].called++;
        const std::vector<Call> &calls = calls_[operation % 2];
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

    // Fails all ranks because of a wrong argument of one.
    [[noreturn]] void refuse(int rank, const std::string &why) {
        abort(rank, why);
        const std::lock_guard lock(mutex_);
        throw_failure();
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

void append(std::vector<std::byte> &bytes, std::span<const std::byte> more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
}

// (memcpy and memmove do not take null pointers, which empty spans have.)
void copy(std::span<const std::byte> from, std::byte *to) {
    if (!from.empty()) std::memmove(to, from.data(), from.size());
}

class LocalCommunicator final : public Communicator {
  public:
    LocalCommunicator(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}
    ~LocalCommunicator() override { group_->leave(rank_); }

    int rank() const override { return rank_; }
    int size() const override { return group_->size(); }

    void all_gather(std::span<const std::byte> mine, std::span<const size_t> sizes,
                    std::span<std::byte> all) override {
        const auto me = static_cast<size_t>(rank_);
        if (sizes.size() != static_cast<size_t>(size()))
            group_->refuse(rank_, "all_gather: " + std::to_string(sizes.size()) + " sizes for " +
                                      std::to_string(size()) + " ranks");
        const size_t total = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
        if (mine.size() != sizes[me] || all.size() != total)
            group_->refuse(rank_, "all_gather: buffers of " + std::to_string(mine.size()) + " and " +
                                      std::to_string(all.size()) + " bytes, expected " +
                                      std::to_string(sizes[me]) + " and " + std::to_string(total));
        Call &call = group_->next_call(rank_);
        call.kind = Call::Kind::AllGather;
        call.sizes.assign(sizes.begin(), sizes.end());
        append(call.sent, mine);
        const std::vector<Call> &calls = group_->meet(rank_);
        for (size_t r = 0, at = 0; r < calls.size(); at += sizes[r++]) copy(calls[r].sent, all.data() + at);
    }

    void exchange(std::span<const Send> sends, std::span<const Receive> receives) override {
        for (const Send &send : sends) check_rank("exchange", send.to);
        for (const Receive &receive : receives) check_rank("exchange", receive.from);
        Call &call = group_->next_call(rank_);
        call.kind = Call::Kind::Exchange;
        for (const Send &send : sends) {
            call.sends.push_back({send.to, send.bytes.size()});
            append(call.sent, send.bytes);
        }
        for (const Receive &receive : receives) call.receives.push_back({receive.from, receive.bytes.size()});
        const std::vector<Call> &calls = group_->meet(rank_);
        for (int from = 0; from < size(); ++from)
            receive_from(from, calls[static_cast<size_t>(from)], receives);
    }

    void broadcast(std::span<std::byte> bytes, int root) override {
        check_rank("broadcast", root);
        Call &call = group_->next_call(rank_);
        call.kind = Call::Kind::Broadcast;
        call.root = root;
        call.sizes.assign(1, bytes.size());
        if (rank_ == root) append(call.sent, bytes);
        const std::vector<Call> &calls = group_->meet(rank_);
        if (rank_ != root) copy(calls[static_cast<size_t>(root)].sent, bytes.data());
    }

    void barrier() override {
        group_->next_call(rank_).kind = Call::Kind::Barrier;
        group_->meet(rank_);
    }

    void abort(const std::string &why) noexcept override { group_->abort(rank_, why); }

  private:
    void check_rank(const char *operation, int rank) {
        if (rank < 0 || rank >= size())
            group_->refuse(rank_, std::string(operation) + ": there is no rank " + std::to_string(rank));
    }

    // Copies what a rank's call sent to this one.
    void receive_from(int from, const Call &call, std::span<const Receive> receives) const {
        auto next = receives.begin();
        size_t at = 0;
        for (const Message &message : call.sends) {
            if (message.rank == rank_) {
                while (next->from != from) ++next;
                copy(std::span(call.sent).subspan(at, message.bytes), next++->bytes.data());
            }
            at += message.bytes;
        }
    }

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
