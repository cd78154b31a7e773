#include "kernels/cpu/pool.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <fstream>
#include <set>
#include <string>

namespace runnel::kernels::cpu {
namespace {

using Clock = std::chrono::steady_clock;
// How long a thread spins before it sleeps. Waking a sleeping thread costs 30-60 us, so spinning through a
// wait of that length pays off; through a much longer one it does not.
constexpr auto kSpin = std::chrono::microseconds(100);
constexpr int kPausesPerClock = 32;  // pauses between two looks at the clock, about 1 us

void futex_wait(std::atomic<uint32_t> &word, uint32_t expected) noexcept {
    static_assert(sizeof(word) == 4 && std::atomic<uint32_t>::is_always_lock_free);
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t> &word) noexcept {
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// Tells the CPU that this is a spin loop.
void pause_cpu() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");  // waits as long as x86's pause; "yield" returns at once
#endif
}

}  // namespace

// Sleeping without lost wake-ups: a waiter announces itself, then reads the value again; the releaser changes
// the value, then looks for waiters. Both are sequentially consistent, so at least one of them sees the
// other's write. The futex itself does not sleep if the value is not `seen` any more.
void Signal::advance() noexcept {
    value_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) futex_wake_all(value_);
}

void Signal::wait(uint32_t seen, bool spin) noexcept {
    if (spin) {
        const Clock::time_point until = Clock::now() + kSpin;
        do {
            for (int i = 0; i < kPausesPerClock; ++i) {
                if (value() != seen) return;
                pause_cpu();
            }
        } while (Clock::now() < until);
    }
    if (value() != seen) return;
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (value_.load(std::memory_order_seq_cst) == seen) futex_wait(value_, seen);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

Pool::Pool(int threads) : threads_(threads), spin_(threads <= usable_cpus()) {
    others_.reserve(static_cast<size_t>(threads - 1));
    try {
        for (int thread = 1; thread < threads; ++thread)
            others_.emplace_back([this, thread] { work(thread); });
    } catch (...) {
        stop();
        throw;
    }
}

Pool::~Pool() {
    stop();
}

void Pool::stop() noexcept {
    job_ = nullptr;
    start_.advance();
    for (std::thread &other : others_) other.join();
}

void Pool::dispatch(Job job, void *context) noexcept {
    restart_counters();
    if (threads_ == 1) {
        job(context, 0);
        return;
    }
    const uint32_t seen = finish_.value();
    finished_.store(0, std::memory_order_relaxed);
    job_ = job;
    context_ = context;
    start_.advance();
    job(context, 0);
    finish_.wait(seen, spin_);
}

void Pool::work(int thread) noexcept {
    for (uint32_t seen = 0;; ++seen) {
        // The first wait lasts until a model is loaded: spinning would be a waste.
        start_.wait(seen, spin_ && seen > 0);
        if (job_ == nullptr) return;
        job_(context_, thread);
        if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_ - 1) finish_.advance();
    }
}

void Pool::barrier() noexcept {
    if (threads_ == 1) {
        restart_counters();
        return;
    }
    const uint32_t seen = barrier_.value();
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < threads_) {
        barrier_.wait(seen, spin_);
        return;
    }
    // All other threads are waiting, so the counters are not in use.
    arrived_.store(0, std::memory_order_relaxed);
    restart_counters();
    barrier_.advance();
}

void Pool::restart_counters() noexcept {
    for (Counter &counter : counters_) counter.value.store(0, std::memory_order_relaxed);
}

// --- how many threads ------------------------------------------------------------------------------------

namespace {

// The CPUs of the affinity mask. On a large machine the mask can be larger than cpu_set_t.
std::vector<int> affinity_cpus() {
    for (size_t sets = 1; sets <= 64; sets *= 2) {
        std::vector<cpu_set_t> mask(sets);
        const size_t bytes = sets * sizeof(cpu_set_t);
        if (sched_getaffinity(0, bytes, mask.data()) != 0) continue;
        std::vector<int> cpus;
        for (int cpu = 0; cpu < static_cast<int>(8 * bytes); ++cpu)
            if (CPU_ISSET_S(cpu, bytes, mask.data())) cpus.push_back(cpu);
        return cpus;
    }
    return {};
}

std::string first_line(const std::filesystem::path &path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

// The CPU quota of one control group; 0 without a limit. v2: "150000 100000", or "max 100000" for none; v1:
// -1 for none.
int group_limit(const std::filesystem::path &group) {
    double quota = 0, period = 0;
    if (std::ifstream file(group / "cpu.max"); file) {
        if (!(file >> quota >> period)) return 0;
    } else {
        std::ifstream quota_file(group / "cpu.cfs_quota_us"), period_file(group / "cpu.cfs_period_us");
        if (!(quota_file >> quota) || !(period_file >> period)) return 0;
    }
    if (!(quota > 0) || !(period > 0)) return 0;
    return static_cast<int>(std::clamp(quota / period, 1.0, 1e6));
}

// The tightest limit of root/relative and its ancestors up to root.
int limit_up_to(const std::filesystem::path &root, std::filesystem::path relative) {
    int limit = 0;
    for (;;) {
        const int here = group_limit(relative.empty() ? root : root / relative);
        if (here > 0) limit = limit > 0 ? std::min(limit, here) : here;
        if (relative.empty()) return limit;
        relative = relative.parent_path();
    }
}

}  // namespace

int cgroup_cpu_limit(const std::filesystem::path &membership, const std::filesystem::path &mount) {
    std::ifstream file(membership);
    int limit = 0;
    // Lines are "hierarchy:controllers:/path"; v2 is the line with no controllers.
    for (std::string line; std::getline(file, line);) {
        const size_t first = line.find(':');
        const size_t second = line.find(':', first == std::string::npos ? first : first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const std::filesystem::path relative = std::filesystem::path(line.substr(second + 1)).relative_path();
        int here = 0;
        if (controllers.empty()) {
            here = limit_up_to(mount, relative);
        } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
            here = limit_up_to(mount / "cpu", relative);
        }
        if (here > 0) limit = limit > 0 ? std::min(limit, here) : here;
    }
    return limit;
}

namespace {

int limited(int cpus) {
    const int limit = cgroup_cpu_limit("/proc/self/cgroup", "/sys/fs/cgroup");
    return std::max(1, limit > 0 ? std::min(cpus, limit) : cpus);
}

}  // namespace

int usable_cpus() {
    return limited(static_cast<int>(affinity_cpus().size()));
}

int physical_cores() {
    std::set<std::string> cores;  // CPUs of one core name the same list of siblings
    for (const int cpu : affinity_cpus()) {
        const std::string name = std::to_string(cpu);
        const std::string siblings =
            first_line("/sys/devices/system/cpu/cpu" + name + "/topology/thread_siblings_list");
        cores.insert(siblings.empty() ? "cpu " + name : siblings);
    }
    return limited(static_cast<int>(cores.size()));
}

}  // namespace runnel::kernels::cpu
