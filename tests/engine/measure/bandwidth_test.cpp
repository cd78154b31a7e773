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

TEST_CASE("bandwidth: the meter reports the bytes that it read per time") {
    for (const int threads : {1, 2, 3})
        for (const int passes : {1, 5}) {
            CAPTURE(threads);
            CAPTURE(passes);
            constexpr size_t bytes = size_t{24} << 20;
            BandwidthMeter meter(threads, bytes);
            // Each thread reads whole steps of 256 bytes in up to eight streams.
            CHECK(meter.bytes() ==
                  bytes / static_cast<size_t>(threads) / 2048 * 2048 * static_cast<size_t>(threads));
            double rate = 0;
            const double outside = seconds([&] { rate = meter.read(passes); });
            // Three patterns take turns, and the fastest pass counts.
            CHECK(rate >= 3 * static_cast<double>(meter.bytes()) * passes / outside);
            // No memory delivers a terabyte per second to three threads, so the reads were not optimized away.
            CHECK(rate < 1e12);
            const std::string words = meter.best().words();
            CHECK(words.find("per thread, ") != std::string::npos);
            CHECK(words.ends_with(" pages"));
        }
}

TEST_CASE("bandwidth: every pass reads all the memory") {
    BandwidthMeter meter(1, size_t{16} << 20);
    const double once = testing::least_seconds([&] { meter.read(1); });
    CHECK(testing::least_seconds([&] { meter.read(16); }) > 4 * once);
}

TEST_CASE("bandwidth: the probe is as large as the working set, within limits") {
    constexpr size_t kMiB = size_t{1} << 20, kPlenty = size_t{64} << 30;
    CHECK(probe_bytes(600 * kMiB, kPlenty) == 600 * kMiB);
    CHECK(probe_bytes(40'000 * kMiB, kPlenty) == kMostProbe);
    CHECK(probe_bytes(1 * kMiB, kPlenty) == 4 * kMiB);
    CHECK(probe_bytes(600 * kMiB, 800 * kMiB) == 100 * kMiB);  // an eighth of what is free
    CHECK(probe_bytes(600 * kMiB, 0) == 4 * kMiB);
}

}  // namespace
}  // namespace runnel::measure
