// Requests that a running computation stops: from a signal handler, another thread, or a clock.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace runnel::decode {

class StopRequest {
  public:
    enum class Reason : int { None, Interrupt, Deadline };

    // An interrupt replaces any earlier reason; otherwise the first reason stays. Safe in a signal handler.
    void request(Reason reason) noexcept {
        Reason none = Reason::None;
        if (reason == Reason::Interrupt)
            reason_.store(reason);
        else
            reason_.compare_exchange_strong(none, reason);
        flag_.store(true);
    }
    void reset() noexcept {
        flag_.store(false);
        reason_.store(Reason::None);
    }
    bool requested() const noexcept { return flag_.load(std::memory_order_relaxed); }
    Reason reason() const noexcept { return reason_.load(); }
    const std::atomic<bool> *flag() const noexcept { return &flag_; }

  private:
    static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);
    std::atomic<bool> flag_{false};
    std::atomic<Reason> reason_{Reason::None};
};

// Requests a stop after `time` (0: at once), unless this object is destroyed before.
class DeadlineTimer {
  public:
    DeadlineTimer(StopRequest &request, std::chrono::duration<double> time);
    ~DeadlineTimer();
    DeadlineTimer(const DeadlineTimer &) = delete;
    DeadlineTimer &operator=(const DeadlineTimer &) = delete;

  private:
    std::mutex mutex_;
    std::condition_variable over_;
    bool cancelled_ = false;
    std::thread thread_;
};

}  // namespace runnel::decode
