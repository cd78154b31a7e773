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

// One weight per byte, the first in the lowest.
extern const std::array<uint64_t, 256> kGridIQ2_XXS;
extern const std::array<uint64_t, 512> kGridIQ2_XS;
extern const std::array<uint64_t, 1024> kGridIQ2_S;
extern const std::array<uint32_t, 256> kGridIQ3_XXS;
extern const std::array<uint32_t, 512> kGridIQ3_S;
extern const std::array<uint64_t, 2048> kGridIQ1;  // -1, 0 or 1, as 0, 1 or 2

// The signs of eight weights from the seven that a block stores (bit set: negative): the parity is even.
constexpr uint8_t eight_signs(uint32_t seven) {
    return static_cast<uint8_t>(seven | (std::popcount(seven) & 1) << 7);
}

// clang-format off
#pragma pack(push, 1)
// 8 groups of 32 weights each; d is an IEEE binary16, as bits.
// value = d * (2 s + 1) / 8 * grid * sign. A group is 64 bits: four entries in the low bytes, then from bit 32 on
// four times seven signs (eight_signs) and s.
struct BlockIQ2_XXS { uint16_t d; uint16_t qs[32]; };
// As IQ2_XXS; an entry in the low 9 bits of each of qs, seven signs in the rest; s per 16 weights, in nibbles.
struct BlockIQ2_XS { uint16_t d; uint16_t qs[32]; uint8_t scales[8]; };
// As IQ2_XS; entries have two more bits in qh, two for each of a group's four; all eight signs are there.
struct BlockIQ2_S { uint16_t d; uint8_t qs[32]; uint8_t signs[32]; uint8_t qh[8]; uint8_t scales[8]; };
// value = d * (2 s + 1) / 4 * grid * sign; of each group, 32 bits hold four times seven signs and s.
struct BlockIQ3_XXS { uint16_t d; uint8_t qs[64]; uint8_t signs_scale[32]; };
// value = d * (2 s + 1) * grid * sign; bit k of qh is the ninth of a group's entry k; s per group, in nibbles.
struct BlockIQ3_S { uint16_t d; uint8_t qs[64]; uint8_t qh[8]; uint8_t signs[32]; uint8_t scales[4]; };
// value = d * (2 s + 1) * (grid +- 1/8). Of a group's qh: three more bits of each of four entries, s (three bits),
// and whether the shift is -1/8.
struct BlockIQ1_S { uint16_t d; uint8_t qs[32]; uint16_t qh[8]; };
// As IQ1_S; each nibble of qh: three more bits of an entry and its shift. scales, as four words: s of groups of 16
// weights in three bits each, from the lowest; the top nibbles are d.
struct BlockIQ1_M { uint8_t qs[32]; uint8_t qh[16]; uint8_t scales[8]; };
#pragma pack(pop)
// clang-format on

// The scale of an IQ1_M block.
constexpr uint16_t iq1_m_scale(const uint8_t (&scales)[8]) {
    return static_cast<uint16_t>(scales[1] >> 4 | (scales[3] & 0xf0) | (scales[5] & 0xf0) << 4 |
                                 (scales[7] & 0xf0) << 8);
}
// Of weights 16 i ... 16 i + 15.
constexpr int iq1_m_group_scale(const uint8_t (&scales)[8], int i) {
    return (scales[i / 4 * 2] | scales[i / 4 * 2 + 1] << 8) >> (3 * (i % 4)) & 7;
}

static_assert(sizeof(BlockIQ2_XXS) == 66 && sizeof(BlockIQ2_XS) == 74 && sizeof(BlockIQ2_S) == 82);
static_assert(sizeof(BlockIQ3_XXS) == 98 && sizeof(BlockIQ3_S) == 110);
static_assert(sizeof(BlockIQ1_S) == 50 && sizeof(BlockIQ1_M) == 56);

}  // namespace runnel::gguf
