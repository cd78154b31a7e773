#include "engine/decode/bandwidth.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "kernels/cpu/pool.h"

namespace runnel::decode {
namespace {

// Thirty-two independent sums keep enough loads in flight; vectorised by the compiler.
uint64_t read_all(const uint64_t *data, size_t words) {
    uint64_t sums[32] = {};
    for (size_t i = 0; i + 32 <= words; i += 32)
        for (size_t j = 0; j < 32; ++j) sums[j] ^= data[i + j];
    uint64_t sum = 0;
    for (const uint64_t s : sums) sum ^= s;
    return sum;
}

// Memory in pages of the smallest size, as a mapped file has them.
struct Unmap {
    size_t bytes = 0;
    void operator()(uint64_t *p) const { munmap(p, bytes); }
};
using SmallPages = std::unique_ptr<uint64_t[], Unmap>;

SmallPages small_pages(size_t words) {
    const size_t bytes = words * sizeof(uint64_t);
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    madvise(memory, bytes, MADV_NOHUGEPAGE);
    return SmallPages(static_cast<uint64_t *>(memory), Unmap{bytes});
}

}  // namespace

double measure_read_bandwidth(int threads, size_t bytes, int passes) {
    kernels::cpu::Pool pool(threads);
    const size_t words = bytes / sizeof(uint64_t) / static_cast<size_t>(threads) / 32 * 32;
    std::vector<SmallPages> parts(static_cast<size_t>(threads));
    for (SmallPages &part : parts) part = small_pages(words);
    // Written by the thread that reads it, so that its pages are real and near.
    pool.run([&](int thread) noexcept {
        std::fill_n(parts[static_cast<size_t>(thread)].get(), words, 0x5bd1e995);
    });
    std::atomic<uint64_t> sink{0};  // so that the reads are not optimised away
    double best = 0;
    for (int pass = 0; pass < passes; ++pass) {
        const auto start = std::chrono::steady_clock::now();
        pool.run(
            [&](int thread) noexcept { sink ^= read_all(parts[static_cast<size_t>(thread)].get(), words); });
        const double seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        best = std::max(best, static_cast<double>(words * sizeof(uint64_t)) * threads / seconds);
    }
    return best;
}

}  // namespace runnel::decode
