// One warp quantizes one group of 256 values (activations.h); for kernels.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/activations.h"
#include "kernels/cuda/runtime/device.h"

namespace runnel::kernels::cuda {

// The first column, k, of a lane's eight values of a group: x[0..3] are columns k .. k + 3, x[4..7] columns
// k + 16 .. k + 19. Lane 8 chunk + 2 t + sub has k = 64 chunk + 32 sub + 4 t.
DEVICE int activation_first(int lane) {
    return 64 * (lane >> 3) + 32 * (lane & 1) + 4 * (lane >> 1 & 3);
}

// Four float32 values at `k` of a row, zero beyond its end.
DEVICE float4 load_floats(const float *x, int64_t k, int64_t cols) {
    if (k + 4 <= cols) return *reinterpret_cast<const float4 *>(x + k);
    return {k < cols ? x[k] : 0.0f, k + 1 < cols ? x[k + 1] : 0.0f, k + 2 < cols ? x[k + 2] : 0.0f, 0.0f};
}

// A lane's eight values of the quantized group, as in activation_first().
struct ActivationPiece {
    float q[8];
    float scale;   // of the group, in every lane
    float sum[2];  // of the chunk's groups of 16 number 2 sub and 2 sub + 1, in all their lanes

    // In the order of activations.h.
    DEVICE uint4 codes() const {
        return {pack_f16(q[0], q[2]), pack_f16(q[1], q[3]), pack_f16(q[4], q[6]), pack_f16(q[5], q[7])};
    }
};

// A lane's digits, likewise: of columns k .. k + 3 and k + 16 .. k + 19.
struct ActivationDigits {
    uint2 high, low;

    explicit DEVICE ActivationDigits(const float (&q)[8]) {
        constexpr float kBits = 0x1.8p23f;  // added to a small integer, it puts that into the low byte
        uint32_t h[8], l[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float digit = fma_rn(q[i], 1.0f / kDigit, kBits);
            h[i] = float_bits(digit);
            l[i] = float_bits(fma_rn(digit - kBits, -kDigit, q[i]) + kBits);
        }
        high = {bytes_of(h[0], h[1], h[2], h[3]), bytes_of(h[4], h[5], h[6], h[7])};
        low = {bytes_of(l[0], l[1], l[2], l[3]), bytes_of(l[4], l[5], l[6], l[7])};
    }

  private:
    static DEVICE uint32_t bytes_of(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
        return prmt(prmt(a, b, 0x0040u), prmt(c, d, 0x0040u), 0x5410u);
    }
};

// A sum of up to 32 integers q as high + low, both exact in binary16.
struct SumParts {
    float high, low;
};
DEVICE SumParts parts_of(float sum) {
    const float high = 32.0f * rint_rn(sum * (1.0f / 32.0f));
    return {high, sum - high};
}

// The largest magnitude among all lanes' values, as bits: a NaN is larger than infinity. Warp collective.
DEVICE uint32_t largest_magnitude(uint32_t largest) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
        const uint32_t other = shfl_xor(largest, mask);
        largest = other > largest ? other : largest;
    }
    return largest;
}
DEVICE uint32_t largest_of(const float (&x)[8], uint32_t largest) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const uint32_t magnitude = float_bits(x[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

// Warp collective: quantizes a group to integers. Values beyond the end of a row must be 0.
DEVICE ActivationPiece quantize_group(const float (&x)[8]) {
    constexpr float kLargest = kActivationLargest;
    const float maximum = bits_float(largest_magnitude(largest_of(x, 0)));
    const bool tiny = maximum < 0x1p-100f;
    const float inverse = tiny ? 0.0f : kLargest / maximum;
    ActivationPiece piece;
    auto &q = piece.q;
#pragma unroll
    for (int i = 0; i < 8; ++i) q[i] = rint_rn(x[i] * inverse);
    // The product makes the scale of a group with an infinite value NaN.
    piece.scale = tiny ? 0.0f : fma_rn(maximum, 0.0f, maximum / kLargest);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        piece.sum[h] = (q[4 * h] + q[4 * h + 1]) + (q[4 * h + 2] + q[4 * h + 3]);
#pragma unroll
        for (int mask = 2; mask <= 4; mask *= 2) piece.sum[h] += shfl_xor(piece.sum[h], mask);
    }
    return piece;
}

// --- halves ------------------------------------------------------------------------------------------------

// A row's s and 1 / s, both powers of two (0 and 0 for a row that is practically zero).
struct HalfScale {
    float scale, inverse;
};
DEVICE HalfScale half_scale(uint32_t largest) {
    const uint32_t exponent = largest >> 23;  // of 2^(exponent - 127)
    if (exponent == 255) return {bits_float(0x7fffffffu), 0};
    if (bits_float(largest) < 0x1p-100f) return {0, 0};
    return {bits_float((exponent - 14) << 23), bits_float((254 + 14 - exponent) << 23)};
}

// A lane's eight values, in the order of activations.h.
DEVICE uint4 halves_of(const float (&x)[8], float inverse) {
    return {pack_f16(x[0] * inverse, x[1] * inverse), pack_f16(x[2] * inverse, x[3] * inverse),
            pack_f16(x[4] * inverse, x[5] * inverse), pack_f16(x[6] * inverse, x[7] * inverse)};
}

}  // namespace runnel::kernels::cuda
