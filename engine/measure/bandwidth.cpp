#include "engine/measure/bandwidth.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <new>

#include "gguf/base/timer.h"

namespace runnel::measure {
namespace {

constexpr size_t kStep = 32;  // words that a stream reads at a time
constexpr size_t kKept = 3;   // patterns

// Reads `words`, a multiple of kStep, of each stream; stream i begins at data + i * words. Independent sums
// keep enough loads in flight; the compiler vectorizes them.
template <int kStreams, int kPrefetch>
uint64_t read_streams(const uint64_t *data, size_t words) {
    constexpr size_t kSums = 16;
    uint64_t sums[kSums] = {};
    for (size_t i = 0; i < words; i += kStep)
        for (size_t stream = 0; stream < kStreams; ++stream) {
            const uint64_t *at = data + stream * words + i;
            if constexpr (kPrefetch > 0)
                for (size_t line = 0; line < kStep; line += 8)
                    __builtin_prefetch(reinterpret_cast<const char *>(at + line) + kPrefetch);
            for (size_t j = 0; j < kStep; ++j) sums[j % kSums] ^= at[j];
        }
    uint64_t sum = 0;
    for (const uint64_t s : sums) sum ^= s;
    return sum;
}

struct Reader {
    int streams, prefetch;
    uint64_t (*read)(const uint64_t *data, size_t words);
};
constexpr Reader kReaders[] = {
    {1, 0, read_streams<1, 0>}, {1, 512, read_streams<1, 512>}, {1, 2048, read_streams<1, 2048>},
    {2, 0, read_streams<2, 0>}, {2, 512, read_streams<2, 512>}, {2, 2048, read_streams<2, 2048>},
    {4, 0, read_streams<4, 0>}, {4, 512, read_streams<4, 512>}, {4, 2048, read_streams<4, 2048>},
    {8, 0, read_streams<8, 0>}, {8, 512, read_streams<8, 512>}, {8, 2048, read_streams<8, 2048>},
};
constexpr size_t kMostStreams = 8;

const Reader &reader_of(const BandwidthMeter::Pattern &pattern) {
    return *std::ranges::find_if(kReaders, [&](const Reader &reader) {
        return reader.streams == pattern.streams && reader.prefetch == pattern.prefetch;
    });
}

}  // namespace

size_t last_level_cache() {
    size_t largest = 0;
    for (int index = 0; index < 8; ++index) {
        std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
        size_t size = 0;
        char unit = ' ';
        if (!(file >> size)) continue;
        file >> unit;
        largest = std::max(largest, size << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0));
    }
    if (largest > 0) return largest;
    const long size = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return size > 0 ? static_cast<size_t>(size) : 0;
}

size_t probe_bytes(size_t working_set, size_t available) {
    constexpr size_t kLeast = size_t{4} << 20;
    return std::clamp(working_set, kLeast, std::max(kLeast, std::min(kMostProbe, available / 8)));
}

std::string BandwidthMeter::Pattern::words() const {
    return std::to_string(streams) + (streams == 1 ? " stream" : " streams") + " per thread, " +
           (prefetch > 0 ? "prefetch " + std::to_string(prefetch) + " bytes ahead" : "no prefetch") + ", " +
           (huge_pages ? "2 MiB" : "4 KiB") + " pages";
}

BandwidthMeter::Pages BandwidthMeter::pages(size_t words, bool huge) {
    const size_t bytes = words * sizeof(uint64_t);
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    madvise(memory, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    return Pages(static_cast<uint64_t *>(memory), Unmap{bytes});
}

BandwidthMeter::BandwidthMeter(int threads, size_t bytes)
    : pool_(threads),
      words_(std::max<size_t>(
                 bytes / sizeof(uint64_t) / static_cast<size_t>(threads) / (kMostStreams * kStep), 1) *
             (kMostStreams * kStep)) {
    for (const bool huge : {false, true}) {
        auto &parts = parts_[huge];
        for (int i = 0; i < threads; ++i) parts.push_back(pages(words_, huge));
        // Each thread writes the memory that it will read, so that its pages exist and are on its NUMA node.
        pool_.run([&](int thread) noexcept {
            std::fill_n(parts[static_cast<size_t>(thread)].get(), words_, 0x5bd1e995);
        });
        for (const Reader &reader : kReaders)
            ranking_.push_back({{reader.streams, reader.prefetch, huge}, 0});
    }
    for (Ranked &ranked : ranking_) ranked.rate = read_once(ranked.pattern);
    std::ranges::sort(ranking_, std::ranges::greater{}, &Ranked::rate);
    ranking_.resize(kKept);
}

double BandwidthMeter::read_once(const Pattern &pattern) {
    std::atomic<uint64_t> sink{0};  // keeps the reads from being optimized away
    const auto &parts = parts_[pattern.huge_pages];
    const Reader &reader = reader_of(pattern);
    const auto start = base::Clock::now();
    pool_.run([&](int thread) noexcept {
        sink ^= reader.read(parts[static_cast<size_t>(thread)].get(),
                            words_ / static_cast<size_t>(reader.streams));
    });
    return static_cast<double>(bytes()) / base::seconds_since(start);
}

double BandwidthMeter::read(int passes) {
    for (Ranked &ranked : ranking_) ranked.rate = 0;
    for (int pass = 0; pass < passes; ++pass)
        for (Ranked &ranked : ranking_) ranked.rate = std::max(ranked.rate, read_once(ranked.pattern));
    std::ranges::stable_sort(ranking_, std::ranges::greater{}, &Ranked::rate);
    return ranking_.front().rate;
}

}  // namespace runnel::measure
