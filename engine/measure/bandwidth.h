// Measures the memory read bandwidth of this machine, the limit of decoding.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/pool.h"

namespace runnel::measure {

// Threads that read memory, each its own part in order. The memory is written before the first measurement
// and uses the smallest pages, like the mapped file from which weights are read in place. (With 2 MB pages
// the same loop can be a third faster.)
class BandwidthMeter {
  public:
    // threads >= 1. Throws std::bad_alloc.
    explicit BandwidthMeter(int threads, size_t bytes = size_t{512} << 20);

    // Bytes per second of `passes` reads of all the memory. On a shared machine the figure changes from
    // moment to moment: measure right before or after what is compared with it.
    double read(int passes = 4);

  private:
    struct Unmap {
        size_t bytes = 0;
        void operator()(uint64_t *p) const { munmap(p, bytes); }
    };
    using SmallPages = std::unique_ptr<uint64_t[], Unmap>;
    static SmallPages small_pages(size_t words);

    kernels::cpu::Pool pool_;
    size_t words_;  // per thread
    std::vector<SmallPages> parts_;
};

}  // namespace runnel::measure
