// The small operators between the matrix products (norms, rotations, gates, conversions), and exp and argmax over a
// row of logits. All work on float32 rows.
//
// There is one table of functions per instruction set, and all compute bit-equal results: a result is defined
// by a sequence of IEEE float operations (given with each function), fma means one rounding, and a wider
// vector only computes more elements at a time. The scalar table is the definition; the others are tested
// against it with memcmp. (NaN results are NaN in all of them, but the payload is undefined.)
//
// exp is the same everywhere (softmax, SiLU, sampling):
//   x clamped to [-87.3, 88.37]; t = fma(x, log2 e, 1.5 * 2^23); n = t - 1.5 * 2^23 (the nearest integer);
//   r = fma(n, -ln2_low, fma(n, -ln2_high, x)); p = c2 + c3 r + .. + c6 r^4 (Horner, fma);
//   exp = fma(r * r, p, 1 + r) with n added to the exponent bits.
// Error at most 1.25 ulp; exp(0) is exactly 1.
#pragma once

#include <cstdint>

#include "kernels/program.h"

namespace runnel::kernels::cpu {

struct VectorKernels {
    const char *name;  // "scalar", "avx2", "avx512"

    // The operand vectors of a norm; null ones are left out of the sums and products. They and out may
    // overlap only if they are equal.
    struct NormVectors {
        const float *weight, *bias, *add;
    };

    // y = x[k] * r, with r = 1 / sqrt(sum / n + eps); then y = y * weight[k], y = y + bias[k], y = add[k] + y.
    // sum of squares: lane k mod 8 sums fma(x[k], x[k], lane), then ((0+4) + (2+6)) + ((1+5) + (3+7)).
    void (*rms_norm)(const float *x, const NormVectors &with, int64_t n, float eps, float *out) noexcept;

    // As rms_norm, with d[k] = x[k] - m instead of x[k], where m = sum of x / n, summed in the same lanes.
    void (*layer_norm)(const float *x, const NormVectors &with, int64_t n, float eps, float *out) noexcept;

    // out = act(gate) * up, or act(gate) if up is null. out may be gate or up.
    //   Silu: x / (1 + exp(-x));  GeluTanh: x / (1 + exp(-2 u)), u = (x * sqrt(2 / pi)) * fma(0.044715 x, x,
    //   1); GeluErf: with z = |x| / sqrt(2), t = 1 / fma(0.3275911, z, 1): e = (t * p(t)) * exp(-z * z) is
    //   erfc(z) (p: Abramowitz & Stegun 7.1.26, error 1.5e-7), and the result is x/2 * (x < 0 ? e : 2 - e);
    //   ReluSquared: r = max(0, x), r * r;  SiluClamped: see program.h, (g / (1 + exp(-1.702 g))) * (u + 1);
    //   Sigmoid: 1 / (1 + exp(-x));  Identity: x;  Relu: max(0, x);  Clamp, XIelu, SignedRoot: see program.h;
    //   Tanh: 1 - 2 / (1 + exp(2 x)), absolute error 2e-7.
    void (*gate)(Activation::Kind act, const Activation::Parameters &parameters, const float *gate,
                 const float *up, int64_t n, float *out) noexcept;

    // out = c * tanh(x / c), tanh(y) = 1 - 2 / (1 + exp(2 y)). out may be x.
    void (*softcap)(float c, const float *x, int64_t n, float *out) noexcept;

    // Rotates the first 2 * half_rot dimensions of each of `heads` consecutive heads of one token, in place:
    // (a, b) -> (fma(a, cos, -(b * sin)), fma(a, sin, b * cos)) for the pairs that `pairs` names.
    // cos, sin: [half_rot], the token's row of rope_row(). Precondition: 2 * half_rot <= head_dim.
    void (*rope)(float *x, int32_t heads, int32_t head_dim, const float *cos, const float *sin,
                 int32_t half_rot, RopeTable::Pairs pairs) noexcept;

    // out = a + b. out may be a or b.
    void (*add)(const float *a, const float *b, int64_t n, float *out) noexcept;

    // out = fma(a, x, out)
    void (*add_scaled)(float a, const float *x, int64_t n, float *out) noexcept;

    // out = fma(c, to - from, from), with c = a + b. Null pointers are zeros; a null b leaves c = a. out may be any
    // of the operands.
    void (*lerp)(const float *from, const float *to, const float *a, const float *b, int64_t n,
                 float *out) noexcept;

    // out = a * x. out may be x.
    void (*scale)(float a, const float *x, int64_t n, float *out) noexcept;

    // out = exp(x). out may be x.
    void (*exp)(const float *x, int64_t n, float *out) noexcept;

    // float32 to binary16, to nearest even; NaN stays NaN, overflow becomes infinity. from_half() is exact.
    void (*to_half)(const float *x, int64_t n, uint16_t *out) noexcept;
    void (*from_half)(const uint16_t *x, int64_t n, float *out) noexcept;

    // Index of the largest element, the lowest among equals. NaN is never the
    // largest; 0 if there are only NaNs.
    int64_t (*argmax)(const float *x, int64_t n) noexcept;
};

const VectorKernels &vector_scalar();
const VectorKernels *vector_avx2();    // null if the CPU lacks AVX2, FMA or F16C
const VectorKernels *vector_avx512();  // null if the CPU lacks AVX-512 F, BW, DQ, VL or VNNI

// Whether this CPU has the instructions and this build the kernels (avx2_absent.cpp, avx512_absent.cpp).
bool cpu_has_avx2();
bool cpu_has_avx512();
// Whether there is AMX with 8-bit integers too. The first call asks Linux to let this process use it.
bool cpu_has_amx();

// cos and sin of every pair of a table at a position, times its magnitude, computed in double precision.
// cos, sin: [inv_freq.size()].
void rope_row(const RopeTable &table, int32_t position, float *cos, float *sin);

}  // namespace runnel::kernels::cpu
