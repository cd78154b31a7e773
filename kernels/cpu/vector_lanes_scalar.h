// Eight float lanes as a plain array: the operations of vector_body.h and attention_body.h for any CPU, and
// the definition of each operation. Included once per kernel file; everything is local to it.
#pragma once

#include <cstdint>
#include <cstring>

#include "gguf/half.h"

namespace runnel::kernels::cpu {
namespace {

inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// a * b + c, rounded once. Without an fma instruction, std::fma is a C library call that costs microseconds.
// Here the product of two floats is exact in double and the sum is rounded to odd (Boldo & Melquiond 2008:
// the last bit is set if anything was lost, which TwoSum determines). 53 bits with such a last bit are enough
// to round to 24 bits correctly.
inline float fused(float a, float b, float c) {
    const double product = static_cast<double>(a) * b, sum = product + c, back = sum - product;
    const double lost = (product - (sum - back)) + (c - back);  // NaN if the sum is not finite
    uint64_t bits;
    std::memcpy(&bits, &sum, sizeof bits);
    const bool inexact = (lost > 0) | (lost < 0), outwards = (lost > 0) == (sum > 0);
    const uint64_t step = outwards ? 1 : ~uint64_t{0};
    bits += (inexact & ((bits & 1) == 0)) ? step : 0;
    double odd;
    std::memcpy(&odd, &bits, sizeof odd);
    return static_cast<float>(odd);
}

struct ScalarLanes {
    static constexpr int kWidth = 8;
    static constexpr int kRows = 4;          // query rows per register tile (attention_body.h)
    static constexpr int kAccumulators = 8;  // vectors of output per register tile
    struct Float {
        float lane[kWidth];
    };

    template <typename F>
    static Float each(F f) {
        Float out;
        for (int i = 0; i < kWidth; ++i) out.lane[i] = f(i);
        return out;
    }
    static Float set(float x) {
        return each([&](int) { return x; });
    }
    static Float zero() { return set(0); }
    static Float load(const float *x) {
        return each([&](int i) { return x[i]; });
    }
    // The first n lanes; the others are 0.
    static Float load_n(const float *x, int n) {
        return each([&](int i) { return i < n ? x[i] : 0.0f; });
    }
    static void store(float *out, Float x) { std::memcpy(out, x.lane, sizeof x.lane); }
    // Past the caches, which saves reading the memory first; `out` is aligned to the register. end_stream() comes before other
    // threads may read it.
    static void stream(float *out, Float x) { store(out, x); }
    static void end_stream() {}
    static void store_n(float *out, Float x, int n) {
        for (int i = 0; i < n; ++i) out[i] = x.lane[i];
    }
    static Float load_half(const uint16_t *x) {
        return each([&](int i) { return gguf::f16_to_f32(x[i]); });
    }
    static Float broadcast_half(const uint16_t *x) { return set(gguf::f16_to_f32(*x)); }
    static Float load_half_n(const uint16_t *x, int n) {
        return each([&](int i) { return i < n ? gguf::f16_to_f32(x[i]) : 0.0f; });
    }
    static void store_half(uint16_t *out, Float x) { store_half_n(out, x, kWidth); }
    static void store_half_n(uint16_t *out, Float x, int n) {
        for (int i = 0; i < n; ++i) out[i] = gguf::f32_to_f16(x.lane[i]);
    }

    // Loads one stored value per lane: int8, nibbles as (x >> shift & 15) - 8, bfloat16 or OCP e4m3.
    static Float load_int8(const int8_t *x) {
        return each([&](int i) { return static_cast<float>(x[i]); });
    }
    static Float load_nibbles(const uint8_t *x, int shift) {
        return each([&](int i) { return static_cast<float>((x[i] >> shift & 15) - 8); });
    }
    // table[x >> shift & 15]
    static Float load_table(const uint8_t *x, int shift, const int8_t *table) {
        return each([&](int i) { return static_cast<float>(table[x[i] >> shift & 15]); });
    }
    static Float load_bfloat(const uint16_t *x) {
        return each([&](int i) { return float_of(uint32_t{x[i]} << 16); });
    }
    // The bits after the sign, shifted up by 7 and read as a binary16, are the number divided by 256.
    static Float load_e4m3(const uint8_t *x) {
        return each([&](int i) {
            const uint32_t b = x[i], nan = (b & 0x7f) == 0x7f ? 0x7e00u : 0u;
            return gguf::f16_to_f32(static_cast<uint16_t>((b & 0x7f) << 7 | (b & 0x80) << 8 | nan)) * 256.0f;
        });
    }

    static Float add(Float a, Float b) {
        return each([&](int i) { return a.lane[i] + b.lane[i]; });
    }
    static Float sub(Float a, Float b) {
        return each([&](int i) { return a.lane[i] - b.lane[i]; });
    }
    static Float mul(Float a, Float b) {
        return each([&](int i) { return a.lane[i] * b.lane[i]; });
    }
    static Float div(Float a, Float b) {
        return each([&](int i) { return a.lane[i] / b.lane[i]; });
    }
    static Float fma(Float a, Float b, Float c) {  // a * b + c
        return each([&](int i) { return fused(a.lane[i], b.lane[i], c.lane[i]); });
    }
    static Float fms(Float a, Float b, Float c) {  // a * b - c
        return each([&](int i) { return fused(a.lane[i], b.lane[i], -c.lane[i]); });
    }
    // Like the x86 instructions: returns the second operand if one is NaN.
    static Float max(Float a, Float b) {
        return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
    }
    static Float min(Float a, Float b) {
        return each([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
    }
    static float reduce_max(Float a) {
        float best = a.lane[0];
        for (int i = 1; i < kWidth; ++i) best = a.lane[i] > best ? a.lane[i] : best;
        return best;
    }
    static bool any_greater(Float a, Float b) {
        bool any = false;
        for (int i = 0; i < kWidth; ++i) any |= a.lane[i] > b.lane[i];
        return any;
    }
    // Lanes begin <= i < end of a, the other lanes of b; begin and end may be outside [0, kWidth].
    static Float keep(Float a, Float b, int begin, int end) {
        return each([&](int i) { return i >= begin && i < end ? a.lane[i] : b.lane[i]; });
    }
    // Lane i of a if bit i is set, else of b.
    static Float keep_bits(Float a, Float b, uint32_t bits) {
        return each([&](int i) { return (bits >> i & 1u) != 0 ? a.lane[i] : b.lane[i]; });
    }
    // Index of the first lane that equals x, or kWidth.
    static int find(Float a, float x) {
        int i = 0;
        while (i < kWidth && !(a.lane[i] == x)) ++i;
        return i;
    }
    // Adds the low bits of t, an integer n, to the exponent of a: a * 2^n.
    static Float add_exponent(Float a, Float t) {
        return each([&](int i) { return float_of(bits_of(a.lane[i]) + (bits_of(t.lane[i]) << 23)); });
    }
    // Rotates n <= kWidth / 2 adjacent pairs at x.
    static void rotate_adjacent(float *x, const float *cos, const float *sin, int n) {
        for (int i = 0; i < n; ++i) {
            const float a = x[2 * i], b = x[2 * i + 1];
            x[2 * i] = fused(a, cos[i], -(b * sin[i]));
            x[2 * i + 1] = fused(a, sin[i], b * cos[i]);
        }
    }
};

}  // namespace
}  // namespace runnel::kernels::cpu
