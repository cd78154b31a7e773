#include "tests/simt/nccl.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "kernels/cuda/nccl/library.h"
#include "tests/simt/library_work.h"
#include "tests/simt/memory.h"

namespace nccl_interface = runnel::kernels::cuda::nccl;

// One rank's end of a communicator.
struct runnel::kernels::cuda::nccl::Communicator {
    struct Sent {
        const void *from;
        size_t bytes;
        std::shared_ptr<bool> taken;  // by the receiver
    };
    // What the ranks share.
    struct Ranks {
        std::map<std::pair<int, int>, std::deque<Sent>>
            messages;  // that have started, by sender and receiver
        std::vector<int> devices;
    };
    std::shared_ptr<Ranks> ranks;
    int rank;
    int64_t groups = 0;  // enqueued
    // Also known to the steps that are left in streams.
    std::shared_ptr<bool> ended = std::make_shared<bool>(false), failed = std::make_shared<bool>(false);
    std::shared_ptr<int64_t> pending = std::make_shared<int64_t>(0);  // groups
};

namespace runnel::simt {

Nccl &nccl() {
    static Nccl settings;
    return settings;
}

namespace {

using nccl_interface::Communicator;
using nccl_interface::kFloat32;
using nccl_interface::kSuccess;
using nccl_interface::Result;
constexpr Result kInvalidArgument = 4, kInvalidUsage = 5, kRemoteError = 6;

struct Message {
    bool is_send;
    int peer;
    const void *from;
    void *to;
    size_t bytes;
    Communicator *communicator;
    void *stream;
};

struct OpenGroup {
    int depth = 0;
    std::vector<Message> messages;
};
thread_local OpenGroup open_group;

Result misuse(Result result, const std::string &what) {
    nccl().misuse.push_back(what);
    return result;
}

// The messages of one communicator in one group: a step of a stream.
class GroupStep {
  public:
    GroupStep(const Communicator &of, std::vector<Message> messages, bool stalls)
        : ranks_(of.ranks),
          rank_(of.rank),
          ended_(of.ended),
          failed_(of.failed),
          pending_(of.pending),
          messages_(std::move(messages)),
          stalls_(stalls) {}

    bool operator()() {
        if (*ended_) return true;
        if (stalls_) return *failed_ = true, false;
        if (!started_) start();
        bool all = true;
        for (Message &m : messages_) all = (m.is_send || receive(m)) && all;
        for (const auto &taken : sent_) all = *taken && all;
        if (all) --*pending_;
        return all;
    }

  private:
    void start() {
        started_ = true;
        for (const Message &m : messages_) {
            if (!m.is_send) continue;
            memory().expect_written(m.from, m.bytes, "a send");
            sent_.push_back(std::make_shared<bool>(false));
            ranks_->messages[{rank_, m.peer}].push_back({m.from, m.bytes, sent_.back()});
        }
    }
    // Whether the message has arrived.
    bool receive(Message &m) {
        if (m.to == nullptr) return true;  // before
        auto &queue = ranks_->messages[{m.peer, rank_}];
        if (queue.empty()) return false;
        const Communicator::Sent sent = queue.front();
        queue.pop_front();
        if (sent.bytes != m.bytes)
            throw Violation("rank " + std::to_string(m.peer) + " sends " + std::to_string(sent.bytes) +
                            " bytes, but rank " + std::to_string(rank_) + " receives " +
                            std::to_string(m.bytes));
        memory().copy_marks(m.to, sent.from, m.bytes, ranks_->devices[static_cast<size_t>(m.peer)]);
        std::memcpy(m.to, sent.from, m.bytes);
        if (nccl().damage) static_cast<unsigned char *>(m.to)[m.bytes / 2] ^= 1;
        *sent.taken = true;
        m.to = nullptr;
        return true;
    }

