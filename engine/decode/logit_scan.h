// Scans of a row of logits, of which a vocabulary has up to 256,000. They run on one thread between two tokens, while the
// others wait: rows are visited in blocks, whose loops have a fixed length so that compilers make vector instructions of them.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace runnel::decode {

inline constexpr size_t kScanBlock = 64;

// The largest of kScanBlock numbers, none of them NaN.
inline float largest_of_block(const float *x) {
    std::array<float, 16> most;
    for (size_t lane = 0; lane < most.size(); ++lane) most[lane] = x[lane];
    for (size_t i = most.size(); i < kScanBlock; i += most.size())
        for (size_t lane = 0; lane < most.size(); ++lane)
            most[lane] = x[i + lane] > most[lane] ? x[i + lane] : most[lane];
    float largest = most[0];
    for (const float m : most) largest = m > largest ? m : largest;
    return largest;
}

// Whether none of kScanBlock numbers is NaN or infinite: these have an exponent of ones.
inline bool block_is_finite(const float *x) {
    constexpr uint32_t kExponent = 0x7f800000;
    std::array<uint32_t, 16> found{};
    for (size_t i = 0; i < kScanBlock; i += found.size())
        for (size_t lane = 0; lane < found.size(); ++lane)
            found[lane] |= (std::bit_cast<uint32_t>(x[i + lane]) & kExponent) == kExponent ? 1 : 0;
    uint32_t any = 0;
    for (const uint32_t f : found) any |= f;
    return any == 0;
}

// Calls visit(i), in ascending order, for the numbers that are greater than `threshold`, which visit() may raise; there is
// no NaN among them.
template <typename Visit>
void for_each_above(std::span<const float> row, const float &threshold, Visit &&visit) {
    size_t i = 0;
    const auto visit_to = [&](size_t end) {
        for (; i < end; ++i)
            if (row[i] > threshold) visit(i);
    };
    while (i + kScanBlock <= row.size())
        if (largest_of_block(row.data() + i) > threshold)
            visit_to(i + kScanBlock);
        else
            i += kScanBlock;
    visit_to(row.size());
}

}  // namespace runnel::decode
