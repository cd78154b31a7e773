#include <cassert>
#include <cmath>
#include <cstring>

#include "gguf/grid_blocks.h"
#include "gguf/group_search.h"
#include "gguf/nvfp4.h"
#include "gguf/quantize.h"
#include "gguf/scales.h"

namespace runnel::gguf {
namespace {

using gguf::decode;

// --- blocks of 32: weight i in the low, weight i + 16 in the high nibble of byte i ---

template <class Value>
void each_nibble(const uint8_t (&qs)[16], float *out, Value value) {
    for (int i = 0; i < 16; ++i) {
        out[i] = value(qs[i] & 15, i);
        out[i + 16] = value(qs[i] >> 4, i + 16);
    }
}

int fifth_bit(const uint8_t (&qh)[4], int i) {
    return (qh[i / 8] >> (i % 8) & 1) << 4;
}

void decode(const BlockQ4_0 &b, float *out) {
    const float d = f16_to_f32(b.d);
    each_nibble(b.qs, out, [&](int q, int) { return static_cast<float>(q - 8) * d; });
}

void decode(const BlockQ4_1 &b, float *out) {
    const float d = f16_to_f32(b.d), m = f16_to_f32(b.m);
    each_nibble(b.qs, out, [&](int q, int) { return static_cast<float>(q) * d + m; });
}

void decode(const BlockQ5_0 &b, float *out) {
    const float d = f16_to_f32(b.d);
    each_nibble(b.qs, out,
                [&](int q, int i) { return static_cast<float>((q | fifth_bit(b.qh, i)) - 16) * d; });
}

void decode(const BlockQ5_1 &b, float *out) {
    const float d = f16_to_f32(b.d), m = f16_to_f32(b.m);
    each_nibble(b.qs, out, [&](int q, int i) { return static_cast<float>(q | fifth_bit(b.qh, i)) * d + m; });
}

void decode(const BlockQ8_0 &b, float *out) {
    const float d = f16_to_f32(b.d);
    for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(b.qs[i]) * d;
}

void decode(const BlockIQ4_NL &b, float *out) {
    const float d = f16_to_f32(b.d);
    each_nibble(b.qs, out, [&](int q, int) { return d * static_cast<float>(kIQ4Values[q]); });
}

void decode(const BlockMXFP4 &b, float *out) {
    const float d = std::ldexp(1.0f, b.e - 128);
    each_nibble(b.qs, out, [&](int q, int) { return d * static_cast<float>(kMXFP4Values[q]); });
}

void decode(const BlockNVFP4 &b, float *out) {
    for (int i = 0; i < 64; ++i) {
        const float d = ue4m3_to_f32(b.d[i / 16]) * 0.5f;
        const int q = b.qs[i / 16 * 8 + i % 8] >> (i / 8 % 2 * 4) & 15;
        out[i] = d * static_cast<float>(kMXFP4Values[q]);
    }
}

// --- few bits per weight, in the order of the weights ---

void decode(const BlockQ1_0 &b, float *out) {
    const float d = f16_to_f32(b.d);
    for (int i = 0; i < 128; ++i) out[i] = b.qs[i / 8] >> (i % 8) & 1 ? d : -d;
}

// The value of code i, two bits wide.
float two_bit_value(const uint8_t *qs, int i, float d) {
    return static_cast<float>((qs[i / 4] >> (i % 4 * 2) & 3) - 1) * d;
}

void decode(const BlockQ2_0 &b, float *out) {
    const float d = f16_to_f32(b.d);
    for (int i = 0; i < 64; ++i) out[i] = two_bit_value(b.qs, i, d);
}

void decode(const BlockPQ2_0 &b, float *out) {
    const float d = f16_to_f32(b.d);
    for (int i = 0; i < 128; ++i) out[i] = two_bit_value(b.qs, i, d);
}

// --- super-blocks of 256 -----------------------------------------------------------------------------------

// The 2-bit field of weight i in a group of 32 bytes with 128 weights, 32 apart.
int two_bits(const uint8_t *qs, int i) {
    return qs[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
}

// The nibble of weight i in a group of 32 bytes with 64 weights, 32 apart.
int four_bits(const uint8_t *qs, int i) {
    return qs[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
}

void decode(const BlockQ2_K &b, float *out) {
    const float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
    for (int i = 0; i < kSuperBlock; ++i) {
        const int scale = b.scales[i / 16];
        const float step = d * static_cast<float>(scale & 15), offset = dmin * static_cast<float>(scale >> 4);
        out[i] = step * static_cast<float>(two_bits(b.qs, i)) - offset;
    }
}

void decode(const BlockQ3_K &b, float *out) {
    const float d = f16_to_f32(b.d);
    for (int i = 0; i < kSuperBlock; ++i) {
        const float step = d * static_cast<float>(q3_scale(b.scales, i / 16) - 32);
        const int high = b.hmask[i % 32] >> (i / 32) & 1;
        out[i] = step * static_cast<float>((two_bits(b.qs, i) | high << 2) - 4);
    }
}

void decode(const BlockQ4_K &b, float *out) {
    const float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
    const ScalesAndMins s = unpack_scales_mins(b.scales);
    for (int i = 0; i < kSuperBlock; ++i) {
        const float step = d * static_cast<float>(s.scales[i / 32]);
        const float offset = dmin * static_cast<float>(s.mins[i / 32]);
        out[i] = step * static_cast<float>(four_bits(b.qs, i)) - offset;
    }
}

void decode(const BlockQ5_K &b, float *out) {
    const float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
    const ScalesAndMins s = unpack_scales_mins(b.scales);
    for (int i = 0; i < kSuperBlock; ++i) {
        const float step = d * static_cast<float>(s.scales[i / 32]);
        const float offset = dmin * static_cast<float>(s.mins[i / 32]);
        const int high = b.qh[i % 32] >> (i / 32) & 1;
        out[i] = step * static_cast<float>(four_bits(b.qs, i) | high << 4) - offset;
    }
}

// 128 weights have 64 bytes of low nibbles (in a byte: 64 apart) and 32 bytes of upper bits (32 apart).
void decode(const BlockQ6_K &b, float *out) {
    const float d = f16_to_f32(b.d);
    for (int i = 0; i < kSuperBlock; ++i) {
        const int low = b.ql[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15;
        const int q = low | two_bits(b.qh, i) << 4;
        out[i] = d * static_cast<float>(b.scales[i / 16]) * static_cast<float>(q - 32);
    }
}

void decode(const BlockIQ4_XS &b, float *out) {
    const float d = f16_to_f32(b.d);
    for (int group = 0; group < 8; ++group) {
        const int low = b.scales_l[group / 2] >> (group % 2 * 4) & 15, high = b.scales_h >> (2 * group) & 3;
        const float step = d * static_cast<float>((low | high << 4) - 32);
        uint8_t qs[16];
        std::memcpy(qs, b.qs + 16 * group, sizeof qs);
        each_nibble(qs, out + 32 * group,
                    [&](int q, int) { return step * static_cast<float>(kIQ4Values[q]); });
    }
}

// Trit n of a byte: the byte is the fraction 0.t0 t1 t2 t3 t4 in base 3, scaled to 256 and rounded up, so
// multiplying by 3^n modulo 256 drops the trits before n, and the next product by 3 carries trit n into
// bit 8.
float trit(uint8_t byte, int n, float d) {
    constexpr uint8_t kPowers[] = {1, 3, 9, 27, 81};
    const auto fraction = static_cast<uint8_t>(byte * kPowers[n]);
    return static_cast<float>((fraction * 3 >> 8) - 1) * d;
}

// Trit n of byte i < 32 of qs is weight 32 n + i; bytes 32-47 hold weights 160-239 likewise; qh the rest.
void decode(const BlockTQ1_0 &b, float *out) {
    const float d = f16_to_f32(b.d);
    for (int i = 0; i < 160; ++i) out[i] = trit(b.qs[i % 32], i / 32, d);
    for (int i = 0; i < 80; ++i) out[160 + i] = trit(b.qs[32 + i % 16], i / 16, d);
    for (int i = 0; i < 16; ++i) out[240 + i] = trit(b.qh[i % 4], i / 4, d);
}

void decode(const BlockPTQ1_0 &b, float *out) {
    const float d = f16_to_f32(b.d);
    for (int i = 0; i < 80; ++i) out[i] = trit(b.qs[i % 16], i / 16, d);
    for (int i = 0; i < 40; ++i) out[80 + i] = trit(b.qs[16 + i % 8], i / 8, d);
    for (int i = 0; i < 8; ++i) out[120 + i] = trit(b.qh[i % 2], i / 2, d);
}

void decode(const BlockTQ2_0 &b, float *out) {
    const float d = f16_to_f32(b.d);
    for (int i = 0; i < kSuperBlock; ++i) out[i] = static_cast<float>(two_bits(b.qs, i) - 1) * d;
}

// --- rows --------------------------------------------------------------------------------------------------

template <class Block, int kWeights>
void decode_blocks(const std::byte *blocks, float *out, int64_t n) {
    for (int64_t i = 0; i < n / kWeights; ++i) {
        Block block;
        std::memcpy(&block, blocks + i * static_cast<int64_t>(sizeof block), sizeof block);
        decode(block, out + i * kWeights);
    }
}

template <class Number, class Convert>
void convert(const std::byte *numbers, float *out, int64_t n, Convert to_float) {
    for (int64_t i = 0; i < n; ++i) {
        Number number;
        std::memcpy(&number, numbers + i * static_cast<int64_t>(sizeof number), sizeof number);
        out[i] = to_float(number);
    }
}

template <class Number>
void convert(const std::byte *numbers, float *out, int64_t n) {
    convert<Number>(numbers, out, n, [](Number number) { return static_cast<float>(number); });
}

}  // namespace

void dequantize_row(Type type, const std::byte *blocks, float *out, int64_t n) {
    assert(traits(type).supported && n % traits(type).block_size == 0);
    switch (type) {
        case Type::F32:
            std::memcpy(out, blocks, static_cast<size_t>(n) * sizeof(float));
            break;
        case Type::F16:
            group_search().from_f16(blocks, out, n);
            break;
        case Type::BF16:
            convert<uint16_t>(blocks, out, n, bf16_to_f32);
            break;
        case Type::F64:
            convert<double>(blocks, out, n);
            break;
        case Type::I8:
            convert<int8_t>(blocks, out, n);
            break;
        case Type::I16:
            convert<int16_t>(blocks, out, n);
            break;
        case Type::I32:
            convert<int32_t>(blocks, out, n);
            break;
        case Type::I64:
            convert<int64_t>(blocks, out, n);
            break;
        case Type::Q4_0:
            decode_blocks<BlockQ4_0, 32>(blocks, out, n);
            break;
        case Type::Q4_1:
            decode_blocks<BlockQ4_1, 32>(blocks, out, n);
            break;
        case Type::Q5_0:
            decode_blocks<BlockQ5_0, 32>(blocks, out, n);
            break;
        case Type::Q5_1:
            decode_blocks<BlockQ5_1, 32>(blocks, out, n);
            break;
        case Type::Q8_0:
            decode_blocks<BlockQ8_0, 32>(blocks, out, n);
            break;
        case Type::Q2_K:
            decode_blocks<BlockQ2_K, kSuperBlock>(blocks, out, n);
            break;
        case Type::Q3_K:
            decode_blocks<BlockQ3_K, kSuperBlock>(blocks, out, n);
            break;
        case Type::Q4_K:
            decode_blocks<BlockQ4_K, kSuperBlock>(blocks, out, n);
            break;
        case Type::Q5_K:
            decode_blocks<BlockQ5_K, kSuperBlock>(blocks, out, n);
            break;
        case Type::Q6_K:
            decode_blocks<BlockQ6_K, kSuperBlock>(blocks, out, n);
            break;
        case Type::IQ4_NL:
            decode_blocks<BlockIQ4_NL, 32>(blocks, out, n);
            break;
        case Type::IQ4_XS:
            decode_blocks<BlockIQ4_XS, kSuperBlock>(blocks, out, n);
            break;
        case Type::MXFP4:
            decode_blocks<BlockMXFP4, 32>(blocks, out, n);
            break;
        case Type::NVFP4:
            decode_blocks<BlockNVFP4, 64>(blocks, out, n);
            break;
        case Type::Q1_0:
            decode_blocks<BlockQ1_0, 128>(blocks, out, n);
            break;
        case Type::Q2_0:
            decode_blocks<BlockQ2_0, 64>(blocks, out, n);
            break;
        case Type::PQ2_0:
            decode_blocks<BlockPQ2_0, 128>(blocks, out, n);
            break;
        case Type::PTQ1_0:
            decode_blocks<BlockPTQ1_0, 128>(blocks, out, n);
            break;
        case Type::TQ1_0:
            decode_blocks<BlockTQ1_0, kSuperBlock>(blocks, out, n);
            break;
        case Type::TQ2_0:
            decode_blocks<BlockTQ2_0, kSuperBlock>(blocks, out, n);
            break;
        case Type::IQ2_XXS:
            decode_blocks<BlockIQ2_XXS, kSuperBlock>(blocks, out, n);
            break;
        case Type::IQ2_XS:
            decode_blocks<BlockIQ2_XS, kSuperBlock>(blocks, out, n);
            break;
        case Type::IQ2_S:
            decode_blocks<BlockIQ2_S, kSuperBlock>(blocks, out, n);
            break;
        case Type::IQ3_XXS:
            decode_blocks<BlockIQ3_XXS, kSuperBlock>(blocks, out, n);
            break;
        case Type::IQ3_S:
            decode_blocks<BlockIQ3_S, kSuperBlock>(blocks, out, n);
            break;
        case Type::IQ1_S:
            decode_blocks<BlockIQ1_S, kSuperBlock>(blocks, out, n);
            break;
        case Type::IQ1_M:
            decode_blocks<BlockIQ1_M, kSuperBlock>(blocks, out, n);
            break;
        default:
            assert(false);
    }
}

}  // namespace runnel::gguf
