// Processor time, for tests of work that no counter measures. Unlike wall-clock time, it excludes what other
// programs on a busy machine take (but not their use of memory bandwidth). As machines and builds differ in
// speed, compare it with processor time of the same run, or with kHang.
#pragma once

#include <time.h>

#include <algorithm>
#include <limits>

namespace runnel::testing {

// Far more seconds than any tested work takes, with sanitizers, on a slow machine: work that takes so long
// would probably never end.
inline constexpr double kHang = 60;

// Processor time of the calling thread.
inline double thread_seconds() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Seconds of this thread that work() takes: the minimum of five runs, to exclude disturbances.
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
