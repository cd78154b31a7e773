// How fast this machine reads memory: the limit of decoding, measured.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/pool.h"

namespace runnel::decode {

// Threads that together read memory of their own, each its part in order. The memory is touched before the
// first measurement, in the smallest pages: weights are read in place from a mapped file, whose pages are
// small. (In 2 MB pages the same loop may be a third faster.)
class BandwidthMeter {
  public:
    // threads >= 1. Throws std::bad_alloc.
    explicit BandwidthMeter(int threads, size_t bytes = size_t{512} << 20);

    // Bytes per second of reading all the memory so many times. A machine with neighbors gives another
    // figure every time: what is to be compared with it is measured right before or after.
    double read(int passes = 4);

  private:
    struct Unmap {
        size_t bytes = 0;
        void operator()(uint64_t *p) const { munmap(p, bytes); }
    };
    using SmallPages = std::unique_ptr<uint64_t[], Unmap>;
    static SmallPages small_pages(size_t words);

    kernels::cpu::Pool pool_;
    size_t words_;  // of each thread
    std::vector<SmallPages> parts_;
};

}  // namespace runnel::decode
