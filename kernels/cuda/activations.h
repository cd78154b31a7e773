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

#include "kernels/cuda/device.h"

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

// --- one warp quantises one group --------------------------------------------------------------------------

// A lane's eight values of a group: [0..3] at k = kFirst(lane) .. +3 and [4..7] at + 16 .. + 19, where the
// lane 8 chunk + 2 t + sub has kFirst = 64 chunk + 32 sub + 4 t.
DEVICE int activation_first(int lane) {
    return 64 * (lane >> 3) + 32 * (lane & 1) + 4 * (lane >> 1 & 3);
}

// The same lane's share of the quantised group.
struct ActivationPiece {
    uint2 hi, lo;  // eight int8 each
    float scale;   // of the group, in every lane
    int32_t sum_hi[2],
        sum_lo[2];  // over the 16-groups 2 sub and 2 sub + 1 of the chunk (in all lanes of them)
};

DEVICE void quantise_four(const float (&x)[8], int first, float inverse, uint32_t &hi, uint32_t &lo) {
    hi = lo = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float t = x[first + i] * inverse;
        const float whole = rint_rn(t);
        const int32_t h = float_to_int_rn(whole), l = float_to_int_rn((t - whole) * 254.0f);
        hi |= (static_cast<uint32_t>(h) & 0xffu) << 8 * i;
        lo |= (static_cast<uint32_t>(l) & 0xffu) << 8 * i;
    }
}

// Warp collective. Values at and beyond the end of a row are to be 0.
DEVICE ActivationPiece quantise_group(const float (&x)[8]) {
    uint32_t largest = 0;  // of the magnitudes' bits: a NaN is larger than infinity
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const uint32_t magnitude = float_bits(x[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
        const uint32_t other = shfl_xor(largest, mask);
        largest = other > largest ? other : largest;
    }
    const float maximum = bits_float(largest);
    const bool tiny = maximum < 0x1p-100f;
    const float inverse = tiny ? 0.0f : 127.0f / maximum;
    ActivationPiece piece;
    piece.scale = tiny ? 0.0f : maximum / 127.0f;
    quantise_four(x, 0, inverse, piece.hi.x, piece.lo.x);
    quantise_four(x, 4, inverse, piece.hi.y, piece.lo.y);
    constexpr uint32_t kOnes = 0x01010101u;
    piece.sum_hi[0] = dp4a(piece.hi.x, kOnes, 0);
    piece.sum_hi[1] = dp4a(piece.hi.y, kOnes, 0);
    piece.sum_lo[0] = dp4a(piece.lo.x, kOnes, 0);
    piece.sum_lo[1] = dp4a(piece.lo.y, kOnes, 0);
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int mask = 2; mask <= 4; mask *= 2) {
            piece.sum_hi[h] += shfl_xor(piece.sum_hi[h], mask);
            piece.sum_lo[h] += shfl_xor(piece.sum_lo[h], mask);
        }
    return piece;
}

}  // namespace runnel::kernels::cuda
