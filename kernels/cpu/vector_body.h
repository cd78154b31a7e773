// The functions of vector.h, written once over a type of lanes (vector_lanes_*.h) and compiled once per
// instruction set. Everything is local to the including file: two instruction sets never share a function.
#pragma once

#include <cstdint>

#include "kernels/cpu/vector.h"

namespace runnel::kernels::cpu {
namespace {

// exp of vector.h. A NaN stays one: min and max return their second operand, t's low bits are then 0.
template <typename L>
inline typename L::Float exponential(typename L::Float x) {
    using Float = typename L::Float;
    const Float magic = L::set(0x1.8p23f), one = L::set(1.0f);
    x = L::min(L::set(88.37f), L::max(L::set(-87.3f), x));
    const Float t = L::fma(x, L::set(0x1.715476p+0f), magic);
    const Float n = L::sub(t, magic);
    Float r = L::fma(n, L::set(-0x1.62e4p-1f), x);  // n * ln2_high is exact: 15 bits of ln 2
    r = L::fma(n, L::set(-0x1.7f7d1cp-20f), r);
    Float p = L::set(0x1.6a2428p-10f);
    p = L::fma(p, r, L::set(0x1.1239e2p-7f));
    p = L::fma(p, r, L::set(0x1.5558f2p-5f));
    p = L::fma(p, r, L::set(0x1.555492p-3f));
    p = L::fma(p, r, L::set(0x1.fffffcp-2f));
    return L::add_exponent(L::fma(L::mul(r, r), p, L::add(one, r)), t);
}

// Eight lanes to one number, in the order of every sum of this backend.
inline float fold_8(const float *lane) {
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

// f(loaded a, loaded b) stored to out, element by element; the last partial vector through masks.
template <typename L, typename F>
inline void map(const float *a, const float *b, int64_t n, float *out, F f) {
    int64_t k = 0;
    for (; k + L::kWidth <= n; k += L::kWidth) L::store(out + k, f(L::load(a + k), L::load(b + k)));
    const int rest = static_cast<int>(n - k);
    if (rest > 0) L::store_n(out + k, f(L::load_n(a + k, rest), L::load_n(b + k, rest)), rest);
}

// L8: lanes of exactly eight, whatever L is.
template <typename L, typename L8>
void rms_norm(const float *x, const float *weight, int64_t n, float eps, float *out) noexcept {
    static_assert(L8::kWidth == 8);
    auto lanes = L8::zero();
    int64_t k = 0;
    for (; k + 8 <= n; k += 8) {
        const auto v = L8::load(x + k);
        lanes = L8::fma(v, v, lanes);
    }
    // Absent elements are zeros, and fma(0, 0, lane) is lane.
    const auto last = L8::load_n(x + k, static_cast<int>(n - k));
    lanes = L8::fma(last, last, lanes);
    float lane[8];
    L8::store(lane, lanes);
    const auto scale = L::set(1.0f / __builtin_sqrtf(fold_8(lane) / static_cast<float>(n) + eps));
    map<L>(x, weight, n, out, [&](auto v, auto w) { return L::mul(L::mul(v, scale), w); });
}

template <typename L>
void swiglu(const float *gate, const float *up, int64_t n, float *out) noexcept {
    map<L>(gate, up, n, out, [](auto g, auto u) {
        const auto minus = L::sub(L::zero(), g);
        return L::mul(L::div(g, L::add(L::set(1.0f), exponential<L>(minus))), u);
    });
}

template <typename L>
void rotate_halves(float *x, const float *cos, const float *sin, int32_t half) {
    for (int32_t j = 0; j < half; j += L::kWidth) {
        const int n = half - j < L::kWidth ? half - j : L::kWidth;
        const auto a = L::load_n(x + j, n), b = L::load_n(x + half + j, n);
        const auto c = L::load_n(cos + j, n), s = L::load_n(sin + j, n);
        L::store_n(x + j, L::fms(a, c, L::mul(b, s)), n);
        L::store_n(x + half + j, L::fma(a, s, L::mul(b, c)), n);
    }
}

template <typename L>
void rope(float *x, int32_t heads, int32_t head_dim, const float *cos, const float *sin, int32_t half_rot,
          RopeTable::Pairs pairs) noexcept {
    for (int32_t head = 0; head < heads; ++head, x += head_dim) {
        if (pairs == RopeTable::Pairs::Halves) {
            rotate_halves<L>(x, cos, sin, half_rot);
            continue;
        }
        constexpr int kPairs = L::kWidth / 2;
        for (int32_t j = 0; j < half_rot; j += kPairs)
            L::rotate_adjacent(x + 2 * j, cos + j, sin + j, half_rot - j < kPairs ? half_rot - j : kPairs);
    }
}

template <typename L>
void add(const float *a, const float *b, int64_t n, float *out) noexcept {
    map<L>(a, b, n, out, [](auto x, auto y) { return L::add(x, y); });
}

template <typename L>
void scale(float a, const float *x, int64_t n, float *out) noexcept {
    map<L>(x, x, n, out, [&](auto v, auto) { return L::mul(L::set(a), v); });
}

template <typename L>
void exp(const float *x, int64_t n, float *out) noexcept {
    map<L>(x, x, n, out, [](auto v, auto) { return exponential<L>(v); });
}

template <typename L>
void to_half(const float *x, int64_t n, uint16_t *out) noexcept {
    int64_t k = 0;
    for (; k + L::kWidth <= n; k += L::kWidth) L::store_half(out + k, L::load(x + k));
    const int rest = static_cast<int>(n - k);
    if (rest > 0) L::store_half_n(out + k, L::load_n(x + k, rest), rest);
}

template <typename L>
void from_half(const uint16_t *x, int64_t n, float *out) noexcept {
    int64_t k = 0;
    for (; k + L::kWidth <= n; k += L::kWidth) L::store(out + k, L::load_half(x + k));
    const int rest = static_cast<int>(n - k);
    if (rest > 0) L::store_n(out + k, L::load_half_n(x + k, rest), rest);
}

// First the maximum, then where it is: both loops run at the speed of the cache.
template <typename L>
int64_t argmax(const float *x, int64_t n) noexcept {
    const float lowest = -__builtin_inff();
    auto best = L::set(lowest);
    int64_t k = 0;
    for (; k + L::kWidth <= n; k += L::kWidth)
        best = L::max(L::load(x + k), best);  // a NaN loses: `best` is second
    const int rest = static_cast<int>(n - k);
    const auto absent = L::set(lowest);
    best = L::max(L::keep(L::load_n(x + k, rest), absent, 0, rest), best);
    const float largest = L::reduce_max(best);
    for (k = 0; k < n; k += L::kWidth) {
        const int count = n - k < L::kWidth ? static_cast<int>(n - k) : L::kWidth;
        const int at = L::find(L::load_n(x + k, count), largest);
        if (at < count) return k + at;
    }
    return 0;
}

template <typename L, typename L8>
constexpr VectorKernels vector_table(const char *name) {
    return {name,     rms_norm<L, L8>, swiglu<L>,  rope<L>,      add<L>,
            scale<L>, exp<L>,          to_half<L>, from_half<L>, argmax<L>};
}

}  // namespace
}  // namespace runnel::kernels::cpu
