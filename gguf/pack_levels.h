// Packs the levels of a block's weights into its bytes; block.h describes the layouts. Internal to gguf/.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gguf/block.h"

namespace runnel::gguf {

// qs[i] = level of weight i | level of weight i + 16 << 4.
template <class Level>
void pack_nibbles(uint8_t *qs, const Level *levels) {
    for (int i = 0; i < 16; ++i) qs[i] = static_cast<uint8_t>((levels[i] & 15) | (levels[i + 16] & 15) << 4);
}

template <class Level>
void pack_fifth_bits(uint8_t *qh, const Level *levels) {
    std::fill_n(qh, 4, uint8_t{0});
    for (int i = 0; i < 32; ++i)
        qh[i / 8] = static_cast<uint8_t>(qh[i / 8] | (levels[i] >> 4 & 1) << (i % 8));
}

// 64 levels below 16 per 32 bytes: level i in the low, level i + 32 in the high nibble of byte i.
inline void pack_64_nibbles(const uint8_t *levels, uint8_t (&qs)[kSuperBlock / 2]) {
    for (int part = 0; part < kSuperBlock / 64; ++part)
        for (int i = 0; i < 32; ++i)
            qs[32 * part + i] =
                static_cast<uint8_t>((levels[64 * part + i] & 15) | (levels[64 * part + i + 32] & 15) << 4);
}

// 128 levels below 4 per 32 bytes: level i + 32 n in bits 2 n and 2 n + 1 of byte i.
inline void pack_pairs_of_bits(const uint8_t *levels, uint8_t (&qs)[kSuperBlock / 4]) {
    for (int half = 0; half < 2; ++half)
        for (int i = 0; i < 32; ++i) {
            const uint8_t *const from = levels + 128 * half + i;
            qs[32 * half + i] = static_cast<uint8_t>(from[0] | from[32] << 2 | from[64] << 4 | from[96] << 6);
        }
}

// Bit `bit` of level i + 32 n in bit n of byte i.
inline void pack_upper_bits(const uint8_t *levels, int bit, uint8_t (&bits)[kSuperBlock / 8]) {
    std::fill_n(bits, kSuperBlock / 8, uint8_t{0});
    for (int part = 0; part < 8; ++part)
        for (int i = 0; i < 32; ++i)
            bits[i] = static_cast<uint8_t>(bits[i] | (levels[32 * part + i] >> bit & 1) << part);
}

// 6-bit levels.
inline void pack_levels(const uint8_t *levels, BlockQ6_K &block) {
    for (int half = 0; half < 2; ++half) {
        const uint8_t *const from = levels + 128 * half;
        for (int i = 0; i < 64; ++i)
            block.ql[64 * half + i] = static_cast<uint8_t>((from[i] & 15) | (from[i + 64] & 15) << 4);
        for (int i = 0; i < 32; ++i)
            block.qh[32 * half + i] = static_cast<uint8_t>(from[i] >> 4 | from[i + 32] >> 4 << 2 |
                                                           from[i + 64] >> 4 << 4 | from[i + 96] >> 4 << 6);
    }
}

}  // namespace runnel::gguf
