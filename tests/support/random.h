// Random numbers that are the same on every machine, with cheap random access.
#pragma once

#include <cstdint>
#include <string_view>

namespace runnel::testing {

// The finalizer of splitmix64 (Steele, Lea, Flood 2014).
constexpr uint64_t splitmix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

// FNV-1a.
constexpr uint64_t hash(std::string_view text) {
    uint64_t h = 14695981039346656037u;
    for (const char c : text) h = (h ^ static_cast<uint8_t>(c)) * 1099511628211u;
    return h;
}

class Random {
  public:
    explicit Random(uint64_t seed) : state_(splitmix(seed)) {}

    uint64_t bits() { return splitmix(state_ += 0x9e3779b97f4a7c15u); }
    // In [0, n). Biased by less than n / 2^32.
    uint64_t below(uint64_t n) { return (bits() >> 32) * n >> 32; }
    // In [0, 1).
    float uniform() { return static_cast<float>(bits() >> 40) * 0x1p-24f; }
    // Mean 0, standard deviation 1: the sum of eight uniform 16-bit numbers, without a call to libm, so that
    // the bits are the same everywhere. Never beyond 4.9; kurtosis 2.85.
    float normal() {
        constexpr uint64_t kEven = 0x0000ffff0000ffffu;
        const uint64_t a = bits(), b = bits();
        const uint64_t pairs = (a & kEven) + (a >> 16 & kEven) + (b & kEven) + (b >> 16 & kEven);
        const auto sum = static_cast<int64_t>((pairs & 0xffffffffu) + (pairs >> 32));
        constexpr float kDeviation = 53509.69f;  // 65536 * sqrt(8 / 12)
        return static_cast<float>(sum - 8 * 65535 / 2) / kDeviation;
    }

  private:
    uint64_t state_;
};

}  // namespace runnel::testing
