// The block formats made of codebook entries (IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S) and their
// codebooks: each entry is four or eight weights without their signs. Layouts and tables are ggml's; block.h
// says how to read blocks.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "gguf/half.h"

namespace runnel::gguf {

// Each entry holds one weight per byte, the first in the lowest byte.
extern const std::array<uint64_t, 256> kGridIQ2_XXS;
extern const std::array<uint64_t, 512> kGridIQ2_XS;
extern const std::array<uint64_t, 1024> kGridIQ2_S;
extern const std::array<uint32_t, 256> kGridIQ3_XXS;
extern const std::array<uint32_t, 512> kGridIQ3_S;
extern const std::array<uint64_t, 2048> kGridIQ1;  // -1, 0 or 1, as 0, 1 or 2

// The signs of eight weights (bit set: negative). A block stores seven; the eighth makes the parity even.
constexpr uint8_t eight_signs(uint32_t seven) {
    return static_cast<uint8_t>(seven | (std::popcount(seven) & 1) << 7);
}

// clang-format off
#pragma pack(push, 1)
// 8 groups of 32 weights each; d is an IEEE binary16, as bits.
// value = d * (2 s + 1) / 8 * grid * sign. A group is 64 bits: four entries in the low bytes, then from bit 32 on
// four times seven signs (eight_signs) and s.
struct BlockIQ2_XXS { uint16_t d; uint16_t qs[32]; };
// As IQ2_XXS, but each of qs holds an entry in its low 9 bits and seven signs above; scales: a nibble s per 16 weights.
struct BlockIQ2_XS { uint16_t d; uint16_t qs[32]; uint8_t scales[8]; };
// As IQ2_XS; qh has two more bits for each entry, a byte per group; all eight signs of an entry are stored.
struct BlockIQ2_S { uint16_t d; uint8_t qs[32]; uint8_t signs[32]; uint8_t qh[8]; uint8_t scales[8]; };
// value = d * (2 s + 1) / 4 * grid * sign; signs_scale has 32 bits per group: four times seven signs, then s.
struct BlockIQ3_XXS { uint16_t d; uint8_t qs[64]; uint8_t signs_scale[32]; };
// value = d * (2 s + 1) * grid * sign; bit k of a group's qh is bit 8 of entry k; s per group, in nibbles.
struct BlockIQ3_S { uint16_t d; uint8_t qs[64]; uint8_t qh[8]; uint8_t signs[32]; uint8_t scales[4]; };
// value = d * (2 s + 1) * (grid +- 1/8). A group's qh holds three more bits for each of its four entries, then s
// (three bits), then a bit that is set if the shift is -1/8.
struct BlockIQ1_S { uint16_t d; uint8_t qs[32]; uint16_t qh[8]; };
// As IQ1_S; each nibble of qh holds three more bits of an entry, and its shift. scales is four 16-bit words: each
// holds s of four groups of 16 weights (three bits each, from the lowest) and, in its top nibble, a part of d.
struct BlockIQ1_M { uint8_t qs[32]; uint8_t qh[16]; uint8_t scales[8]; };
#pragma pack(pop)
// clang-format on

// The scale of an IQ1_M block.
constexpr uint16_t iq1_m_scale(const uint8_t (&scales)[8]) {
    return static_cast<uint16_t>(scales[1] >> 4 | (scales[3] & 0xf0) | (scales[5] & 0xf0) << 4 |
                                 (scales[7] & 0xf0) << 8);
}
// The s of weights 16 i ... 16 i + 15 of an IQ1_M block.
constexpr int iq1_m_group_scale(const uint8_t (&scales)[8], int i) {
    return (scales[i / 4 * 2] | scales[i / 4 * 2 + 1] << 8) >> (3 * (i % 4)) & 7;
}

static_assert(sizeof(BlockIQ2_XXS) == 66 && sizeof(BlockIQ2_XS) == 74 && sizeof(BlockIQ2_S) == 82);
static_assert(sizeof(BlockIQ3_XXS) == 98 && sizeof(BlockIQ3_S) == 110);
static_assert(sizeof(BlockIQ1_S) == 50 && sizeof(BlockIQ1_M) == 56);

}  // namespace runnel::gguf
