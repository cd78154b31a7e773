// Quantised activations: what the matrix kernels multiply int8 weights with.
//
// Per group of 256 values of a row one scale s = max|x| / 127 and two int8 per value:
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
#pragma once

#include <cstdint>

namespace runnel::kernels::cuda {

inline constexpr int kActivationGroup = 256;       // values per scale
inline constexpr int kActivationChunk = 64;        // values
inline constexpr int kActivationChunkBytes = 128;  // hi and lo
inline constexpr float kLowScale = 1.0f / 254.0f;  // of a product with lo against one with hi

// Rows in global memory, one per token, each 16-byte aligned. Strides in elements of the array's type.
struct Activations {
    int8_t *values;
    float *scales;
    int32_t *sums, *sums16;
    int64_t values_stride, scales_stride, sums_stride, sums16_stride;
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

// Bytes of the rows of `tokens` tokens, and the rows laid out in that many bytes (256-byte aligned).
constexpr int64_t activation_bytes(int64_t k, int64_t tokens) {
    return tokens *
           (activation_values_stride(k) +
            4 * (activation_scales_stride(k) + activation_sums_stride(k) + activation_sums16_stride(k)));
}
inline Activations place_activations(void *memory, int64_t k, int64_t tokens) {
    Activations a{};
    a.values_stride = activation_values_stride(k);
    a.scales_stride = activation_scales_stride(k);
    a.sums_stride = activation_sums_stride(k);
    a.sums16_stride = activation_sums16_stride(k);
    a.values = static_cast<int8_t *>(memory);
    a.scales = reinterpret_cast<float *>(a.values + tokens * a.values_stride);
    a.sums = reinterpret_cast<int32_t *>(a.scales + tokens * a.scales_stride);
    a.sums16 = a.sums + tokens * a.sums_stride;
    return a;
}

}  // namespace runnel::kernels::cuda
