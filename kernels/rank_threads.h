// A thread for each rank of a group that works side by side.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace runnel::kernels {

class RankThreads {
  public:
    // Throws BackendError{Failed} if a thread cannot be started.
    explicit RankThreads(size_t ranks);
    RankThreads(const RankThreads &) = delete;
    RankThreads &operator=(const RankThreads &) = delete;
    ~RankThreads();

    // Calls f(rank) for every rank on its own thread, which for rank 0 is the caller's, and returns when all have returned.
    // f must not throw.
    void run(const std::function<void(size_t)> &f);

  private:
    void work(size_t rank);
    void stop();

    std::mutex mutex_;
    std::condition_variable started_, finished_;
    const std::function<void(size_t)> *job_ = nullptr;
    uint64_t number_ = 0;  // of the job
    size_t busy_ = 0;      // threads that have not finished it
    bool stopped_ = false;
    std::vector<std::thread> threads_;  // of the ranks from 1 on
};

}  // namespace runnel::kernels
