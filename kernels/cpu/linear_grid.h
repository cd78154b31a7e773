// The formats made of codebook entries (gguf/codebook.h), as integers: w * scale * unit * d, w = grid * sign
// or 8 * grid +- 1, so that they go through the same dot products as the other blocks of 256 (README.md).
//
// GridBlock<Block>::weights: group j of 32 weights as bytes w + 128; scale: the integer scale of weights
// 16 i ... 16 i + 15; scale_bits: d, an f16; kUnit, a power of two. Compiled into each instruction set's
// file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gguf/codebook.h"

namespace runnel::kernels::cpu {
namespace {

constexpr uint64_t kEachByte = 0x0101010101010101u;

// Bit k of `signs` in byte k, 0 or 1.
[[gnu::always_inline]] inline uint64_t spread_signs(uint32_t signs) {
    const uint64_t bits = signs * kEachByte & 0x8040201008040201u;
    return (bits + 0x7f * kEachByte) >> 7 & kEachByte;  // no byte carries into the next
}

// Eight weights 1 ... 127 with their signs, plus 128.
[[gnu::always_inline]] inline uint64_t signed_bytes(uint64_t magnitudes, uint32_t signs) {
    const uint64_t negative = spread_signs(signs & 255);
    return ((magnitudes ^ (negative * 255)) + negative) ^ (0x80 * kEachByte);
}

// Eight times -1, 0 or 1 (as 0, 1, 2), shifted by one up or down; plus 128.
[[gnu::always_inline]] inline uint64_t shifted_bytes(uint64_t trits, bool down) {
    return 8 * trits + (down ? 0x77 : 0x79) * kEachByte;
}

[[gnu::always_inline]] inline void put(uint8_t *out, int i, uint64_t bytes) {
    __builtin_memcpy(out + 8 * i, &bytes, sizeof bytes);
}

[[gnu::always_inline]] inline int odd_scale(const uint8_t *nibbles, int i) {
    return 2 * (nibbles[i / 2] >> (4 * (i % 2)) & 15) + 1;
}

template <class Block>
struct GridBlock;

template <>
struct GridBlock<gguf::BlockIQ2_XXS> {
    using Block = gguf::BlockIQ2_XXS;
    static constexpr float kUnit = 0.125f;
    static uint16_t scale_bits(const Block &b) { return b.d; }
    [[gnu::always_inline]] static uint32_t signs_scale(const Block &b, int group) {
        return b.qs[4 * group + 2] | static_cast<uint32_t>(b.qs[4 * group + 3]) << 16;
    }
    [[gnu::always_inline]] static int scale(const Block &b, int i) {
        return static_cast<int>(2 * (signs_scale(b, i / 2) >> 28) + 1);
    }
    [[gnu::always_inline]] static void weights(const Block &b, int group, uint8_t *out) {
        const uint32_t entries = b.qs[4 * group] | static_cast<uint32_t>(b.qs[4 * group + 1]) << 16;
        const uint32_t signs = signs_scale(b, group);
        for (int i = 0; i < 4; ++i)
            put(out, i,
                signed_bytes(gguf::kGridIQ2_XXS[entries >> (8 * i) & 255],
                             gguf::eight_signs(signs >> (7 * i) & 127)));
    }
};

template <>
struct GridBlock<gguf::BlockIQ2_XS> {
    using Block = gguf::BlockIQ2_XS;
    static constexpr float kUnit = 0.125f;
    static uint16_t scale_bits(const Block &b) { return b.d; }
    [[gnu::always_inline]] static int scale(const Block &b, int i) { return odd_scale(b.scales, i); }
    [[gnu::always_inline]] static void weights(const Block &b, int group, uint8_t *out) {
        for (int i = 0; i < 4; ++i) {
            const uint32_t q = b.qs[4 * group + i];
            put(out, i, signed_bytes(gguf::kGridIQ2_XS[q & 511], gguf::eight_signs(q >> 9)));
        }
    }
};

template <>
struct GridBlock<gguf::BlockIQ2_S> {
    using Block = gguf::BlockIQ2_S;
    static constexpr float kUnit = 0.125f;
    static uint16_t scale_bits(const Block &b) { return b.d; }
    [[gnu::always_inline]] static int scale(const Block &b, int i) { return odd_scale(b.scales, i); }
    [[gnu::always_inline]] static void weights(const Block &b, int group, uint8_t *out) {
        for (int i = 0; i < 4; ++i) {
            const uint32_t high = b.qh[group] >> (2 * i) & 3u;
            put(out, i,
                signed_bytes(gguf::kGridIQ2_S[b.qs[4 * group + i] | high << 8], b.signs[4 * group + i]));
        }
    }
};

// Two entries of four weights.
[[gnu::always_inline]] inline uint64_t join(uint32_t low, uint32_t high) {
    return low | static_cast<uint64_t>(high) << 32;
}

template <>
struct GridBlock<gguf::BlockIQ3_XXS> {
    using Block = gguf::BlockIQ3_XXS;
    static constexpr float kUnit = 0.25f;
    static uint16_t scale_bits(const Block &b) { return b.d; }
    [[gnu::always_inline]] static uint32_t signs_scale(const Block &b, int group) {
        uint32_t word;
        __builtin_memcpy(&word, b.signs_scale + 4 * group, sizeof word);
        return word;
    }
    [[gnu::always_inline]] static int scale(const Block &b, int i) {
        return static_cast<int>(2 * (signs_scale(b, i / 2) >> 28) + 1);
    }
    [[gnu::always_inline]] static void weights(const Block &b, int group, uint8_t *out) {
        const uint32_t signs = signs_scale(b, group);
        for (int i = 0; i < 4; ++i) {
            const uint8_t *q = b.qs + 8 * group + 2 * i;
            put(out, i,
                signed_bytes(join(gguf::kGridIQ3_XXS[q[0]], gguf::kGridIQ3_XXS[q[1]]),
                             gguf::eight_signs(signs >> (7 * i) & 127)));
        }
    }
};

template <>
struct GridBlock<gguf::BlockIQ3_S> {
    using Block = gguf::BlockIQ3_S;
    static constexpr float kUnit = 1;
    static uint16_t scale_bits(const Block &b) { return b.d; }
    [[gnu::always_inline]] static int scale(const Block &b, int i) { return odd_scale(b.scales, i / 2); }
    [[gnu::always_inline]] static void weights(const Block &b, int group, uint8_t *out) {
        const uint32_t high = b.qh[group];
        for (int i = 0; i < 4; ++i) {
            const uint8_t *q = b.qs + 8 * group + 2 * i;
            const uint32_t first = q[0] | (high >> (2 * i) & 1) << 8,
                           second = q[1] | (high >> (2 * i + 1) & 1) << 8;
            put(out, i,
                signed_bytes(join(gguf::kGridIQ3_S[first], gguf::kGridIQ3_S[second]),
                             b.signs[4 * group + i]));
        }
    }
};

template <>
struct GridBlock<gguf::BlockIQ1_S> {
    using Block = gguf::BlockIQ1_S;
    static constexpr float kUnit = 0.125f;
    static uint16_t scale_bits(const Block &b) { return b.d; }
    [[gnu::always_inline]] static int scale(const Block &b, int i) { return 2 * (b.qh[i / 2] >> 12 & 7) + 1; }
    [[gnu::always_inline]] static void weights(const Block &b, int group, uint8_t *out) {
        const uint32_t bits = b.qh[group];
        for (int i = 0; i < 4; ++i) {
            const uint32_t entry = b.qs[4 * group + i] | (bits >> (3 * i) & 7) << 8;
            put(out, i, shifted_bytes(gguf::kGridIQ1[entry], (bits & 0x8000) != 0));
        }
    }
};

template <>
struct GridBlock<gguf::BlockIQ1_M> {
    using Block = gguf::BlockIQ1_M;
    static constexpr float kUnit = 0.125f;
    static uint16_t scale_bits(const Block &b) { return gguf::iq1_m_scale(b.scales); }
    [[gnu::always_inline]] static int scale(const Block &b, int i) {
        return 2 * gguf::iq1_m_group_scale(b.scales, i) + 1;
    }
    [[gnu::always_inline]] static void weights(const Block &b, int group, uint8_t *out) {
        for (int i = 0; i < 4; ++i) {
            const uint32_t bits = b.qh[2 * group + i / 2] >> (4 * (i % 2)) & 15u;
            const uint32_t entry = b.qs[4 * group + i] | (bits & 7) << 8;
            put(out, i, shifted_bytes(gguf::kGridIQ1[entry], (bits & 8) != 0));
        }
    }
};

}  // namespace
}  // namespace runnel::kernels::cpu
