// The formats whose scale follows from the largest value of a block. Every operation is ggml's, in float32
// and in its order, so that the bytes are the same.
#include <algorithm>
#include <cmath>

#include "gguf/encode.h"

namespace runnel::gguf {
namespace {

// The value of largest magnitude, with its sign; the first among equals.
float extreme(const float *in, int n) {
    float best = 0;
    for (int i = 0; i < n; ++i)
        if (std::fabs(in[i]) > std::fabs(best)) best = in[i];
    return best;
}

float largest(const float *in, int n) {
    return std::fabs(extreme(in, n));
}

float inverse(float d) {
    return d != 0 ? 1 / d : 0;
}

// The integer part of x in 0..top. If a scale is so small that its inverse overflows, or a range so large that
// it overflows itself, x is infinite or NaN: any level is right then, but the conversion must be defined.
int level_of(float x, int top) {
    return x > 0 ? static_cast<int>(std::min(x, static_cast<float>(top))) : 0;
}

// x rounded to an integer in -most..most; also defined for infinite x and NaN.
int rounded(float x, int most) {
    return level_of(std::round(x) + static_cast<float>(most), 2 * most) - most;
}

// qs[i] = level of weight i | level of weight i + 16 << 4.
template <class Level>
void pack_nibbles(uint8_t (&qs)[16], Level level) {
    for (int i = 0; i < 16; ++i) qs[i] = static_cast<uint8_t>((level(i) & 15) | (level(i + 16) & 15) << 4);
}

// As above, with bit 4 of level i in bit i of qh.
template <class Level>
void pack_five_bits(uint8_t (&qs)[16], uint8_t (&qh)[4], Level level) {
    pack_nibbles(qs, level);
    for (uint8_t &byte : qh) byte = 0;
    for (int i = 0; i < 32; ++i) qh[i / 8] = static_cast<uint8_t>(qh[i / 8] | (level(i) >> 4 & 1) << (i % 8));
}

// The E2M1 code whose multiple of d is nearest; the first among equally near ones.
int nearest_e2m1(float x, float d) {
    const auto error = [&](int q) { return std::fabs(static_cast<float>(kMXFP4Values[q]) * d - x); };
    int best = 0;
    for (int q = 1; q < 16; ++q)
        if (error(q) < error(best)) best = q;
    return best;
}

// The trits of `count` weights, `stride` apart, as a fraction of 256, rounded up; see the decoder. Of five trits, the
// missing ones are 0.
uint8_t trits(const float *in, int stride, int count, float inv) {
    int number = 0;
    for (int n = 0; n < 5; ++n) number = 3 * number + (n < count ? rounded(in[n * stride] * inv, 1) + 1 : 0);
    return static_cast<uint8_t>((number * 256 + 242) / 243);
}

// `n` weights as two-bit levels 0 to 2 of the scale returned, four neighbors per byte. The level 3, which means 2 d, is
// never needed: d is the largest magnitude.
f16_bits pack_ternary(const float *in, int n, uint8_t *qs) {
    const float d = largest(in, n), inv = inverse(d);
    for (int i = 0; i < n / 4; ++i) {
        int levels = 0;
        for (int k = 0; k < 4; ++k) levels |= (rounded(in[4 * i + k] * inv, 1) + 1) << (2 * k);
        qs[i] = static_cast<uint8_t>(levels);
    }
    return f32_to_f16(d);
}

}  // namespace

void encode(const float *in, BlockQ4_0 &block, Effort) {
    const float d = extreme(in, 32) / -8, inv = inverse(d);
    block.d = f32_to_f16(d);
    pack_nibbles(block.qs, [&](int i) { return level_of(in[i] * inv + 8.5f, 15); });
}

void encode(const float *in, BlockQ4_1 &block, Effort) {
    const auto [min, max] = std::minmax_element(in, in + 32);
    const float m = *min, d = (*max - m) / 15, inv = inverse(d);
    block.d = f32_to_f16(d);
    block.m = f32_to_f16(m);
    pack_nibbles(block.qs, [&](int i) { return level_of((in[i] - m) * inv + 0.5f, 15); });
}

void encode(const float *in, BlockQ5_0 &block, Effort) {
    const float d = extreme(in, 32) / -16, inv = inverse(d);
    block.d = f32_to_f16(d);
    pack_five_bits(block.qs, block.qh, [&](int i) { return level_of(in[i] * inv + 16.5f, 31); });
}

void encode(const float *in, BlockQ5_1 &block, Effort) {
    const auto [min, max] = std::minmax_element(in, in + 32);
    const float m = *min, d = (*max - m) / 31, inv = inverse(d);
    block.d = f32_to_f16(d);
    block.m = f32_to_f16(m);
    pack_five_bits(block.qs, block.qh, [&](int i) { return level_of((in[i] - m) * inv + 0.5f, 31); });
}

void encode(const float *in, BlockQ8_0 &block, Effort) {
    const float d = largest(in, 32) / 127, inv = inverse(d);
    block.d = f32_to_f16(d);
    for (int i = 0; i < 32; ++i) block.qs[i] = static_cast<int8_t>(rounded(in[i] * inv, 127));
}

// The exponent makes the largest value 4 to 8 times 2^(e - 127), as OCP's Microscaling Formats 1.0
// prescribes. E2M1 ends at 6: values above 6 times 2^(e - 127) saturate.
void encode(const float *in, BlockMXFP4 &block, Effort) {
    const float most = largest(in, 32);
    block.e =
        most > 0 ? static_cast<uint8_t>(std::max(0.0f, std::floor(std::log2(most)) - 2 + 127)) : uint8_t{0};
    const float d = std::ldexp(1.0f, block.e - 128);
    pack_nibbles(block.qs, [&](int i) { return nearest_e2m1(in[i], d); });
}

// Each scale makes the largest value of its 16 the largest of E2M1, 6.
void encode(const float *in, BlockNVFP4 &block, Effort) {
    for (int group = 0; group < 4; ++group) {
        const float *from = in + 16 * group;
        block.d[group] = f32_to_ue4m3(largest(from, 16) / 6);
        const float d = ue4m3_to_f32(block.d[group]) * 0.5f;
        for (int i = 0; i < 8; ++i)
            block.qs[8 * group + i] =
                static_cast<uint8_t>(nearest_e2m1(from[i], d) | nearest_e2m1(from[i + 8], d) << 4);
    }
}

void encode(const float *in, BlockTQ1_0 &block, Effort) {
    const float d = largest(in, kSuperBlock), inv = inverse(d);
    block.d = f32_to_f16(d);
    for (int i = 0; i < 32; ++i) block.qs[i] = trits(in + i, 32, 5, inv);
    for (int i = 0; i < 16; ++i) block.qs[32 + i] = trits(in + 160 + i, 16, 5, inv);
    for (int i = 0; i < 4; ++i) block.qh[i] = trits(in + 240 + i, 4, 4, inv);
}

void encode(const float *in, BlockPTQ1_0 &block, Effort) {
    const float d = largest(in, 128), inv = inverse(d);
    block.d = f32_to_f16(d);
    for (int i = 0; i < 16; ++i) block.qs[i] = trits(in + i, 16, 5, inv);
    for (int i = 0; i < 8; ++i) block.qs[16 + i] = trits(in + 80 + i, 8, 5, inv);
    for (int i = 0; i < 2; ++i) block.qh[i] = trits(in + 120 + i, 2, 4, inv);
}

void encode(const float *in, BlockTQ2_0 &block, Effort) {
    const float d = largest(in, kSuperBlock), inv = inverse(d);
    block.d = f32_to_f16(d);
    for (uint8_t &byte : block.qs) byte = 0;
    for (int i = 0; i < kSuperBlock; ++i) {
        const int level = rounded(in[i] * inv, 1) + 1;
        uint8_t &byte = block.qs[i / 128 * 32 + i % 32];
        byte = static_cast<uint8_t>(byte | level << (i / 32 % 4 * 2));
    }
}

void encode(const float *in, BlockQ1_0 &block, Effort) {
    float sum = 0;
    for (int i = 0; i < 128; ++i) sum += std::fabs(in[i]);
    block.d = f32_to_f16(sum / 128);
    for (int i = 0; i < 16; ++i) {
        int bits = 0;
        for (int k = 0; k < 8; ++k) bits |= (in[8 * i + k] >= 0 ? 1 : 0) << k;
        block.qs[i] = static_cast<uint8_t>(bits);
    }
}

void encode(const float *in, BlockQ2_0 &block, Effort) {
    block.d = pack_ternary(in, 64, block.qs);
}

void encode(const float *in, BlockPQ2_0 &block, Effort) {
    block.d = pack_ternary(in, 128, block.qs);
}

}  // namespace runnel::gguf
