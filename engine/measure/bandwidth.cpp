#include "engine/measure/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <new>

#include "gguf/base/timer.h"

namespace runnel::measure {
namespace {

// Thirty-two independent sums keep enough loads in flight; the compiler vectorizes them.
uint64_t read_all(const uint64_t *data, size_t words) {
    uint64_t sums[32] = {};
    for (size_t i = 0; i + 32 <= words; i += 32)
        for (size_t j = 0; j < 32; ++j) sums[j] ^= data[i + j];
    uint64_t sum = 0;
    for (const uint64_t s : sums) sum ^= s;
    return sum;
}

}  // namespace

BandwidthMeter::SmallPages BandwidthMeter::small_pages(size_t words) {
    const size_t bytes = words * sizeof(uint64_t);
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    madvise(memory, bytes, MADV_NOHUGEPAGE);
    return SmallPages(static_cast<uint64_t *>(memory), Unmap{bytes});
}

BandwidthMeter::BandwidthMeter(int threads, size_t bytes)
    : pool_(threads), words_(bytes / sizeof(uint64_t) / static_cast<size_t>(threads) / 32 * 32) {
    for (int i = 0; i < threads; ++i) parts_.push_back(small_pages(words_));
    // Each thread writes the memory that it will read, so that its pages exist and are on its NUMA node.
    pool_.run([&](int thread) noexcept {
        std::fill_n(parts_[static_cast<size_t>(thread)].get(), words_, 0x5bd1e995);
    });
}

double BandwidthMeter::read(int passes) {
    std::atomic<uint64_t> sink{0};  // keeps the reads from being optimized away
    const auto start = base::Clock::now();
    for (int pass = 0; pass < passes; ++pass)
        pool_.run([&](int thread) noexcept {
            sink ^= read_all(parts_[static_cast<size_t>(thread)].get(), words_);
        });
    const double seconds = base::seconds_since(start);
    return static_cast<double>(words_ * sizeof(uint64_t)) * pool_.threads() * passes / seconds;
}

}  // namespace runnel::measure
