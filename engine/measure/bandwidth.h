// Measures this machine's memory read bandwidth, which limits decoding.
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

// Upper limit for the meter's memory, for each page size.
inline constexpr size_t kMostProbe = size_t{1} << 30;

// How much memory the meter should read, for work that reads `working_set` bytes repeatedly: the same size,
// because then caches serve the same share of both. At least 4 MiB, at most kMostProbe and an eighth of
// `available`.
size_t probe_bytes(size_t working_set, size_t available);

// Threads that each read their own part of the memory. The fastest access pattern depends on the machine, so
// the meter tries several and reports the best: one to eight streams per thread, with and without prefetch,
// in pages of 4 KiB and, if the system grants them, of 2 MiB.
class BandwidthMeter {
  public:
    struct Pattern {
        int streams;                // places that a thread reads from in turn
        int prefetch;               // bytes ahead; 0: none
        bool huge_pages;            // 2 MiB
        std::string words() const;  // "2 streams per thread, prefetch 1024 bytes ahead, 2 MiB pages"
    };

    // Reads `bytes` once with every pattern. Precondition: threads >= 1. Throws std::bad_alloc.
    explicit BandwidthMeter(int threads, size_t bytes = size_t{512} << 20);

    // Bytes per second: the fastest of `passes` reads of all the memory with each of the three patterns that
    // were fastest at construction. On a shared machine the bandwidth changes all the time, so measure right
    // before and after the work to compare.
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
