// When the devices of a split program may compute their stages of a batch's parts at the same time: a stage computes a part when
// those whose slots it reads have computed it, and when those that read its slots have copied what it wrote for the part before.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

namespace runnel::kernels {

class StageOrder {
  public:
    // by stage: the stages whose slots it reads
    explicit StageOrder(std::vector<std::vector<size_t>> writers)
        : writers_(std::move(writers)),
          readers_(writers_.size()),
          taken_(writers_.size()),
          done_(writers_.size()) {
        for (size_t s = 0; s < writers_.size(); ++s)
            for (const size_t writer : writers_[s]) readers_[writer].push_back(s);
    }

    // Runs one stage of all parts, on this stage's own thread: take(part) copies what it reads, compute(part) returns false to
    // cancel. After a cancellation or an exception, which is kept, all stages end.
    template <typename Take, typename Compute>
    void run(size_t stage, size_t parts, Take &&take, Compute &&compute) {
        try {
            for (size_t part = 0; part < parts; ++part) {
                if (!wait(stage, part)) return;
                take(part);
                advance(taken_[stage]);
                if (!compute(part)) return stop(nullptr);
                advance(done_[stage]);
            }
        } catch (...) {
            stop(std::current_exception());
        }
    }

    // After all stages have ended: whether none was cancelled. Throws the first exception.
    bool finished() const {
        if (error_) std::rethrow_exception(error_);
        return !stopped_;
    }

  private:
    // Returns false if all are to end.
    bool wait(size_t stage, size_t part) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stopped_ || may_begin(stage, part); });
        return !stopped_;
    }
    bool may_begin(size_t stage, size_t part) const {
        for (const size_t writer : writers_[stage])
            if (done_[writer] <= part) return false;
        for (const size_t reader : readers_[stage])
            if (taken_[reader] < part) return false;
        return true;
    }
    void advance(size_t &parts) {
        {
            const std::lock_guard lock(mutex_);
            ++parts;
        }
        changed_.notify_all();
    }
    void stop(std::exception_ptr error) {
        {
            const std::lock_guard lock(mutex_);
            if (!stopped_) error_ = std::move(error);
            stopped_ = true;
        }
        changed_.notify_all();
    }

    const std::vector<std::vector<size_t>> writers_;
    std::vector<std::vector<size_t>> readers_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<size_t> taken_, done_;  // by stage: parts
    bool stopped_ = false;
    std::exception_ptr error_;
};

}  // namespace runnel::kernels
