// Measures the memory read bandwidth of this machine, the limit of decoding.
#pragma once

#include <sys/mman.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/pool.h"

namespace runnel::measure {

// Bytes of the largest cache of this machine's CPU, as the system reports it; 0 if it does not.
size_t last_level_cache();

// The largest size of the meter's memory, of each kind of page.
inline constexpr size_t kMostProbe = size_t{1} << 30;

// The size of the meter's memory for work that reads `working_set` bytes over and over: the same size, because
// a cache that keeps a part of one keeps that part of the other. At least 4 MiB, at most kMostProbe and an eighth
// of `available`.
size_t probe_bytes(size_t working_set, size_t available);

// Threads that read memory, each its own part. Which order of reads is the fastest depends on the machine, so
// the meter tries several and reports the best: one to eight streams per thread, with and without prefetch, in
// pages of 4 KiB and, where the system grants them, of 2 MiB.
class BandwidthMeter {
  public:
    struct Pattern {
        int streams;                // places that a thread reads from in turn
        int prefetch;               // bytes ahead; 0: none
        bool huge_pages;            // 2 MiB
        std::string words() const;  // "2 streams per thread, prefetch 1024 bytes ahead, 2 MiB pages"
    };

    // Reads `bytes` with every pattern once. threads >= 1. Throws std::bad_alloc.
    explicit BandwidthMeter(int threads, size_t bytes = size_t{512} << 20);

    // Bytes per second of the fastest of `passes` reads of all the memory with each of the three patterns that
    // were best at construction. On a shared machine the figure changes from moment to moment: measure right
    // before and after what is compared with it.
    double read(int passes = 2);
    // The best pattern of the last read().
    const Pattern &best() const { return ranking_.front().pattern; }
    size_t bytes() const { return words_ * sizeof(uint64_t) * static_cast<size_t>(pool_.threads()); }

  private:
    struct Unmap {
        size_t bytes = 0;
        void operator()(uint64_t *p) const { munmap(p, bytes); }
    };
    using Pages = std::unique_ptr<uint64_t[], Unmap>;
    struct Ranked {
        Pattern pattern;
        double rate;
    };
    static Pages pages(size_t words, bool huge);
    double read_once(const Pattern &pattern);

    kernels::cpu::Pool pool_;
    size_t words_;                             // per thread
    std::array<std::vector<Pages>, 2> parts_;  // of small and huge pages, per thread
    std::vector<Ranked> ranking_;
};

}  // namespace runnel::measure
