// The CPU's threads: one team that runs the same function on every thread (SPMD), with a barrier between
// the phases of that function.
//
//   pool.run([&](int thread) noexcept {
//       pool.for_ranges(thread, rows, [&](int64_t begin, int64_t end) { ... });   // phase 1
//       pool.barrier();
//       pool.for_each(thread, heads, [&](int64_t head) { ... });                  // phase 2
//   });
//
// A forward pass of one token has about a hundred phases of 10 us to 1 ms, so a phase change must cost a
// fraction of a microsecond: threads wait by spinning. A thread that has waited for kSpin sleeps on a
// futex, so an idle team uses no CPU time; releasing the team makes a system call only if a thread is
// asleep. Spinning with more threads than CPUs is very slow, so the team spins only if usable_cpus() >=
// threads.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace runnel::kernels::cpu {

// CPUs that this process may use at the same time: its affinity mask, limited by the CPU quota of its control
// group (rounded down). At least 1.
int usable_cpus();

// Physical cores among the CPUs of the affinity mask (SMT siblings count once), limited by the quota: the
// default number of threads. At least 1.
int physical_cores();

// CPUs allowed by cgroup quotas, rounded down, at least 1; 0 if there is no limit or no cgroup.
//   membership: /proc/self/cgroup; mount: /sys/fs/cgroup. Understands v2 (cpu.max) and v1 (cpu.cfs_quota_us);
//   the limit of every ancestor applies.
int cgroup_cpu_limit(const std::filesystem::path &membership, const std::filesystem::path &mount);

// A counter that threads wait on.
class alignas(64) Signal {
  public:
    uint32_t value() const noexcept { return value_.load(std::memory_order_acquire); }
    // Adds 1 and releases all waiting threads. Earlier writes of the caller are visible to them.
    void advance() noexcept;
    // Returns when value() != seen: spins first if `spin`, then sleeps.
    void wait(uint32_t seen, bool spin) noexcept;

  private:
    std::atomic<uint32_t> value_{0};
    std::atomic<uint32_t> sleepers_{0};
};

class Pool {
  public:
    // A team of `threads` >= 1: the caller of run() and threads - 1 others, which start asleep. With 1
    // thread, run() is a plain call. Throws std::system_error if the system refuses a thread.
    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    int threads() const noexcept { return threads_; }

    // Calls f(thread) on every thread, 0 <= thread < threads(); the caller is thread 0. Returns when
    // all are done. f is noexcept: an exception cannot cross threads. Must not be called inside f,
    // nor by two callers at a time.
    template <typename F>
    void run(F &&f) noexcept {
        static_assert(std::is_nothrow_invocable_v<F &, int>, "mark the function noexcept");
        using Function = std::remove_reference_t<F>;
        dispatch([](void *context, int thread) noexcept { (*static_cast<Function *>(context))(thread); },
                 const_cast<void *>(static_cast<const void *>(std::addressof(f))));
    }

    // Inside f, by all threads: returns when all threads have arrived. Resets the counters of the loops below.
    void barrier() noexcept;

    // Loops of one phase, inside f. Every thread calls the same loop with the same `units`; together they
    // visit each unit exactly once. A phase may have up to kLoops of them, numbered by `loop`.
    static constexpr int kLoops = 4;

    // body(unit), one unit at a time from a shared counter: for units of different cost.
    template <typename Body>
    void for_each(int thread, int64_t units, Body &&body, int loop = 0) noexcept {
        static_cast<void>(thread);
        for (int64_t unit = take(loop, 1); unit < units; unit = take(loop, 1)) body(unit);
    }

    // body(begin, end): first one contiguous range per thread, 3/4 of all units together, so that each thread
    // reads a long stream; then ranges of `grain` units from a shared counter, which balances cores that are
    // busy with other processes.
    template <typename Body>
    void for_ranges(int thread, int64_t units, Body &&body, int64_t grain = 1, int loop = 0) noexcept {
        if (threads_ == 1) {
            if (units > 0) body(int64_t{0}, units);
            return;
        }
        const int64_t share = units * 3 / 4 / threads_ / grain * grain;
        const int64_t fixed = share * threads_;
        if (share > 0) body(share * thread, share * (thread + 1));
        for (int64_t at = fixed + take(loop, grain); at < units; at = fixed + take(loop, grain))
            body(at, std::min(at + grain, units));
    }

    // The first unit of a thread's first range in for_ranges() and for_ranges_ahead().
    int64_t first_unit(int thread, int64_t units, int64_t grain) const noexcept {
        return threads_ == 1 ? 0 : units * 3 / 4 / threads_ / grain * grain * thread;
    }

    // Like for_ranges, but body(begin, end, next) also gets the first unit of this thread's next range, or
    // -1. (To know it, a thread takes ranges from the counter one ahead.)
    template <typename Body>
    void for_ranges_ahead(int thread, int64_t units, Body &&body, int64_t grain = 1, int loop = 0) noexcept {
        if (threads_ == 1) {
            if (units > 0) body(int64_t{0}, units, int64_t{-1});
            return;
        }
        const int64_t share = units * 3 / 4 / threads_ / grain * grain;
        const int64_t fixed = share * threads_;
        const auto next_range = [&]() {
            const int64_t at = fixed + take(loop, grain);
            return at < units ? at : int64_t{-1};
        };
        int64_t at = next_range();
        if (share > 0) body(share * thread, share * (thread + 1), at);
        while (at >= 0) {
            const int64_t next = next_range();
            body(at, std::min(at + grain, units), next);
            at = next;
        }
    }

    // Adds `count` to the phase's counter number `loop` and returns its previous value: a building
    // block for other kinds of loops.
    int64_t take(int loop, int64_t count) noexcept {
        return counters_[static_cast<size_t>(loop)].value.fetch_add(count, std::memory_order_relaxed);
    }

  private:
    using Job = void (*)(void *context, int thread) noexcept;
    struct alignas(64) Counter {
        std::atomic<int64_t> value{0};
    };

    void dispatch(Job job, void *context) noexcept;
    void work(int thread) noexcept;
    void restart_counters() noexcept;
    void stop() noexcept;

    const int threads_;
    const bool spin_;
    Job job_ = nullptr;  // null: the team ends
    void *context_ = nullptr;
    Signal start_, finish_, barrier_;
    alignas(64) std::atomic<int> arrived_{0};   // at the barrier
    alignas(64) std::atomic<int> finished_{0};  // other threads that have left f
    std::array<Counter, kLoops> counters_;
    std::vector<std::thread> others_;
};

}  // namespace runnel::kernels::cpu
