#include "engine/decode/stop_request.h"

#include <algorithm>

namespace runnel::decode {

DeadlineTimer::DeadlineTimer(StopRequest &request, std::chrono::duration<double> time) {
    // At most a year, which is far from the clock's overflow.
    const auto wait = std::chrono::duration_cast<std::chrono::steady_clock::duration>(
        std::clamp(time, std::chrono::duration<double>(0), std::chrono::duration<double>(365.0 * 86400)));
    if (wait.count() == 0) {
        request.request(StopRequest::Reason::Deadline);
        return;
    }
    thread_ = std::thread([this, &request, end = std::chrono::steady_clock::now() + wait] {
        std::unique_lock lock(mutex_);
        if (!over_.wait_until(lock, end, [this] { return cancelled_; }))
            request.request(StopRequest::Reason::Deadline);
    });
}

DeadlineTimer::~DeadlineTimer() {
    {
        const std::lock_guard lock(mutex_);
        cancelled_ = true;
    }
    over_.notify_one();
    if (thread_.joinable()) thread_.join();
}

}  // namespace runnel::decode
