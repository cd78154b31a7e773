#include "engine/decode/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace runnel::decode {
namespace {

// Four independent sums keep enough loads in flight; vectorised by the compiler.
uint64_t read_all(const uint64_t *data, size_t words) {
    uint64_t sums[32] = {};
    for (size_t i = 0; i + 32 <= words; i += 32)
        for (size_t j = 0; j < 32; ++j) sums[j] ^= data[i + j];
    uint64_t sum = 0;
    for (const uint64_t s : sums) sum ^= s;
    return sum;
}

}  // namespace

double measure_read_bandwidth(int threads, size_t bytes, int passes) {
    const size_t words = bytes / sizeof(uint64_t) / static_cast<size_t>(threads) / 32 * 32;
    std::vector<std::vector<uint64_t>> parts(static_cast<size_t>(threads));
    std::atomic<uint64_t> sink{0};  // so that the reads are not optimised away
    std::barrier<> together(threads + 1);
    std::vector<std::thread> readers;
    for (auto &part : parts)
        readers.emplace_back([&] {
            part.assign(words, 0x5bd1e995);  // touched by the thread that reads it
            for (int pass = 0; pass < passes; ++pass) {
                together.arrive_and_wait();
                sink ^= read_all(part.data(), words);
                together.arrive_and_wait();
            }
        });
    double best = 0;
    for (int pass = 0; pass < passes; ++pass) {
        together.arrive_and_wait();
        const auto start = std::chrono::steady_clock::now();
        together.arrive_and_wait();
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        best = std::max(best, static_cast<double>(words * sizeof(uint64_t)) * threads / seconds);
    }
    for (std::thread &reader : readers) reader.join();
    return best;
}

}  // namespace runnel::decode
