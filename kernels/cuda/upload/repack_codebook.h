// The words of tiles in codebook formats (tiles.h); part of repack.h.
#pragma once

#include <cstdint>

#include "gguf/codebook.h"
#include "kernels/cuda/linear/tiles.h"

namespace runnel::kernels::cuda::repack {

constexpr uint32_t u16_of(const uint8_t *bytes) {
    return bytes[0] | static_cast<uint32_t>(bytes[1]) << 8;
}
constexpr uint32_t u32_of(const uint8_t *bytes) {
    return u16_of(bytes) | u16_of(bytes + 2) << 16;
}

// The signs of eight weights, one bit each. The block stores seven; the eighth makes the parity even.
constexpr uint32_t eight_signs(uint32_t seven) {
    uint32_t parity = seven ^ seven >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return seven | (parity & 1u) << 7;
}

// The content of a block of the file, entry by entry; all zeros (padding) if `bytes` is null. i counts
// entries, of eight weights or, in IQ3, of four.
struct CodebookBlock {
    gguf::Type type;
    const uint8_t *bytes;

    constexpr uint32_t index(int i) const {
        if (bytes == nullptr) return 0;
        switch (type) {
            case gguf::Type::IQ1_S:
                return bytes[2 + i] | (u16_of(bytes + 34 + i / 4 * 2) >> (3 * (i % 4)) & 7u) << 8;
            case gguf::Type::IQ1_M:
                return bytes[i] | (bytes[32 + i / 2] >> (4 * (i % 2)) & 7u) << 8;
            case gguf::Type::IQ2_XXS:
                return bytes[2 + i / 4 * 8 + i % 4];
            case gguf::Type::IQ2_XS:
                return u16_of(bytes + 2 + 2 * i) & 511u;
            case gguf::Type::IQ2_S:
                return bytes[2 + i] | (bytes[66 + i / 4] >> (2 * (i % 4)) & 3u) << 8;
            case gguf::Type::IQ3_S:
                return bytes[2 + i] | (bytes[66 + i / 8] >> (i % 8) & 1u) << 8;
            default:
                return bytes[2 + i];
        }
    }
    // IQ1: whether the weights of entry i are shifted down.
    constexpr uint32_t shift(int i) const {
        if (bytes == nullptr) return 0;
        return type == gguf::Type::IQ1_S ? u16_of(bytes + 34 + i / 4 * 2) >> 15
                                         : bytes[32 + i / 2] >> (4 * (i % 2) + 3) & 1u;
    }
    // IQ2, IQ3: the signs of weights 8 i ... 8 i + 7.
    constexpr uint32_t signs(int i) const {
        if (bytes == nullptr) return 0;
        switch (type) {
            case gguf::Type::IQ2_XXS:
                return eight_signs(u32_of(bytes + 6 + i / 4 * 8) >> (7 * (i % 4)) & 127u);
            case gguf::Type::IQ2_XS:
                return eight_signs(u16_of(bytes + 2 + 2 * i) >> 9);
            case gguf::Type::IQ2_S:
                return bytes[34 + i];
            case gguf::Type::IQ3_XXS:
                return eight_signs(u32_of(bytes + 66 + i / 4 * 4) >> (7 * (i % 4)) & 127u);
            default:
                return bytes[74 + i];
        }
    }
    // s of weights 16 i ... 16 i + 15: the integer scale is 2 s + 1.
    constexpr uint32_t scale(int i) const {
        if (bytes == nullptr) return 0;
        const auto nibble = [](const uint8_t *nibbles, int at) {
            return nibbles[at / 2] >> (4 * (at % 2)) & 15u;
        };
        switch (type) {
            case gguf::Type::IQ1_S:
                return u16_of(bytes + 34 + i / 2 * 2) >> 12 & 7u;
            case gguf::Type::IQ1_M:
                return u16_of(bytes + 48 + i / 4 * 2) >> (3 * (i % 4)) & 7u;
            case gguf::Type::IQ2_XXS:
                return u32_of(bytes + 6 + i / 2 * 8) >> 28;
            case gguf::Type::IQ2_XS:
                return nibble(bytes + 66, i);
            case gguf::Type::IQ2_S:
                return nibble(bytes + 74, i);
            case gguf::Type::IQ3_XXS:
                return u32_of(bytes + 66 + i / 2 * 4) >> 28;
            default:
                return nibble(bytes + 106, i / 2);
        }
    }
    constexpr uint32_t d() const {
        if (bytes == nullptr) return 0;
        if (type != gguf::Type::IQ1_M) return u16_of(bytes);
        const uint8_t *scales = bytes + 48;
        return scales[1] >> 4 | (scales[3] & 0xf0u) | (scales[5] & 0xf0u) << 4 | (scales[7] & 0xf0u) << 8;
    }
};

// The blocks of two rows, selected by a condition instead of an index, so that they stay in registers.
struct BlockPair {
    CodebookBlock even, odd;
    constexpr CodebookBlock of(int i) const { return {even.type, i % 2 == 0 ? even.bytes : odd.bytes}; }
};

// Word `word` of a row's 4-bit scales: one word, or two if the format has groups of 16.
constexpr uint32_t codebook_scales_word(TileFormat format, const CodebookBlock &block, int word) {
    uint32_t bits = 0;
    for (int i = 0; i < 8; ++i)
        bits |= block.scale(has_groups_of_16(format) ? 8 * word + i : 2 * i) << (4 * i);
    return bits;
}

// The number, within the row's block, of the entry for register j = 4 s + a of a chunk. at: which of the row's
// two pairs (IQ3: four lanes) the entry belongs to.
constexpr int entry_of(TileFormat format, int chunk, int j, int at) {
    const int half = 4 * chunk + j / 4 * 2 + j % 4 / 2;  // 16 columns
    return has_quads(format) ? 4 * half + at : 2 * half + at;
}

// A word of the plane "indices" (tiles.h). Byte a belongs to row g if a is even, else to row g + 8.
constexpr uint32_t index_word(TileFormat format, const BlockPair &rows, int chunk, int s, int at) {
    uint32_t bits = 0;
    for (int a = 0; a < 4; ++a)
        bits |= (rows.of(a).index(entry_of(format, chunk, 4 * s + a, at)) & 255u) << (8 * a);
    return bits;
}

constexpr uint32_t upper_word(TileFormat format, const BlockPair &rows, int word, int at) {
    uint32_t bits = 0;
    if (format == TileFormat::IQ1) {
        for (int j = 0; j < 8; ++j) {
            const int entry = entry_of(format, word, j, at);
            bits |= (rows.of(j).index(entry) >> 8 | rows.of(j).shift(entry) << 3) << (4 * j);
        }
        return bits;
    }
    const int each = format == TileFormat::IQ2_S ? 2 : 1, chunks = 4 / each;
    for (int chunk = 0; chunk < chunks; ++chunk)
        for (int j = 0; j < 8; ++j)
            bits |= rows.of(j).index(entry_of(format, chunks * word + chunk, j, at)) >>
                    8 << (each * (8 * chunk + j));
    return bits;
}

// t: the lane's index among the four lanes of its row.
constexpr uint32_t signs_word(TileFormat format, const BlockPair &rows, int chunk, int t) {
    uint32_t bits = 0;
    for (int j = 0; j < 8; ++j) {
        const int half = 4 * chunk + j / 4 * 2 + j % 4 / 2;
        const uint32_t four = rows.of(j).signs(2 * half + t / 2) >> (4 * (t % 2));
        for (int i = 0; i < 4; ++i)
            bits |= (four >> i & 1u) << (has_quads(format) ? 8 * i + j : 16 * (j / 4) + 4 * i + j % 4);
    }
    return bits;
}

}  // namespace runnel::kernels::cuda::repack
