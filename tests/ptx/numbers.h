// Conversions between float formats: to nearest, ties to even. Every NaN becomes the format's canonical NaN, as
// the PTX ISA specifies.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace runnel::ptx {

inline constexpr uint32_t kNan32 = 0x7fffffffu;
inline constexpr uint16_t kNan16 = 0x7fffu;  // f16 and bf16

// The result of an arithmetic instruction.
inline float canonical(float x) {
    return x == x ? x : std::bit_cast<float>(kNan32);
}

// Keeps kKept of the double's 52 fraction bits. Exponents below 1 - kBias give subnormal numbers.
// Overflow becomes infinity, as without .sat or .satfinite.
template <int kKept, int kBias>
uint16_t round_to_16(double x) {
    constexpr int kDropped = 52 - kKept;
    constexpr uint64_t kInfinity = uint64_t{2 * kBias + 1} << kKept;
    const auto bits = std::bit_cast<uint64_t>(x);
    const auto sign = static_cast<uint16_t>(bits >> 48 & 0x8000u);
    if (x != x) return kNan16;
    const uint64_t magnitude = bits & ~(uint64_t{1} << 63);
    uint64_t rounded;
    if (magnitude < uint64_t{1023 - kBias + 1} << 52) {
        // Doubles from 2^(52 + 1 - kBias - kKept) on have the spacing of the format's subnormal numbers.
        constexpr uint64_t kMagic = uint64_t{1023 + 52 + 1 - kBias - kKept} << 52;
        rounded = std::bit_cast<uint64_t>(std::bit_cast<double>(magnitude) + std::bit_cast<double>(kMagic)) -
                  kMagic;
    } else {
        const uint64_t to_even = (uint64_t{1} << (kDropped - 1)) - 1 + (magnitude >> kDropped & 1u);
        rounded = ((magnitude + to_even) >> kDropped) - (uint64_t{1023 - kBias} << kKept);
        if (rounded > kInfinity) rounded = kInfinity;
    }
    return static_cast<uint16_t>(sign | rounded);
}

inline uint16_t to_f16(double x) {
    return round_to_16<10, 15>(x);
}
inline uint16_t to_bf16(double x) {
    return round_to_16<7, 127>(x);
}

inline float from_f16(uint16_t h) {
    const uint32_t sign = (h & 0x8000u) << 16, magnitude = h & 0x7fffu;
    // The exponent is too small by 127 - 15; a factor of 2^112 is exact for subnormal numbers, too.
    float x = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
    if (magnitude >= 0x7c00u) x = std::bit_cast<float>(magnitude == 0x7c00u ? 0x7f800000u : kNan32);
    return std::bit_cast<float>(std::bit_cast<uint32_t>(x) | (magnitude > 0x7c00u ? 0 : sign));
}
inline float from_bf16(uint16_t h) {
    return std::bit_cast<float>(static_cast<uint32_t>(h) << 16);
}

}  // namespace runnel::ptx
