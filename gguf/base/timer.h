// A stopwatch.
#pragma once

#include <chrono>

namespace runnel::base {

using Clock = std::chrono::steady_clock;

inline double seconds_between(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
}
inline double seconds_since(Clock::time_point start) {
    return seconds_between(start, Clock::now());
}

}  // namespace runnel::base
