// The codebook formats (gguf/codebook.h) as integers: w * scale * unit * d with w = grid * sign or 8 * grid
// +- 1, so that they use the same dot products as the other blocks of 256 (README.md).
//
// GridBlock<Block> reads a block of the file:
//   entry        eight weights of the codebook, 8 i ... 8 i + 7
//   quad         for codebooks with entries of four: weights 4 i ... 4 i + 3
//   signs        the sign bits of group j of 32 weights, in the form kSigns
//   scale        the integer scale of weights 16 i ... 16 i + 15
//   scale_bits   d, an f16
//   kUnit        the factor `unit`, a power of two
// Compiled into each instruction set's file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gguf/codebook.h"

namespace runnel::kernels::cpu {
namespace {

enum class Signs {
    Seven,  // seven bits for every eight weights; the eighth makes the parity even
    Eight,  // one bit for each of 32 weights
    Shift,  // one bit for each of four entries: its weights are 8 grid - 1 if it is set, else 8 grid + 1
};

[[gnu::always_inline]] inline int odd_scale(const uint8_t *nibbles, int i) {
    return 2 * (nibbles[i / 2] >> (4 * (i % 2)) & 15) + 1;
}

[[gnu::always_inline]] inline uint32_t word(const void *bytes) {
    uint32_t word;
    __builtin_memcpy(&word, bytes, sizeof word);
    return word;
}

// Joins two entries of four weights to one of eight.
[[gnu::always_inline]] inline uint64_t join(uint32_t low, uint32_t high) {
    return low | static_cast<uint64_t>(high) << 32;
}

template <class Block>
struct GridBlock;

template <>
struct GridBlock<gguf::BlockIQ2_XXS> {
    using Block = gguf::BlockIQ2_XXS;
    static constexpr float kUnit = 0.125f;
    static constexpr Signs kSigns = Signs::Seven;
    static uint16_t scale_bits(const Block &b) { return b.d; }
    [[gnu::always_inline]] static uint32_t signs(const Block &b, int j) { return word(b.qs + 4 * j + 2); }
    [[gnu::always_inline]] static int scale(const Block &b, int i) {
        return static_cast<int>(2 * (signs(b, i / 2) >> 28) + 1);
    }
    [[gnu::always_inline]] static uint64_t entry(const Block &b, int i) {
        return gguf::kGridIQ2_XXS[word(b.qs + i / 4 * 4) >> (8 * (i % 4)) & 255];
    }
};

template <>
struct GridBlock<gguf::BlockIQ2_XS> {
    using Block = gguf::BlockIQ2_XS;
    static constexpr float kUnit = 0.125f;
    static constexpr Signs kSigns = Signs::Seven;
    static uint16_t scale_bits(const Block &b) { return b.d; }
    [[gnu::always_inline]] static uint32_t signs(const Block &b, int j) {
        const uint32_t low = word(b.qs + 4 * j), high = word(b.qs + 4 * j + 2);
        return (low >> 9 & 127) | low >> 25 << 7 | (high >> 9 & 127) << 14 | high >> 25 << 21;
    }
    [[gnu::always_inline]] static int scale(const Block &b, int i) { return odd_scale(b.scales, i); }
    [[gnu::always_inline]] static uint64_t entry(const Block &b, int i) {
        return gguf::kGridIQ2_XS[b.qs[i] & 511u];
    }
};

template <>
struct GridBlock<gguf::BlockIQ2_S> {
    using Block = gguf::BlockIQ2_S;
    static constexpr float kUnit = 0.125f;
    static constexpr Signs kSigns = Signs::Eight;
    static uint16_t scale_bits(const Block &b) { return b.d; }
    [[gnu::always_inline]] static uint32_t signs(const Block &b, int j) { return word(b.signs + 4 * j); }
    [[gnu::always_inline]] static int scale(const Block &b, int i) { return odd_scale(b.scales, i); }
    [[gnu::always_inline]] static uint64_t entry(const Block &b, int i) {
        const uint32_t high = b.qh[i / 4] >> (2 * (i % 4)) & 3u;
        return gguf::kGridIQ2_S[b.qs[i] | high << 8];
    }
};

template <>
struct GridBlock<gguf::BlockIQ3_XXS> {
    using Block = gguf::BlockIQ3_XXS;
    static constexpr float kUnit = 0.25f;
    static constexpr Signs kSigns = Signs::Seven;
    static uint16_t scale_bits(const Block &b) { return b.d; }
    [[gnu::always_inline]] static uint32_t signs(const Block &b, int j) {
        return word(b.signs_scale + 4 * j);
    }
    [[gnu::always_inline]] static int scale(const Block &b, int i) {
        return static_cast<int>(2 * (signs(b, i / 2) >> 28) + 1);
    }
    [[gnu::always_inline]] static uint64_t entry(const Block &b, int i) {
        return join(quad(b, 2 * i), quad(b, 2 * i + 1));
    }
    [[gnu::always_inline]] static uint32_t quad(const Block &b, int i) { return gguf::kGridIQ3_XXS[b.qs[i]]; }
};

template <>
struct GridBlock<gguf::BlockIQ3_S> {
    using Block = gguf::BlockIQ3_S;
    static constexpr float kUnit = 1;
    static constexpr Signs kSigns = Signs::Eight;
    static uint16_t scale_bits(const Block &b) { return b.d; }
    [[gnu::always_inline]] static uint32_t signs(const Block &b, int j) { return word(b.signs + 4 * j); }
    [[gnu::always_inline]] static int scale(const Block &b, int i) { return odd_scale(b.scales, i / 2); }
    [[gnu::always_inline]] static uint64_t entry(const Block &b, int i) {
        return join(quad(b, 2 * i), quad(b, 2 * i + 1));
    }
    [[gnu::always_inline]] static uint32_t quad(const Block &b, int i) {
        return gguf::kGridIQ3_S[b.qs[i] | (b.qh[i / 8] >> (i % 8) & 1u) << 8];
    }
};

template <>
struct GridBlock<gguf::BlockIQ1_S> {
    using Block = gguf::BlockIQ1_S;
    static constexpr float kUnit = 0.125f;
    static constexpr Signs kSigns = Signs::Shift;
    static uint16_t scale_bits(const Block &b) { return b.d; }
    [[gnu::always_inline]] static uint32_t signs(const Block &b, int j) { return b.qh[j] >> 15 ? 15 : 0; }
    [[gnu::always_inline]] static int scale(const Block &b, int i) { return 2 * (b.qh[i / 2] >> 12 & 7) + 1; }
    [[gnu::always_inline]] static uint64_t entry(const Block &b, int i) {
        const uint32_t high = b.qh[i / 4] >> (3 * (i % 4)) & 7u;
        return gguf::kGridIQ1[b.qs[i] | high << 8];
    }
};

template <>
struct GridBlock<gguf::BlockIQ1_M> {
    using Block = gguf::BlockIQ1_M;
    static constexpr float kUnit = 0.125f;
    static constexpr Signs kSigns = Signs::Shift;
    static uint16_t scale_bits(const Block &b) { return gguf::iq1_m_scale(b.scales); }
    [[gnu::always_inline]] static uint32_t signs(const Block &b, int j) {
        const uint32_t low = b.qh[2 * j], high = b.qh[2 * j + 1];
        return (low >> 3 & 1) | low >> 7 << 1 | (high >> 3 & 1) << 2 | high >> 7 << 3;
    }
    [[gnu::always_inline]] static int scale(const Block &b, int i) {
        return 2 * gguf::iq1_m_group_scale(b.scales, i) + 1;
    }
    [[gnu::always_inline]] static uint64_t entry(const Block &b, int i) {
        const uint32_t high = b.qh[i / 2] >> (4 * (i % 2)) & 7u;
        return gguf::kGridIQ1[b.qs[i] | high << 8];
    }
};

}  // namespace
}  // namespace runnel::kernels::cpu
