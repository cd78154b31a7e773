// One warp quantises one group of 256 values (activations.h); for kernels.
#pragma once

#include <cstdint>

#include "kernels/cuda/activations.h"
#include "kernels/cuda/device.h"

namespace runnel::kernels::cuda {

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
