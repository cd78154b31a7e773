// Elementary functions in plain float32 arithmetic: the same bits on every device and in the emulator, unlike
// the hardware's approximations. Errors stated are maxima over the argument's range
// (tests/simt/math_test.cpp).
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/device.h"

namespace runnel::kernels::cuda {

inline constexpr float kLog2E = 1.44269504088896341f;

// 2^r for |r| <= 0.5: Taylor's coefficients ln(2)^i / i!; the next term is below 2^-24 / 5.
DEVICE float exp2_fraction(float r) {
    float p = 1.5403530394e-4f;
    p = fma_rn(p, r, 1.3333558146e-3f);
    p = fma_rn(p, r, 9.6181291076e-3f);
    p = fma_rn(p, r, 5.5504108665e-2f);
    p = fma_rn(p, r, 2.4022650696e-1f);
    p = fma_rn(p, r, 6.9314718056e-1f);
    return fma_rn(p, r, 1.0f);
}

inline constexpr float kRoundToInteger =
    12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits

// 2^x within 2 ulp; 0 below -126 (no subnormals); saturates at x = 127.99. NaN gives NaN.
DEVICE float exp2_p(float x) {
    if (x < -126.0f) return 0.0f;
    x = x > 127.99f ? 127.99f : x;
    const float shifted = x + kRoundToInteger;
    const float p = exp2_fraction(x - (shifted - kRoundToInteger));
    return x != x ? x : bits_float(float_bits(p) + (float_bits(shifted) << 23));
}

// e^x within 2 ulp; 0 below -87.3; saturates at x = 88.7. NaN gives NaN.
DEVICE float exp_p(float x) {
    if (x < -87.3f) return 0.0f;
    x = x > 88.7f ? 88.7f : x;
    const float shifted = fma_rn(x, kLog2E, kRoundToInteger), n = shifted - kRoundToInteger;
    float r = fma_rn(n, -6.93145752e-1f, x);  // ln 2 in two parts: n times the first is exact
    r = fma_rn(n, -1.42860677e-6f, r);
    const float p = exp2_fraction(r * kLog2E);
    return x != x ? x : bits_float(float_bits(p) + (float_bits(shifted) << 23));
}

// 1 / x for normal x > 0 below 2^126, within 2 ulp: an estimate from the bits, then four Newton steps.
// Shorter than a division, which has a slow path for all other numbers.
DEVICE float reciprocal_p(float x) {
    float r = bits_float(0x7ef311c7u - float_bits(x));
    for (int i = 0; i < 4; ++i) r = fma_rn(r, fma_rn(-x, r, 1.0f), r);
    return r;
}

// cap * tanh(x / cap) for inverse = 1 / cap: absolute error about 3e-7 cap, enough for scores. NaN gives NaN.
DEVICE float soft_cap_p(float x, float cap, float inverse) {
    float a = 2.0f * x * inverse;
    a = a > 80.0f ? 80.0f : a;
    return fma_rn(-2.0f * cap, reciprocal_p(exp_p(a) + 1.0f), cap);
}

// tanh(x), relative error below 4e-7.
DEVICE float tanh_p(float x) {
    const float a = x < 0 ? -x : x;
    float y;
    if (a < 0.25f) {
        const float s = x * x;  // the Taylor series; its next term is below 2^-26
        float p = -8.8632355e-3f;
        p = fma_rn(p, s, 2.1869489e-2f);
        p = fma_rn(p, s, -5.3968254e-2f);
        p = fma_rn(p, s, 1.3333334e-1f);
        p = fma_rn(p, s, -3.3333334e-1f);
        return fma_rn(p * s, x, x);
    }
    y = a > 10.0f ? 1.0f : 1.0f - 2.0f / (exp_p(2.0f * a) + 1.0f);
    if (a != a) y = a;
    return x < 0 ? -y : y;
}

// cos and sin of an angle in turns, given as a fraction of 2^32 of a turn: the reduction is integer
// wrap-around, exact at any position. Absolute error below 1e-7.
struct SinCos {
    float sin, cos;
};
DEVICE SinCos sincos_p(uint32_t turn) {
    const uint32_t quadrant = (turn + 0x20000000u) >> 30;  // the nearest multiple of a quarter
    const auto rest = static_cast<int32_t>(turn - (quadrant << 30));
    const float x = static_cast<float>(rest) * (6.283185307179586f * 0x1p-32f);  // |x| <= pi/4
    const float s = x * x;
    float sine = 2.7557319e-6f;
    sine = fma_rn(sine, s, -1.9841270e-4f);
    sine = fma_rn(sine, s, 8.3333333e-3f);
    sine = fma_rn(sine, s, -1.6666667e-1f);
    sine = fma_rn(sine * s, x, x);
    float cosine = 2.4801587e-5f;
    cosine = fma_rn(cosine, s, -1.3888889e-3f);
    cosine = fma_rn(cosine, s, 4.1666667e-2f);
    cosine = fma_rn(cosine, s, -0.5f);
    cosine = fma_rn(cosine, s, 1.0f);
    const float a = quadrant & 1u ? cosine : sine, b = quadrant & 1u ? sine : cosine;
    return {quadrant & 2u ? -a : a, (quadrant + 1u) & 2u ? -b : b};
}

// x / 2 * (1 + erf(x / sqrt(2))), by formula 7.1.26 of Abramowitz and Stegun: absolute error below 3e-7 |x|.
DEVICE float gelu_erf_p(float x) {
    const float a = x < 0 ? -x : x, z = a * 0.707106769f;
    const float t = 1.0f / fma_rn(0.3275911f, z, 1.0f);
    float p = 1.061405429f;
    p = fma_rn(p, t, -1.453152027f);
    p = fma_rn(p, t, 1.421413741f);
    p = fma_rn(p, t, -0.284496736f);
    p = fma_rn(p, t, 0.254829592f);
    const float erfc = p * t * exp_p(-z * z);
    return (x < 0 ? 0.0f : x) - 0.5f * a * erfc;
}

DEVICE float silu_p(float x) {
    return x / (1.0f + exp_p(-x));
}

}  // namespace runnel::kernels::cuda
