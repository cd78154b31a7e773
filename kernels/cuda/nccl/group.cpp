#include "kernels/cuda/nccl/group.h"

#include <chrono>
#include <utility>

namespace runnel::kernels::cuda::nccl {
namespace {

constexpr std::chrono::microseconds kPoll{1000};  // between two looks for errors

}  // namespace

Group::Group(Library library, std::span<const int> devices)
    : library_(std::move(library)), communicators_(devices.size()) {
    const int ranks = static_cast<int>(devices.size());
    const Result result = library_.functions.init_all(communicators_.data(), ranks, devices.data());
    if (result == kSuccess) return;
    communicators_.clear();
    check(result, "starting", nullptr);
}

// After abort() on one rank, the operations of the others may never end, and destroy() waits for those. So all are aborted.
Group::~Group() {
    for (Communicator *&one : communicators_) {
        if (one == nullptr) continue;
        aborted_ ? library_.functions.abort(one) : library_.functions.destroy(one);
    }
}

void Group::check(Result result, const char *what, Communicator *communicator) const {
    if (result == kSuccess || result == kInProgress) return;
    std::string details = library_.functions.last_error(communicator);
    details = details.substr(0, details.find('\n'));
    throw BackendError(BackendError::Kind::Failed, library_.name + ": " + what + ": " +
                                                       library_.functions.error_text(result) +
                                                       (details.empty() ? "" : " (" + details + ")"));
}

void Group::exchange(std::span<const Exchange> exchanges) {
    const Functions &f = library_.functions;
    check(f.group_start(), "beginning a gather", nullptr);
    Result result = kSuccess;
    Communicator *failing = nullptr;
    for (const Exchange &one : exchanges) {
        Communicator *const own = communicators_[one.rank];
        const auto add = [&](auto function, const Message &m) {
            if (result != kSuccess) return;
            result = function(m.data, m.count, kFloat32, static_cast<int>(m.rank), own, one.stream);
            failing = own;
        };
        for (const Message &m : one.sends) add(f.send, m);
        for (const Message &m : one.receives) add(f.receive, m);
    }
    const Result ended = f.group_end();  // also after an error: groups nest
    check(result, "sending", failing);
    check(ended, "sending", failing);
}

void Group::wait(size_t rank, const Event &event) {
    Communicator *const own = communicators_[rank];
    while (true) {
        if (aborted_) throw BackendError(BackendError::Kind::Failed, "another GPU failed");
        const bool done = event.wait(kPoll);
        Result state = kSuccess;
        check(library_.functions.async_error(own, &state), "waiting", own);
        check(state, "gathering", own);
        if (done) return;
    }
}

void Group::abort(size_t rank) noexcept {
    aborted_ = true;
    if (Communicator *const own = std::exchange(communicators_[rank], nullptr)) library_.functions.abort(own);
}

}  // namespace runnel::kernels::cuda::nccl
