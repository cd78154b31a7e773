// Converts the bytes of a GGUF matrix to tiles (tiles.h), one 32-bit word of the result at a time. Each word
// depends only on its position, so the device can compute all words in parallel.
//
// Everything is constexpr: nvcc compiles it for the device (--expt-relaxed-constexpr), and tests run the same
// code on the host. It reads the file's bytes one by one, because they are not aligned.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gguf/nvfp4.h"
#include "kernels/cuda/linear/tiles.h"
#include "kernels/cuda/upload/repack_codebook.h"

namespace runnel::kernels::cuda {

// Rows in the layout of the file. Rows beyond `rows` and columns beyond `cols` read as zero.
struct RawRows {
    gguf::Type type;
    const uint8_t *bytes;
    int64_t row_bytes;
    int64_t rows, cols;
    const uint8_t *exponents = nullptr;  // BF16: row_exponent() of every row
};

namespace repack {

// The two bits of weight i: 32 bytes hold 128 weights, and a byte holds weights that are 32 apart.
constexpr uint32_t two_bits(const uint8_t *qs, int i) {
    return qs[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3u;
}

// Trit n of a byte, 0..2 (gguf/dequantize.cpp explains the encoding).
constexpr uint32_t trit_of(uint8_t byte, int n) {
    uint32_t fraction = byte;
    for (int k = 0; k < n; ++k) fraction = fraction * 3 & 255u;
    return fraction * 3 >> 8;
}

// Trit of weight i of a TQ1_0 block.
constexpr uint32_t trit(const uint8_t *block, int i) {
    if (i < 160) return trit_of(block[i % 32], i / 32);
    if (i < 240) return trit_of(block[32 + i % 16], (i - 160) / 16);
    return trit_of(block[48 + i % 4], (i - 240) / 4);
}

// Trit of weight i of a PTQ1_0 block.
constexpr uint32_t trit_of_128(const uint8_t *block, int i) {
    if (i < 80) return trit_of(block[i % 16], i / 16);
    if (i < 120) return trit_of(block[16 + i % 8], (i - 80) / 8);
    return trit_of(block[24 + i % 2], (i - 120) / 2);
}

constexpr int block_cols(gguf::Type type) {
    if (type == gguf::Type::Q1_0 || type == gguf::Type::PQ2_0 || type == gguf::Type::PTQ1_0) return 128;
    if (type == gguf::Type::Q2_0) return 64;
    switch (tile_format(type)) {
        case TileFormat::F32:
        case TileFormat::F16:
        case TileFormat::BF16:
            return 1;
        case TileFormat::Q4_0:
        case TileFormat::Q4_1:
        case TileFormat::Q5_0:
        case TileFormat::Q5_1:
        case TileFormat::Q8_0:
        case TileFormat::IQ4_NL:
        case TileFormat::MXFP4:
            return 32;
        case TileFormat::NVFP4:
            return 64;
        default:
            return 256;
    }
}

// The nibble of weight i of a block of 32; weight i + 16 is in the high nibble of weight i's byte.
constexpr uint32_t nibble32(const uint8_t *qs, int i) {
    return qs[i % 16] >> (i < 16 ? 0 : 4) & 15u;
}

// The code of weight i of a block.
constexpr uint32_t code(gguf::Type type, const uint8_t *block, int i) {
    switch (type) {
        case gguf::Type::Q4_0:
        case gguf::Type::IQ4_NL:
            return nibble32(block + 2, i);
        case gguf::Type::Q1_0:
            return 7 + 2 * (block[2 + i / 8] >> (i % 8) & 1u);
        case gguf::Type::Q2_0:
        case gguf::Type::PQ2_0:
            return 7 + (block[2 + i / 4] >> (i % 4 * 2) & 3u);
        case gguf::Type::PTQ1_0:
            return 7 + trit_of_128(block, i);
        case gguf::Type::Q4_1:
            return nibble32(block + 4, i);
        case gguf::Type::MXFP4:
            return nibble32(block + 1, i);
        case gguf::Type::NVFP4:
            return block[4 + i / 16 * 8 + i % 8] >> (i / 8 % 2 * 4) & 15u;
        case gguf::Type::Q5_0:
            return nibble32(block + 6, i) | (block[2 + i / 8] >> (i % 8) & 1u) << 4;
        case gguf::Type::Q5_1:
            return nibble32(block + 8, i) | (block[4 + i / 8] >> (i % 8) & 1u) << 4;
        case gguf::Type::Q8_0:
            return block[2 + i];
        case gguf::Type::Q2_K:
            return two_bits(block + 16, i);
        case gguf::Type::Q3_K:
            return two_bits(block + 32, i) | (block[i % 32] >> (i / 32) & 1u) << 2;
        case gguf::Type::Q4_K:
            return block[16 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15u;
        case gguf::Type::Q5_K:
            return (block[48 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15u) |
                   (block[16 + i % 32] >> (i / 32) & 1u) << 4;
        case gguf::Type::Q6_K:
            return (block[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15u) | two_bits(block + 128, i) << 4;
        case gguf::Type::IQ4_XS:
            return nibble32(block + 8 + i / 32 * 16, i % 32);
        case gguf::Type::TQ1_0:
            return trit(block, i);
        case gguf::Type::TQ2_0:
            return two_bits(block, i);
        default:
            return 0;
    }
}

constexpr int bytes_of_block(gguf::Type type) {
    switch (type) {
        case gguf::Type::Q4_0:
        case gguf::Type::IQ4_NL:
            return sizeof(gguf::BlockQ4_0);
        case gguf::Type::Q1_0:
            return sizeof(gguf::BlockQ1_0);
        case gguf::Type::Q2_0:
            return sizeof(gguf::BlockQ2_0);
        case gguf::Type::PQ2_0:
            return sizeof(gguf::BlockPQ2_0);
        case gguf::Type::PTQ1_0:
            return sizeof(gguf::BlockPTQ1_0);
        case gguf::Type::Q4_1:
            return sizeof(gguf::BlockQ4_1);
        case gguf::Type::Q5_0:
            return sizeof(gguf::BlockQ5_0);
        case gguf::Type::Q5_1:
            return sizeof(gguf::BlockQ5_1);
        case gguf::Type::Q8_0:
            return sizeof(gguf::BlockQ8_0);
        case gguf::Type::MXFP4:
            return sizeof(gguf::BlockMXFP4);
        case gguf::Type::NVFP4:
            return sizeof(gguf::BlockNVFP4);
        case gguf::Type::IQ1_S:
            return sizeof(gguf::BlockIQ1_S);
        case gguf::Type::IQ1_M:
            return sizeof(gguf::BlockIQ1_M);
        case gguf::Type::IQ2_XXS:
            return sizeof(gguf::BlockIQ2_XXS);
        case gguf::Type::IQ2_XS:
            return sizeof(gguf::BlockIQ2_XS);
        case gguf::Type::IQ2_S:
            return sizeof(gguf::BlockIQ2_S);
        case gguf::Type::IQ3_XXS:
            return sizeof(gguf::BlockIQ3_XXS);
        case gguf::Type::IQ3_S:
            return sizeof(gguf::BlockIQ3_S);
        case gguf::Type::Q2_K:
            return sizeof(gguf::BlockQ2_K);
        case gguf::Type::Q3_K:
            return sizeof(gguf::BlockQ3_K);
        case gguf::Type::Q4_K:
            return sizeof(gguf::BlockQ4_K);
        case gguf::Type::Q5_K:
            return sizeof(gguf::BlockQ5_K);
        case gguf::Type::Q6_K:
            return sizeof(gguf::BlockQ6_K);
        case gguf::Type::IQ4_XS:
            return sizeof(gguf::BlockIQ4_XS);
        case gguf::Type::TQ1_0:
            return sizeof(gguf::BlockTQ1_0);
        case gguf::Type::TQ2_0:
            return sizeof(gguf::BlockTQ2_0);
        case gguf::Type::F32:
            return 4;
        default:
            return 2;
    }
}

// The block that holds column `col` of a row, or null in the padding.
constexpr const uint8_t *block_at(const RawRows &raw, int64_t row, int64_t col) {
    if (row >= raw.rows || col >= raw.cols) return nullptr;
    return raw.bytes + row * raw.row_bytes + col / block_cols(raw.type) * bytes_of_block(raw.type);
}

constexpr uint32_t code_at(const RawRows &raw, int64_t row, int64_t col) {
    const uint8_t *block = block_at(raw, row, col);
    return block == nullptr ? 0 : code(raw.type, block, static_cast<int>(col % block_cols(raw.type)));
}

// Bytes [at, at + 4) of the block that holds (row, col), as a little-endian word; 0 in the padding.
constexpr uint32_t block_word(const RawRows &raw, int64_t row, int64_t col, int at) {
    const uint8_t *block = block_at(raw, row, col);
    return block == nullptr ? 0 : u32_of(block + at);
}
constexpr uint32_t block_half(const RawRows &raw, int64_t row, int64_t col, int at) {
    const uint8_t *block = block_at(raw, row, col);
    return block == nullptr ? 0 : u16_of(block + at);
}

// --- main planes: `row0`, `col0`: the first of the block; `word`: index in the plane -----------------------

constexpr uint32_t nibbles_word(const RawRows &raw, int64_t row0, int64_t col0, int word) {
    const int a = word % 4, lane = word / 4 % 32, chunk = word / 128, g = lane / 4, t = lane % 4;
    const int64_t row = row0 + g + 8 * (a & 1), col = col0 + 64 * chunk + 16 * (a >> 1) + 4 * t;
    uint32_t bits = 0;
    for (int i = 0; i < 4; ++i)
        bits |= ((code_at(raw, row, col + i) & 15u) | (code_at(raw, row, col + 32 + i) & 15u) << 4)
                << (8 * i);
    return bits;
}

constexpr uint32_t bytes_word(const RawRows &raw, int64_t row0, int64_t col0, int word) {
    const int a = word % 4, lane = word / 4 % 32, group = word / 128, g = lane / 4, t = lane % 4;
    const int64_t row = row0 + g + 8 * (a & 1), col = col0 + 32 * group + 16 * (a >> 1) + 4 * t;
    uint32_t bits = 0;
    for (int i = 0; i < 4; ++i) bits |= code_at(raw, row, col + i) << (8 * i);
    return bits;
}

constexpr uint32_t pairs_word(const RawRows &raw, int64_t row0, int64_t col0, int word) {
    const int r = word % 2, w = word / 2 % 2, lane = word / 4 % 32, half = word / 128;
    const int64_t row = row0 + lane / 4 + 8 * r, col = col0 + 16 * (8 * half + 4 * w) + 4 * (lane % 4);
    uint32_t bits = 0;
    for (int j = 0; j < 4; ++j)
        for (int i = 0; i < 4; ++i) bits |= (code_at(raw, row, col + 16 * j + i) & 3u) << (8 * i + 2 * j);
    return bits;
}

// --- BF16 as binary16 with an exponent per row (tiles.h) ---

constexpr uint32_t kLeastExponent = 16;

// The byte e of a row (tiles.h), computed only from its weights in columns first, first + step, ...
constexpr uint32_t largest_exponent(const RawRows &raw, int64_t row, int64_t first, int64_t step) {
    uint32_t largest = kLeastExponent;
    for (int64_t col = first; col < raw.cols; col += step) {
        const uint32_t exponent = block_half(raw, row, col, 0) >> 7 & 255u;
        if (exponent < 255 && exponent > largest) largest = exponent;
    }
    return largest;
}

// The bits of a bf16 number times 2^(142 - e), to nearest even. Results below 2^-126 become 0.
constexpr uint32_t scaled_half(uint32_t bits, uint32_t e) {
    const uint32_t sign = bits & 0x8000u, exponent = bits >> 7 & 255u, mantissa = (bits & 127u) << 3;
    if (exponent == 255) return sign | 0x7c00u | mantissa;
    if (exponent == 0) return sign;
    const int own = static_cast<int>(exponent) - static_cast<int>(e) + 30;
    if (own >= 1) return sign | static_cast<uint32_t>(own) << 10 | mantissa;
    if (own < -11) return sign;
    const int shift = 1 - own;
    const uint32_t whole = mantissa | 0x400u, kept = whole >> shift, rest = whole & ((1u << shift) - 1u),
                   half = 1u << (shift - 1);
    return sign | (kept + (rest > half || (rest == half && kept % 2 == 1) ? 1 : 0));
}

constexpr uint32_t row_half(const RawRows &raw, int64_t row, int64_t col) {
    const uint32_t bits = block_half(raw, row, col, 0);
    if (raw.type != gguf::Type::BF16 || row >= raw.rows) return bits;
    return scaled_half(bits, raw.exponents[row]);
}

constexpr uint32_t halves_word(const RawRows &raw, int64_t row0, int64_t col0, int word) {
    const int a = word % 4, lane = word / 4 % 32, step = word / 128;
    const int64_t row = row0 + lane / 4 + 8 * (a & 1), col = col0 + 16 * step + 4 * (lane % 4) + 2 * (a >> 1);
    return row_half(raw, row, col) | row_half(raw, row, col + 1) << 16;
}

// uint8 e[8 pairs][4]; kLeastExponent in the padding.
constexpr uint32_t row_exponents_word(const RawRows &raw, int64_t row0, int word) {
    uint32_t bits = 0;
    for (int i = 0; i < 2; ++i) {
        const int64_t row = row0 + word + 8 * i;
        bits |= (row < raw.rows ? raw.exponents[row] : kLeastExponent) << (8 * i);
    }
    return bits;
}

constexpr uint32_t floats_word(const RawRows &raw, int64_t row0, int64_t col0, int word) {
    const int i = word % 4, lane = word / 4 % 32, r = word / 128 % 2, step = word / 256;
    return block_word(raw, row0 + lane / 4 + 8 * r, col0 + 16 * step + 4 * (lane % 4) + i, 0);
}

// --- side planes -------------------------------------------------------------------------------------------

// f16 [16 rows][8 groups of 32]: the two bytes at `at` of each block of 32 weights.
constexpr uint32_t group_scales_word(const RawRows &raw, int64_t row0, int64_t col0, int word, int at) {
    const int64_t row = row0 + word / 4, col = col0 + 64 * (word % 4);
    return block_half(raw, row, col, at) | block_half(raw, row, col + 32, at) << 16;
}

// uint8 [16 rows][8 groups of 32]: the first byte of each block of 32 weights.
constexpr uint32_t exponents_word(const RawRows &raw, int64_t row0, int64_t col0, int word) {
    uint32_t bits = 0;
    for (int i = 0; i < 4; ++i) {
        const uint8_t *block = block_at(raw, row0 + word / 2, col0 + 128 * (word % 2) + 32 * i);
        if (block != nullptr) bits |= static_cast<uint32_t>(block[0]) << (8 * i);
    }
    return bits;
}

// f16 [8 pairs][2]: the two bytes at `at` of the super-blocks of rows g and g + 8.
constexpr uint32_t pair_word(const RawRows &raw, int64_t row0, int64_t col0, int word, int at) {
    return block_half(raw, row0 + word, col0, at) | block_half(raw, row0 + word + 8, col0, at) << 16;
}

constexpr uint32_t bit4_word(const RawRows &raw, int64_t row0, int64_t col0, int word) {
    const int chunk = word % 4, lane = word / 4, g = lane / 4, t = lane % 4;
    uint32_t bits = 0;
    for (int s = 0; s < 2; ++s)
        for (int a = 0; a < 4; ++a)
            for (int i = 0; i < 4; ++i)
                bits |= (code_at(raw, row0 + g + 8 * (a & 1),
                                 col0 + 64 * chunk + 32 * s + 16 * (a >> 1) + 4 * t + i) >>
                             4 &
                         1u)
                        << (8 * i + 4 * s + a);
    return bits;
}

constexpr uint32_t bits45_word(const RawRows &raw, int64_t row0, int64_t col0, int word) {
    const int s = word % 2, lane = word / 4 % 32, g = lane / 4, t = lane % 4;
    const int chunk = word / 128 * 2 + word / 2 % 2;
    uint32_t bits = 0;
    for (int a = 0; a < 4; ++a)
        for (int i = 0; i < 4; ++i)
            bits |= (code_at(raw, row0 + g + 8 * (a & 1),
                             col0 + 64 * chunk + 32 * s + 16 * (a >> 1) + 4 * t + i) >>
                     4)
                    << (8 * i + 2 * a);
    return bits;
}

constexpr uint32_t bit2_word(const RawRows &raw, int64_t row0, int64_t col0, int word) {
    const int r = word % 2, h = word / 2 % 2, lane = word / 4;
    uint32_t bits = 0;
    for (int j = 0; j < 8; ++j)
        for (int i = 0; i < 4; ++i)
            bits |= (code_at(raw, row0 + lane / 4 + 8 * r, col0 + 16 * (8 * h + j) + 4 * (lane % 4) + i) >> 2)
                    << (8 * i + j);
    return bits;
}

constexpr uint32_t q2_side_word(const RawRows &raw, int64_t row0, int64_t col0, int word) {
    const bool ternary = raw.type != gguf::Type::Q2_K;
    if (word < 64) {
        const int64_t row = row0 + word / 4;
        if (ternary) return block_at(raw, row, col0) == nullptr ? 0 : 0x11111111u;
        return block_word(raw, row, col0, 4 * (word % 4));
    }
    const int64_t row = row0 + (word - 64) / 2 + 8 * (word % 2);
    if (!ternary) return block_word(raw, row, col0, 80);
    const uint32_t d = block_half(raw, row, col0, raw.type == gguf::Type::TQ1_0 ? 52 : 64);
    return d | d << 16;
}

constexpr uint32_t q3_side_word(const RawRows &raw, int64_t row0, int64_t col0, int word) {
    if (word < 48) return block_word(raw, row0 + word / 6 + 8 * (word / 3 % 2), col0, 96 + 4 * (word % 3));
    if (word < 56) return pair_word(raw, row0, col0, word - 48, 108);
    return bit2_word(raw, row0, col0, word - 56);
}

constexpr uint32_t q6_side_word(const RawRows &raw, int64_t row0, int64_t col0, int word) {
    if (word < 64) return block_word(raw, row0 + word / 4, col0, 192 + 4 * (word % 4));
    if (word < 72) return pair_word(raw, row0, col0, word - 64, 208);
    return bits45_word(raw, row0, col0, word - 72);
}

constexpr uint32_t iq4_xs_side_word(const RawRows &raw, int64_t row0, int64_t col0, int word) {
    const int g = word / 4, field = word % 4;
    if (field < 2) return block_word(raw, row0 + g + 8 * field, col0, 4);
    return pair_word(raw, row0, col0, g, field == 2 ? 2 : 0);
}

// uint8 [16 rows][16 groups of 16]: the first four bytes of each block of 64 weights. The file's 0x7f means
// 0 and becomes 0. Bit 7 is ignored and cleared, so a 0x7f in a tile comes from 0xff in the file.
constexpr uint32_t nvfp4_side_word(const RawRows &raw, int64_t row0, int64_t col0, int word) {
    const uint8_t *block = block_at(raw, row0 + word / 4, col0 + 64 * (word % 4));
    uint32_t bits = 0;
    for (int i = 0; block != nullptr && i < 4; ++i)
        bits |= (block[i] == 0x7f ? 0u : block[i] & 0x7fu) << (8 * i);
    return bits;
}

constexpr CodebookBlock codebook_block(const RawRows &raw, int64_t row, int64_t col0) {
    return {raw.type, block_at(raw, row, col0)};
}

constexpr uint32_t codebook_side_word(const RawRows &raw, int64_t row0, int64_t col0, int word) {
    const TileFormat format = tile_format(raw.type);
    const TileLayout layout = tile_layout(format);
    const int at = 4 * word;
    if (at < layout.scales2) {
        const int per_row = has_groups_of_16(format) ? 2 : 1, row = word / per_row;  // 0, 8, 1, 9, ...
        return codebook_scales_word(format, codebook_block(raw, row0 + row / 2 + 8 * (row % 2), col0),
                                    word % per_row);
    }
    const bool signs = layout.signs != 0 && at >= layout.signs;
    const int words = signs || format == TileFormat::IQ1 ? 4 : format == TileFormat::IQ2_S ? 2 : 1;
    const int owners = signs || has_quads(format) ? 4 : 2;  // pairs or lanes per row
    const int within = (at - (signs ? layout.signs : layout.high)) / 4, owner = within / words;
    const bool d = at < layout.scales2 + 32;
    const int g = d ? (at - layout.scales2) / 4 : owner / owners;
    const BlockPair rows{codebook_block(raw, row0 + g, col0), codebook_block(raw, row0 + g + 8, col0)};
    if (d) return rows.even.d() | rows.odd.d() << 16;
    return signs ? signs_word(format, rows, within % words, owner % owners)
                 : upper_word(format, rows, within % words, owner % owners);
}

constexpr uint32_t codebook_main_word(const RawRows &raw, int64_t row0, int64_t col0, int word) {
    const TileFormat format = tile_format(raw.type);
    const int words = tile_layout(format).chunk / 4, owners = has_quads(format) ? 4 : 2;
    const int owner = word % words / 2, g = owner / owners;
    const BlockPair rows{codebook_block(raw, row0 + g, col0), codebook_block(raw, row0 + g + 8, col0)};
    return index_word(format, rows, word / words, word % 2, owner % owners);
}

constexpr uint32_t side_word(const RawRows &raw, int64_t row0, int64_t col0, int word) {
    if (has_codebook(tile_format(raw.type))) return codebook_side_word(raw, row0, col0, word);
    switch (tile_format(raw.type)) {
        case TileFormat::BF16:
            return row_exponents_word(raw, row0, word);
        case TileFormat::NVFP4:
            return nvfp4_side_word(raw, row0, col0, word);
        case TileFormat::MXFP4:
            return exponents_word(raw, row0, col0, word);
        case TileFormat::Q2_K:
            return q2_side_word(raw, row0, col0, word);
        case TileFormat::Q3_K:
            return q3_side_word(raw, row0, col0, word);
        case TileFormat::Q4_K:
            return block_word(raw, row0 + word / 4, col0, 4 * (word % 4));
        case TileFormat::Q5_K:
            return word < 64 ? block_word(raw, row0 + word / 4, col0, 4 * (word % 4))
                             : bit4_word(raw, row0, col0, word - 64);
        case TileFormat::Q6_K:
            return q6_side_word(raw, row0, col0, word);
        case TileFormat::IQ4_XS:
            return iq4_xs_side_word(raw, row0, col0, word);
        case TileFormat::Q5_0:
            return word < 64 ? group_scales_word(raw, row0, col0, word, 0)
                             : bit4_word(raw, row0, col0, word - 64);
        case TileFormat::Q4_1:
        case TileFormat::Q5_1:
            return word < 128 ? group_scales_word(raw, row0, col0, word % 64, word < 64 ? 0 : 2)
                              : bit4_word(raw, row0, col0, word - 128);
        default:
            return group_scales_word(raw, row0, col0, word, raw.type == gguf::Type::PTQ1_0 ? 26 : 0);
    }
}

constexpr uint32_t main_word(const RawRows &raw, int64_t row0, int64_t col0, int word) {
    if (has_codebook(tile_format(raw.type))) return codebook_main_word(raw, row0, col0, word);
    switch (tile_format(raw.type)) {
        case TileFormat::F32:
            return floats_word(raw, row0, col0, word);
        case TileFormat::F16:
        case TileFormat::BF16:
            return halves_word(raw, row0, col0, word);
        case TileFormat::Q8_0:
            return bytes_word(raw, row0, col0, word);
        case TileFormat::Q2_K:
        case TileFormat::Q3_K:
            return pairs_word(raw, row0, col0, word);
        default:
            return nibbles_word(raw, row0, col0, word);
    }
}

}  // namespace repack

// The byte e of a BF16 row (tiles.h).
constexpr uint8_t row_exponent(const RawRows &raw, int64_t row) {
    return static_cast<uint8_t>(repack::largest_exponent(raw, row, 0, 1));
}

// Word `word` (of row_tile_bytes / 4) of row tile `row_tile`.
constexpr uint32_t tile_word(const RawRows &raw, int64_t row_tile, int64_t word) {
    const TileFormat format = tile_format(raw.type);
    const TileLayout layout = tile_layout(format);
    const int64_t block = word * 4 / block_bytes(format);
    const int within = static_cast<int>(word - block * block_bytes(format) / 4);
    const int64_t row0 = row_tile * kTileRows, col0 = block * kTileCols;
    if (within < layout.side / 4) return repack::side_word(raw, row0, col0, within);
    return repack::main_word(raw, row0, col0, within - layout.side / 4);
}

}  // namespace runnel::kernels::cuda
