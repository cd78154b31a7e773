#include "kernels/cpu/pool.h"

#include <doctest/doctest.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

using namespace runnel::kernels::cpu;

TEST_CASE("every thread of the pool runs the function once") {
    for (const int threads : {1, 2, 3, 4, 9}) {
        CAPTURE(threads);
        Pool pool(threads);
        REQUIRE(pool.threads() == threads);
        std::vector<int> calls(static_cast<size_t>(threads), 0);
        for (int round = 0; round < 200; ++round)
            pool.run([&](int thread) noexcept { ++calls[static_cast<size_t>(thread)]; });
        for (const int count : calls) CHECK(count == 200);
    }
}

TEST_CASE("a pool that never runs anything ends at once") {
    for (int round = 0; round < 20; ++round) Pool pool(3);
}

TEST_CASE("the barrier orders the phases, also with more threads than CPUs") {
    for (const int threads : {1, 2, 3, 2 * usable_cpus() + 1}) {
        CAPTURE(threads);
        Pool pool(threads);
        constexpr int kPhases = 500;
        std::vector<int> phase(static_cast<size_t>(threads),
                               0);  // without a lock on purpose: the barrier must order the accesses
        std::atomic<int> violations{0};
        pool.run([&](int thread) noexcept {
            for (int p = 1; p <= kPhases; ++p) {
                phase[static_cast<size_t>(thread)] = p;
                pool.barrier();
                for (const int other : phase) violations += other != p;
                pool.barrier();
            }
        });
        CHECK(violations == 0);
    }
}

TEST_CASE("loops visit every unit once, phase after phase") {
    for (const int threads : {1, 2, 5}) {
        Pool pool(threads);
        for (const int64_t units : {0, 1, 2, 7, 64, 1000}) {
            for (const int64_t grain : {1, 3, 64}) {
                CAPTURE(threads);
                CAPTURE(units);
                CAPTURE(grain);
                constexpr int kPhases = 20;
                std::vector<std::atomic<int>> each(static_cast<size_t>(units)),
                    ranges(static_cast<size_t>(units));
                std::atomic<int> bad_ranges{0};
                pool.run([&](int thread) noexcept {
                    for (int p = 0; p < kPhases; ++p) {
                        pool.for_each(
                            thread, units, [&](int64_t unit) { ++each[static_cast<size_t>(unit)]; }, 0);
                        pool.for_ranges(
                            thread, units,
                            [&](int64_t begin, int64_t end) {
                                bad_ranges += begin >= end;
                                for (int64_t unit = begin; unit < end; ++unit)
                                    ++ranges[static_cast<size_t>(unit)];
                            },
                            grain, 1);
                        pool.barrier();
                    }
                });
                CHECK(bad_ranges == 0);
                for (const auto &count : each) CHECK(count == kPhases);
                for (const auto &count : ranges) CHECK(count == kPhases);
            }
        }
    }
}

TEST_CASE("an idle pool uses no CPU and wakes again") {
    Pool pool(2);
    std::atomic<int> calls{0};
    clockid_t clock{};  // CPU time of the other thread
    const auto used = [&clock] {
        timespec t{};
        clock_gettime(clock, &t);
        return std::pair(t.tv_sec, t.tv_nsec);
    };
    for (int round = 0; round < 3; ++round) {
        pool.run([&](int thread) noexcept {
            ++calls;
            if (thread == 1) pthread_getcpuclockid(pthread_self(), &clock);
        });
        // A waiting thread spins for a moment, then sleeps: eventually it uses no more CPU time.
        bool idle = false;
        for (int i = 0; i < 1000 && !idle; ++i) {
            const auto before = used();
            std::this_thread::sleep_for(std::chrono::milliseconds(60));
            idle = used() == before;
        }
        CHECK(idle);
    }
    CHECK(calls == 6);
}

TEST_CASE("the number of CPUs is sensible") {
    CHECK(usable_cpus() >= 1);
    CHECK(physical_cores() >= 1);
    CHECK(physical_cores() <= usable_cpus());
}

TEST_CASE("CPU quotas of control groups are found") {
    namespace fs = std::filesystem;
    const fs::path root = fs::temp_directory_path() / ("runnel-cgroup-" + std::to_string(getpid()));
    const auto write = [&](const fs::path &name, const std::string &text) {
        fs::create_directories((root / name).parent_path());
        std::ofstream(root / name) << text;
    };
    const auto limit = [&] { return cgroup_cpu_limit(root / "membership", root / "mount"); };

    CHECK(limit() == 0);
    write("membership", "0::/user/job\n");
    CHECK(limit() == 0);
    write("mount/user/job/cpu.max", "max 100000\n");
    CHECK(limit() == 0);
    write("mount/user/cpu.max", "350000 100000\n");
    CHECK(limit() == 3);
    write("mount/user/job/cpu.max", "50000 100000\n");
    CHECK(limit() == 1);
    write("mount/user/job/cpu.max", "800000 100000\n");
    CHECK(limit() == 3);
    write("membership", "garbage\n12:memory:/a\n4:cpu,cpuacct:/docker/x\n");
    CHECK(limit() == 0);
    write("mount/cpu/cpu.cfs_quota_us", "-1\n");
    write("mount/cpu/cpu.cfs_period_us", "100000\n");
    CHECK(limit() == 0);
    write("mount/cpu/docker/x/cpu.cfs_quota_us", "250000\n");
    write("mount/cpu/docker/x/cpu.cfs_period_us", "100000\n");
    CHECK(limit() == 2);
    fs::remove_all(root);
}
