#include "kernels/rank_threads.h"

#include <string>
#include <system_error>

#include "kernels/backend.h"

namespace runnel::kernels {

RankThreads::RankThreads(size_t ranks) {
    try {
        for (size_t rank = 1; rank < ranks; ++rank) threads_.emplace_back([this, rank] { work(rank); });
    } catch (const std::system_error &error) {
        stop();
        throw BackendError(BackendError::Kind::Failed,
                           "cannot start " + std::to_string(ranks) + " threads, one for each device (" +
                               error.code().message() + "): choose fewer devices with --device");
    }
}

RankThreads::~RankThreads() {
    stop();
}

void RankThreads::stop() {
    {
        const std::lock_guard lock(mutex_);
        stopped_ = true;
    }
    started_.notify_all();
    for (std::thread &thread : threads_) thread.join();
}

void RankThreads::run(const std::function<void(size_t)> &f) {
    {
        const std::lock_guard lock(mutex_);
        job_ = &f;
        ++number_;
        busy_ = threads_.size();
    }
    started_.notify_all();
    f(0);
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [this] { return busy_ == 0; });
}

void RankThreads::work(size_t rank) {
    for (uint64_t done = 0;; ++done) {
        std::unique_lock lock(mutex_);
        started_.wait(lock, [&] { return stopped_ || number_ > done; });
        if (stopped_) return;
        const auto *job = job_;
        lock.unlock();
        (*job)(rank);
        lock.lock();
        if (--busy_ == 0) finished_.notify_one();
    }
}

}  // namespace runnel::kernels
