// Processor time, for claims about work that nothing counts: unlike the clock on the wall, it leaves out what
// other programs on a busy machine take away (but not the memory bandwidth they use). As machines and builds
// differ in speed, it is compared with processor time of the same run, or with kHang.
#pragma once

#include <time.h>

#include <algorithm>
#include <limits>

namespace runnel::testing {

// Far more seconds than anything tested takes, with sanitizers, on a slow machine: what reaches it would
// hardly have come to an end.
inline constexpr double kHang = 60;

// Of the calling thread.
inline double thread_seconds() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Seconds that work() takes on this thread: the least of five, one of which nobody disturbs.
double least_seconds(auto &&work) {
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 5; ++i) {
        const double start = thread_seconds();
        work();
        least = std::min(least, thread_seconds() - start);
    }
    return least;
}

}  // namespace runnel::testing
