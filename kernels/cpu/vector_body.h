// The functions of vector.h, written once over a type of lanes (vector_lanes_*.h) and compiled once per
// instruction set. Everything is local to the including file: two instruction sets never share a function.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cpu/vector.h"

namespace runnel::kernels::cpu {
namespace {

// exp of vector.h. A NaN stays NaN: min and max return their second operand, and t's low bits are then 0.
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

// Adds eight lanes, in the order of every sum of this backend.
inline float fold_8(const float *lane) {
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

// Stores f(a, b) of the loaded elements to out; the last partial vector uses masks.
template <typename L, typename F>
inline void map(const float *a, const float *b, int64_t n, float *out, F f) {
    int64_t k = 0;
    for (; k + L::kWidth <= n; k += L::kWidth) L::store(out + k, f(L::load(a + k), L::load(b + k)));
    const int rest = static_cast<int>(n - k);
    if (rest > 0) L::store_n(out + k, f(L::load_n(a + k, rest), L::load_n(b + k, rest)), rest);
}

// The sum of f(x[k]) as vector.h defines it; L8: lanes of exactly eight. f maps (vector, sums) to new sums;
// zeros must leave the sums unchanged.
template <typename L8, typename F>
inline float sum_in_lanes(const float *x, int64_t n, F f) {
    static_assert(L8::kWidth == 8);
    auto lanes = L8::zero();
    int64_t k = 0;
    for (; k + 8 <= n; k += 8) lanes = f(L8::load(x + k), lanes, 8);
    const int rest = static_cast<int>(n - k);
    lanes = f(L8::load_n(x + k, rest), lanes, rest);
    float lane[8];
    L8::store(lane, lanes);
    return fold_8(lane);
}

using NormVectors = VectorKernels::NormVectors;

// out = normed(x) * weight + bias, plus add; null operands are left out.
template <typename L, typename F>
inline void weigh(const float *x, const NormVectors &with, int64_t n, float *out, F normed) {
    for (int64_t k = 0; k < n; k += L::kWidth) {
        const int count = n - k < L::kWidth ? static_cast<int>(n - k) : L::kWidth;
        auto y = normed(L::load_n(x + k, count));
        if (with.weight) y = L::mul(y, L::load_n(with.weight + k, count));
        if (with.bias) y = L::add(y, L::load_n(with.bias + k, count));
        if (with.add) y = L::add(L::load_n(with.add + k, count), y);
        L::store_n(out + k, y, count);
    }
}

inline float inverse_root(float sum, int64_t n, float eps) {
    return 1.0f / __builtin_sqrtf(sum / static_cast<float>(n) + eps);
}

template <typename L, typename L8>
void rms_norm(const float *x, const NormVectors &with, int64_t n, float eps, float *out) noexcept {
    const float sum = sum_in_lanes<L8>(x, n, [](auto v, auto lanes, int) { return L8::fma(v, v, lanes); });
    const auto scale = L::set(inverse_root(sum, n, eps));
    weigh<L>(x, with, n, out, [&](auto v) { return L::mul(v, scale); });
}

template <typename L, typename L8>
void layer_norm(const float *x, const NormVectors &with, int64_t n, float eps, float *out) noexcept {
    const float sum = sum_in_lanes<L8>(x, n, [](auto v, auto lanes, int) { return L8::add(lanes, v); });
    const float mean = sum / static_cast<float>(n);
    const float squares = sum_in_lanes<L8>(x, n, [&](auto v, auto lanes, int count) {
        const auto d = L8::keep(L8::sub(v, L8::set(mean)), L8::zero(), 0, count);
        return L8::fma(d, d, lanes);
    });
    const auto m = L::set(mean), scale = L::set(inverse_root(squares, n, eps));
    weigh<L>(x, with, n, out, [&](auto v) { return L::mul(L::sub(v, m), scale); });
}

// x / (1 + exp(-a)), with minus = -a
template <typename L>
inline typename L::Float logistic_share(typename L::Float x, typename L::Float minus) {
    return L::div(x, L::add(L::set(1.0f), exponential<L>(minus)));
}

template <typename L>
inline typename L::Float gelu_tanh(typename L::Float x) {
    const auto cubic = L::fma(L::mul(L::set(0.044715f), x), x, L::set(1.0f));
    const auto u = L::mul(L::mul(x, L::set(0x1.988454p-1f)), cubic);  // sqrt(2 / pi)
    return logistic_share<L>(x, L::mul(L::set(-2.0f), u));
}

template <typename L>
inline typename L::Float gelu_erf(typename L::Float x) {
    const auto zero = L::zero(), minus = L::sub(zero, x);
    const auto z = L::mul(L::max(x, minus), L::set(0x1.6a09e6p-1f));  // |x| / sqrt(2)
    const auto t = L::div(L::set(1.0f), L::fma(L::set(0.3275911f), z, L::set(1.0f)));
    auto p = L::set(1.061405429f);
    p = L::fma(p, t, L::set(-1.453152027f));
    p = L::fma(p, t, L::set(1.421413741f));
    p = L::fma(p, t, L::set(-0.284496736f));
    p = L::fma(p, t, L::set(0.254829592f));
    const auto erfc = L::mul(L::mul(t, p), exponential<L>(L::mul(L::sub(zero, z), z)));
    const auto half = L::mul(L::set(0.5f), L::max(x, minus));
    return L::sub(L::max(zero, x), L::mul(half, erfc));
}

// c * tanh(x / c)
template <typename L>
inline typename L::Float soft_capped(typename L::Float x, typename L::Float c) {
    const auto one = L::set(1.0f), two = L::set(2.0f);
    const auto e = exponential<L>(L::mul(two, L::div(x, c)));
    return L::mul(c, L::sub(one, L::div(two, L::add(one, e))));
}

template <typename L, typename F>
inline void map_gate(const float *gate, const float *up, int64_t n, float *out, F act) {
    if (up)
        map<L>(gate, up, n, out, [&](auto g, auto u) { return L::mul(act(g), u); });
    else
        map<L>(gate, gate, n, out, [&](auto g, auto) { return act(g); });
}

inline float signed_root(float x, float least) {
    const float magnitude = x < 0 ? -x : x, root = std::sqrt(magnitude < least ? least : magnitude);
    return x > 0 ? root : x < 0 ? -root : x;
}

template <typename L>
inline typename L::Float xielu(const Activation::Parameters &a, typename L::Float x) {
    const auto zero = L::zero(), above = L::max(zero, x), below = L::min(zero, x);
    const auto curve = L::sub(L::sub(exponential<L>(L::min(L::set(a.eps), below)), L::set(1.0f)), below);
    const auto is_below = L::min(L::set(1.0f), L::max(zero, L::mul(L::set(-1e30f), x)));
    const auto rest = L::fma(L::mul(L::set(a.negative), is_below), curve, L::mul(L::set(a.beta), x));
    return L::fma(L::mul(L::set(a.positive), above), above, rest);
}

template <typename L>
void apply_gate(Activation::Kind act, const Activation::Parameters &parameters, const float *gate,
                const float *up, int64_t n, float *out) noexcept {
    switch (act) {
        case Activation::Kind::Silu:
            return map_gate<L>(gate, up, n, out,
                               [](auto g) { return logistic_share<L>(g, L::sub(L::zero(), g)); });
        case Activation::Kind::GeluTanh:
            return map_gate<L>(gate, up, n, out, [](auto g) { return gelu_tanh<L>(g); });
        case Activation::Kind::GeluErf:
            return map_gate<L>(gate, up, n, out, [](auto g) { return gelu_erf<L>(g); });
        case Activation::Kind::ReluSquared:
            return map_gate<L>(gate, up, n, out, [](auto g) {
                const auto r = L::max(L::zero(), g);
                return L::mul(r, r);
            });
        case Activation::Kind::SiluClamped:
            return map<L>(gate, up, n, out, [](auto x, auto y) {
                const auto limit = L::set(7.0f), g = L::min(limit, x);
                const auto u = L::min(limit, L::max(L::set(-7.0f), y));
                const auto share = logistic_share<L>(g, L::mul(L::set(-1.702f), g));
                return L::mul(share, L::add(u, L::set(1.0f)));
            });
        case Activation::Kind::SiluThenLimit:
        case Activation::Kind::LimitThenSilu:
            return map<L>(gate, up, n, out,
                          [&, before = act == Activation::Kind::LimitThenSilu](auto x, auto y) {
                              const auto limit = L::set(parameters.positive);
                              const auto u = L::min(limit, L::max(L::set(-parameters.positive), y));
                              const auto g = before ? L::min(limit, x) : x;
                              const auto silu = logistic_share<L>(g, L::sub(L::zero(), g));
                              return L::mul(before ? silu : L::min(limit, silu), u);
                          });
        case Activation::Kind::Sigmoid:
            return map_gate<L>(gate, up, n, out,
                               [](auto g) { return logistic_share<L>(L::set(1.0f), L::sub(L::zero(), g)); });
        case Activation::Kind::Identity:
            return map_gate<L>(gate, up, n, out, [](auto g) { return g; });
        case Activation::Kind::Relu:
            return map_gate<L>(gate, up, n, out, [](auto g) { return L::max(L::zero(), g); });
        case Activation::Kind::Clamp:
            return map_gate<L>(gate, up, n, out, [&](auto g) {
                return L::min(L::set(parameters.positive), L::max(L::set(parameters.negative), g));
            });
        case Activation::Kind::XIelu:
            return map_gate<L>(gate, up, n, out, [&](auto g) { return xielu<L>(parameters, g); });
        case Activation::Kind::Tanh:
            return map_gate<L>(gate, up, n, out, [](auto g) { return soft_capped<L>(g, L::set(1.0f)); });
        case Activation::Kind::SignedRoot:  // of a few numbers per token
            for (int64_t i = 0; i < n; ++i) {
                const float x = signed_root(gate[i], parameters.positive);
                out[i] = up ? x * up[i] : x;
            }
    }
}

template <typename L>
void softcap(float c, const float *x, int64_t n, float *out) noexcept {
    map<L>(x, x, n, out, [&](auto v, auto) { return soft_capped<L>(v, L::set(c)); });
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
void add_scaled(float a, const float *x, int64_t n, float *out) noexcept {
    map<L>(x, out, n, out, [&](auto v, auto sum) { return L::fma(L::set(a), v, sum); });
}

template <typename L>
void lerp(const float *from, const float *to, const float *a, const float *b, int64_t n,
          float *out) noexcept {
    for (int64_t k = 0; k < n; k += L::kWidth) {
        const int count = n - k < L::kWidth ? static_cast<int>(n - k) : L::kWidth;
        const auto x = from ? L::load_n(from + k, count) : L::zero(),
                   y = to ? L::load_n(to + k, count) : L::zero();
        auto c = L::load_n(a + k, count);
        if (b) c = L::add(c, L::load_n(b + k, count));
        L::store_n(out + k, L::fma(c, L::sub(y, x), x), count);
    }
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

// First finds the maximum, then its index: both loops run at cache speed.
template <typename L>
int64_t argmax(const float *x, int64_t n) noexcept {
    const float lowest = -__builtin_inff();
    auto best = L::set(lowest);
    int64_t k = 0;
    for (; k + L::kWidth <= n; k += L::kWidth)
        best = L::max(L::load(x + k), best);  // a NaN loses: `best` is the second operand
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
    return {.name = name,
            .rms_norm = rms_norm<L, L8>,
            .layer_norm = layer_norm<L, L8>,
            .gate = apply_gate<L>,
            .softcap = softcap<L>,
            .rope = rope<L>,
            .add = add<L>,
            .add_scaled = add_scaled<L>,
            .lerp = lerp<L>,
            .scale = scale<L>,
            .exp = exp<L>,
            .to_half = to_half<L>,
            .from_half = from_half<L>,
            .argmax = argmax<L>};
}

}  // namespace
}  // namespace runnel::kernels::cpu
