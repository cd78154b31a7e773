// Divides rows among threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace runnel::quantize {

// Calls work(first, last) for pieces of [0, count) on several threads. Rethrows the exception of
// the first piece that fails, which does not depend on the number of threads.
template <class Work>
void in_parallel(int threads, int64_t count, int64_t piece, Work work) {
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false};
    std::mutex mutex;
    int64_t failed_at = count;
    std::exception_ptr error;
    const auto run = [&] {
        while (!failed) {
            const int64_t at = next.fetch_add(piece);
            if (at >= count) return;
            // Pieces are taken in order, and every piece that was taken is finished.
            try {
                work(at, std::min(count, at + piece));
            } catch (...) {
                const std::scoped_lock lock(mutex);
                if (at < failed_at) failed_at = at, error = std::current_exception();
                failed = true;
            }
        }
    };
    {
        std::vector<std::jthread> team;
        try {
            for (int i = 1; i < threads; ++i) team.emplace_back(run);
        } catch (const std::system_error &) {
            // No more threads can be started: the running ones do the work.
        }
        run();
    }
    if (error) std::rethrow_exception(error);
}

}  // namespace runnel::quantize
