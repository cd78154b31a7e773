// The bandwidth meter reports bytes over time, for any amount of memory and number of threads.
#include "engine/measure/bandwidth.h"

#include <doctest/doctest.h>

#include <chrono>

#include "tests/support/cpu_time.h"

namespace runnel::measure {
namespace {

double seconds(auto &&work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST_CASE("bandwidth: what the meter reports is what it read in the time it took") {
    for (const int threads : {1, 2, 3})
        for (const int passes : {1, 5}) {
            CAPTURE(threads);
            CAPTURE(passes);
            constexpr size_t bytes = size_t{24} << 20;
            BandwidthMeter meter(threads, bytes);
            double rate = 0;
            const double outside = seconds([&] { rate = meter.read(passes); });
            // Each thread reads whole steps of 256 bytes.
            const double read =
                static_cast<double>(bytes / static_cast<size_t>(threads) / 256 * 256) * threads * passes;
            CHECK(rate >= read / outside);
            // No memory delivers a terabyte per second to three threads, so the reads were not optimized away.
            CHECK(rate < 1e12);
        }
}

TEST_CASE("bandwidth: every pass is read") {
    BandwidthMeter meter(1, size_t{16} << 20);
    const double once = testing::least_seconds([&] { meter.read(1); });
    CHECK(testing::least_seconds([&] { meter.read(16); }) > 4 * once);
}

}  // namespace
}  // namespace runnel::measure