    std::shared_ptr<Communicator::Ranks> ranks_;
    int rank_;
    std::shared_ptr<bool> ended_, failed_;
    std::shared_ptr<int64_t> pending_;
    std::vector<Message> messages_;
    std::vector<std::shared_ptr<bool>> sent_;
    bool started_ = false, stalls_;
};

Result add(Message m, size_t count, int type) {
    const std::lock_guard hold(device_lock());
    const Communicator &own = *m.communicator;
    const void *const place = m.is_send ? m.from : m.to;
    if (*own.ended) return misuse(kInvalidUsage, "a communicator is used after its end");
    if (open_group.depth == 0) return misuse(kInvalidUsage, "a message outside a group");
    if (type != kFloat32 || count == 0) return misuse(kInvalidArgument, "not a positive number of floats");
    if (m.peer < 0 || static_cast<size_t>(m.peer) >= own.ranks->devices.size())
        return misuse(kInvalidArgument, "there is no rank " + std::to_string(m.peer));
    const int device = own.ranks->devices[static_cast<size_t>(own.rank)];
    if (device_of_stream(m.stream) != device) return misuse(kInvalidArgument, "the stream of another device");
    m.bytes = count * sizeof(float);
    const Allocation *const memory_of = memory().find(place);
    if (memory_of == nullptr || memory_of->host || memory_of->device != device)
        return misuse(kInvalidArgument, "not memory of the rank's device");
    memory().range(place, m.bytes, "a message");
    if (m.is_send) ++nccl().messages, nccl().floats += static_cast<int64_t>(count);
    open_group.messages.push_back(m);
    return kSuccess;
}

// --- the functions -----------------------------------------------------------------------------------------

Result get_version(int *version) {
    *version = nccl().version;
    return kSuccess;
}
const char *error_text(Result result) {
    return result == kRemoteError ? "remote error" : result == kInvalidUsage ? "invalid usage" : "an error";
}
const char *last_error(Communicator *) {
    return "";
}
Result init_all(Communicator **all, int ranks, const int *devices) {
    const std::lock_guard hold(device_lock());
    if (nccl().init_error != 0) return nccl().init_error;
    const auto shared = std::make_shared<Communicator::Ranks>();
    shared->devices.assign(devices, devices + ranks);
    for (int r = 0; r < ranks; ++r) all[r] = new Communicator{shared, r};
    nccl().communicators += ranks;
    return kSuccess;
}
Result end(Communicator *one, int &count) {
    const std::lock_guard hold(device_lock());
    *one->ended = true;
    ++count, --nccl().communicators;
    delete one;
    return kSuccess;
}
Result destroy(Communicator *one) {
    const std::lock_guard hold(device_lock());
    for (const auto &[ranks, messages] : one->ranks->messages)
        if (ranks.first == one->rank && !messages.empty())
            misuse(kInvalidUsage, "a communicator is destroyed with messages in flight");
    return end(one, nccl().destroyed);
}
Result abort(Communicator *one) {
    return end(one, nccl().aborted);
}
Result async_error(Communicator *one, Result *result) {
    const std::lock_guard hold(device_lock());
    *result = *one->failed ? kRemoteError : kSuccess;
    return kSuccess;
}
Result group_start() {
    ++open_group.depth;
    return kSuccess;
}
Result group_end() {
    const std::lock_guard hold(device_lock());
    if (open_group.depth == 0) return misuse(kInvalidUsage, "a group ends that has not begun");
    if (--open_group.depth > 0) return kSuccess;
    std::map<Communicator *, std::vector<Message>> by_rank;
    for (const Message &m : std::exchange(open_group.messages, {})) by_rank[m.communicator].push_back(m);
    for (auto &[one, messages] : by_rank) {
        ++nccl().groups;
        const bool stalls = ++one->groups >= nccl().failing_group && one->rank == nccl().failing_rank;
        nccl().most_pending = std::max(nccl().most_pending, ++*one->pending);
        for (const Message &m : messages)
            if (m.stream != messages.front().stream) return misuse(kInvalidUsage, "a group on two streams");
        void *const stream = messages.front().stream;
        add_step(stream, GroupStep(*one, std::move(messages), stalls));
    }
    return kSuccess;
}
Result send(const void *from, size_t count, int type, int to, Communicator *own, void *stream) {
    return add({true, to, from, nullptr, 0, own, stream}, count, type);
}
Result receive(void *to, size_t count, int type, int from, Communicator *own, void *stream) {
    return add({false, from, nullptr, to, 0, own, stream}, count, type);
}

template <class Function>
void *address(Function *function) {
    return reinterpret_cast<void *>(function);
}

void *find(const std::string &name) {
    const std::map<std::string, void *> all = {
        {"ncclGetVersion", address(get_version)},
        {"ncclGetErrorString", address(error_text)},
        {"ncclGetLastError", address(last_error)},
        {"ncclCommInitAll", address(init_all)},
        {"ncclCommDestroy", address(destroy)},
        {"ncclCommAbort", address(abort)},
        {"ncclCommGetAsyncError", address(async_error)},
        {"ncclGroupStart", address(group_start)},
        {"ncclGroupEnd", address(group_end)},
        {"ncclSend", address(send)},
        {"ncclRecv", address(receive)},
    };
    const auto found = all.find(name);
    return found == all.end() || name == nccl().missing ? nullptr : found->second;
}

}  // namespace
}  // namespace runnel::simt

// The NCCL of the emulated devices.
runnel::kernels::cuda::nccl::Find runnel::kernels::cuda::nccl::installed() {
    if (!simt::nccl().installed)
        throw BackendError(BackendError::Kind::Failed, "no NCCL is installed on the emulated devices");
    return [](const char *name) { return simt::find(name); };
}
