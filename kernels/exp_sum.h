// The sum of exp(logit) over some tokens of a row, in integers: it has the same bits in whatever order terms are added, and
// from whatever parts of a vocabulary sums are joined. (A sum of floats depends on both.)
//
// A term is an integer of 25 bits times a power of two (exp_power()), and falls into the window of its exponent: 16
// consecutive exponents, from a multiple of 16 on. Each window adds its terms in 64 bits, without rounding. Only the top
// window with a term and the three below it are kept. What is lost are terms below 2^-47 of the largest: of 2^18 tokens,
// less than 2^-29 of the sum. 2^24 tokens cause no overflow.
//
// Plain arithmetic without contraction, for the host and, being constexpr, for kernels.
#pragma once

#include <cmath>
#include <cstdint>

namespace runnel::kernels {

// mantissa * 2^(exponent - 24), where 0.7 <= mantissa / 2^24 < 1.42.
struct ExpPower {
    int32_t exponent;
    uint32_t mantissa;
};

// e^x within 4e-7 for |x| <= 10,000. Beyond, the error grows to that of a unit in the last place of x; beyond +-2e6, x is
// taken for +-2e6, and NaN for -2e6.
constexpr ExpPower exp_power(float x) {
    constexpr float kMost = 2e6f, kLog2E = 1.44269504088896341f;
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    x = x > -kMost ? x : -kMost;
    x = x < kMost ? x : kMost;
    const float n = (x * kLog2E + kRound) - kRound;
    // ln 2 = 355 / 512 - 2.12e-4: n times the first is exact for |n| < 2^15.
    const float r = ((x - n * 0.693359375f) - n * -2.12194440e-4f) * kLog2E;
    // 2^r, by Taylor's coefficients ln(2)^i / i!.
    float p = 1.5403530394e-4f;
    p = p * r + 1.3333558146e-3f;
    p = p * r + 9.6181291076e-3f;
    p = p * r + 5.5504108665e-2f;
    p = p * r + 2.4022650696e-1f;
    p = p * r + 6.9314718056e-1f;
    p = p * r + 1.0f;
    return {static_cast<int32_t>(n), static_cast<uint32_t>(static_cast<int32_t>(p * 16777216.0f))};
}

struct ExpSum {
    static constexpr int kWindows = 4, kWindowBits = 4;
    static constexpr int32_t kNone = -(1 << 20);  // a window below those of all terms

    int64_t top = kNone;           // the highest window that is kept
    uint64_t sums[kWindows] = {};  // of window w: sums[w % kWindows], in units of 2^(16 w - 24)

    static constexpr int32_t window_of(float logit) { return exp_power(logit).exponent >> kWindowBits; }
    // The window at sums[i], one of top, top - 1 ... top - 3.
    constexpr int32_t window(int i) const {
        const auto last = static_cast<int32_t>(top);
        return last - ((last - i) & (kWindows - 1));
    }
    // Adds a term. Precondition: its window is not above the top.
    constexpr void add_below_top(const ExpPower &power) {
        const int32_t w = power.exponent >> kWindowBits;
        const uint64_t term = static_cast<uint64_t>(power.mantissa)
                              << (power.exponent & ((1 << kWindowBits) - 1));
        for (int i = 0; i < kWindows; ++i) sums[i] += w == window(i) ? term : 0;
    }
    // Adds the terms of a sum over other tokens.
    constexpr void add(const ExpSum &other) {
        ExpSum both;
        both.top = top > other.top ? top : other.top;
        for (int i = 0; i < kWindows; ++i)
            both.sums[i] = (window(i) == both.window(i) ? sums[i] : 0) +
                           (other.window(i) == both.window(i) ? other.sums[i] : 0);
        *this = both;
    }
    // Adds exp(logit).
    constexpr void add(float logit) {
        ExpSum one;
        one.top = window_of(logit);
        one.add_below_top(exp_power(logit));
        add(one);
    }
    // The sum of exp(logit - largest); 0 without terms.
    float relative_to(float largest) const {
        const ExpPower one = exp_power(largest);
        const auto exponent = [&](int32_t window) {
            return (window - static_cast<int32_t>(top)) << kWindowBits;
        };
        double sum = 0;
        for (int i = 0; i < kWindows; ++i)
            sum += std::ldexp(static_cast<double>(sums[i]), exponent(window(i)));
        const double unit = std::ldexp(static_cast<double>(one.mantissa),
                                       one.exponent - static_cast<int32_t>(top << kWindowBits));
        return sum > 0 ? static_cast<float>(sum / unit) : 0.0f;
    }
    bool operator==(const ExpSum &) const = default;
};

}  // namespace runnel::kernels
