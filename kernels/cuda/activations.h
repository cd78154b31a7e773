// Quantised activations, in two forms: what the matrix kernels multiply integer weights with, and what
// weights in F16 and BF16.
//
// Integers. Per group of 256 values of a row one scale s = max|x| / 127 and two int8 per value:
//   t = x * (127 / max|x|);  hi = rint(t);  lo = rint(254 (t - hi));  x ~ s (hi + lo / 254), about 15 bits.
// hi and lo are two columns of the same integer matrix product, so everything inside a group is exact. The
// last group of a row may be shorter. A group whose maximum is below 2^-100 has s = 0 and zeros; a NaN in it
// makes s NaN.
//
// One row (one token) in memory, for K values (a multiple of 32):
//   values  [ceil(K / 64) chunks][128 bytes]: 64 bytes of hi, then 64 of lo; in the order of the mma's B
//   operand
//           (device.h): byte 16 t + 8 sub + 4 h + i of the 64 is the value k = 64 chunk + 32 sub + 16 h + 4 t
//           + i (t < 4, sub < 2, h < 2, i < 4). A lane 4 g + t reads its 16 bytes at 16 t: two B fragments of
//           mma_s8_k32 (sub 0, sub 1), or four of mma_s8_k16. A last chunk of 32 values ends in zeros.
//   scales  [ceil(K / 256)] float
//   sums    [K / 32] of int32 {hi of the 32 values, lo of the 32}, for offsets and minimums per 32,
//   sums16  [K / 16] of int32 {hi of the 16 values, lo of the 16}, for those per 16.
//
// Halves. Per row a power of two s with 2^14 <= max|x| / s < 2^15, and binary16 numbers h = rn(x / s): 11
// bits each, 24 binades below the maximum and more. A row whose maximum is below 2^-100 has s = 0 and zeros;
// a value that is not finite makes s NaN.
//   halves  [ceil(K / 64) * 64] binary16, any K: of each 32 columns, number 8 t + 4 h + i is column 16 h + 4
//   t
//           + i (t < 4, h < 2, i < 4): a lane 4 g + t reads 16 bytes, the operands B of two mma_f16_k16 whose
//           operands A are those of tiles.h. Ends in zeros.
//   half_scale  float
#pragma once

#include <cstdint>

namespace runnel::kernels::cuda {

inline constexpr int kActivationGroup = 256;       // values per scale
inline constexpr int kActivationChunk = 64;        // values
inline constexpr int kActivationChunkBytes = 128;  // hi and lo
inline constexpr float kLowScale = 1.0f / 254.0f;  // of a product with lo against one with hi

// Which of the two a buffer holds.
struct ActivationForms {
    bool integers = false, halves = false;

    constexpr bool any() const { return integers || halves; }
    constexpr ActivationForms operator|(ActivationForms other) const {
        return {integers || other.integers, halves || other.halves};
    }
};

// Rows in global memory, one per token, each 16-byte aligned. Strides in elements of the array's type. A form
// that a buffer does not hold has null pointers.
struct Activations {
    int8_t *values;
    float *scales;
    int32_t *sums, *sums16;
    int64_t values_stride, scales_stride, sums_stride, sums16_stride;
    uint16_t *halves;
    float *half_scales;  // one per row
    int64_t halves_stride;
};

constexpr int64_t activation_values_stride(int64_t k) {
    return (k + kActivationChunk - 1) / kActivationChunk * kActivationChunkBytes;
}
constexpr int64_t activation_scales_stride(int64_t k) {
    return ((k + kActivationGroup - 1) / kActivationGroup + 3) / 4 * 4;
}
constexpr int64_t activation_sums_stride(int64_t k) {
    return (k / 32 * 2 + 3) / 4 * 4;
}
constexpr int64_t activation_sums16_stride(int64_t k) {
    return k / 16 * 2;
}

constexpr int64_t activation_halves_stride(int64_t k) {
    return (k + kActivationChunk - 1) / kActivationChunk * kActivationChunk;
}

// Bytes of the rows of `tokens` tokens, and the rows laid out in that many bytes (256-byte aligned).
constexpr int64_t activation_bytes(int64_t k, int64_t tokens, ActivationForms forms) {
    int64_t row = 0;
    if (forms.integers)
        row += activation_values_stride(k) +
               4 * (activation_scales_stride(k) + activation_sums_stride(k) + activation_sums16_stride(k));
    if (forms.halves) row += 2 * activation_halves_stride(k) + 4;
    return tokens * row;
}
inline Activations place_activations(void *memory, int64_t k, int64_t tokens, ActivationForms forms) {
    Activations a{};
    auto *to = static_cast<int8_t *>(memory);
    if (forms.halves) {
        a.halves_stride = activation_halves_stride(k);
        a.halves = reinterpret_cast<uint16_t *>(to);
        to += 2 * tokens * a.halves_stride;
    }
    if (forms.integers) {
        a.values_stride = activation_values_stride(k);
        a.scales_stride = activation_scales_stride(k);
        a.sums_stride = activation_sums_stride(k);
        a.sums16_stride = activation_sums16_stride(k);
        a.values = to;
        a.scales = reinterpret_cast<float *>(a.values + tokens * a.values_stride);
        a.sums = reinterpret_cast<int32_t *>(a.scales + tokens * a.scales_stride);
        a.sums16 = a.sums + tokens * a.sums_stride;
        to = reinterpret_cast<int8_t *>(a.sums16 + tokens * a.sums16_stride);
    }
    if (forms.halves) a.half_scales = reinterpret_cast<float *>(to);
    return a;
}

}  // namespace runnel::kernels::cuda
