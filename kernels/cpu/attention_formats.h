// Writes cells of K and V into their pages in fewer bits (attention_pages.h reads them).
//
// The formats are those of CacheType (cache_type.h). In a K page the dimensions of one cell are far apart, so
// each block of 32 dimensions of all 32 cells is stored together: first the 32 scales (then the 32 least values), then,
// dimension by dimension, the levels of the cells (nibbles: cell i in the low nibble of byte i, cell i + 16 in the
// high one), then, dimension by dimension, their fifth bits (cell i in bit i of 32).
// A V page consists of plain rows of blocks as in gguf/block.h. A value read back is a number, or the product of an
// 11-bit scale and an integer of at most 8 bits: exact in float32. With a least value, their sum is rounded once. So all
// instruction sets read the same value. Writing is plain C++ on all of them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gguf/block.h"
#include "kernels/backend.h"

namespace runnel::kernels::cpu {
namespace {

constexpr int32_t kFormatBlock = 32;  // dimensions that share a scale

// Always inlined: the linker must not take this function from a file of another instruction set.
[[gnu::flatten]] constexpr size_t row_bytes(CacheType type, int32_t dims) {
    return cache_row_bytes(type, dims);
}

struct PackedBlock {
    uint16_t scale, least;  // binary16
    int8_t levels[32];      // Q8_0: the integers; others: 0..15 or 0..31
};

// How the levels of a type follow from values (cache_type.h).
struct LevelRange {
    float least, most;  // level 0 of nibbles is `least`
    bool minimum, fifth_bit, table;
};
[[gnu::flatten]] constexpr LevelRange level_range(CacheType type) {
    const bool fifth = has_fifth_bit(type), minimum = has_minimum(type);
    if (type == CacheType::Q8_0) return {-127, 127, false, false, false};
    if (type == CacheType::IQ4_NL) return {-127, 113, false, false, true};
    if (minimum) return {0, fifth ? 31.0f : 15.0f, true, fifth, false};
    return {fifth ? -16.0f : -8.0f, fifth ? 15.0f : 7.0f, false, fifth, false};
}

constexpr uint16_t kNotANumber = 0x7e00;

inline float nearest_integer(float x) {  // |x| < 2^22
    return (x + 0x1.8p23f) - 0x1.8p23f;
}

// A template on the lane type, because the linker may merge inline functions of different instruction sets.
template <typename L>
inline uint16_t half_of(float x) {
    uint16_t half[L::kWidth];
    L::store_half(half, L::set(x));
    return half[0];
}

template <typename L>
inline float float_of_half(uint16_t half) {
    float lanes[L::kWidth];
    L::store(lanes, L::broadcast_half(&half));
    return lanes[0];
}

// gguf::kIQ4Values, in a copy of every file of an instruction set.
struct TableValues {
    int8_t of[16];
};
constexpr TableValues kTable = [] {
    TableValues values{};
    for (int i = 0; i < 16; ++i) values.of[i] = gguf::kIQ4Values[i];
    return values;
}();

// The index of the value of the table nearest to y.
inline int nearest_table_index(float y) {
    int index = 0;
    for (int i = 0; i < 15; ++i)
        index += y >= 0.5f * static_cast<float>(kTable.of[i] + kTable.of[i + 1]) ? 1 : 0;
    return index;
}

// The scale for which the table's values nearest to x / first are nearest to x, with errors weighted by x^2. The sums
// are those of a warp: halves are added until one number remains.
inline float table_scale(const float *x, float first) {
    float products[32], squares[32];
    const float inverse = first == 0 ? 0.0f : 1.0f / first;
    for (int i = 0; i < 32; ++i) {
        const float v = kTable.of[nearest_table_index(x[i] * inverse)], weighted = x[i] * x[i] * v;
        products[i] = weighted * x[i];
        squares[i] = weighted * v;
    }
    for (int half = 16; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) {
            products[i] += products[i + half];
            squares[i] += squares[i + half];
        }
    return squares[0] > 0 ? products[0] / squares[0] : first;
}

// Quantizes the n <= 32 values at x; the rest of the block is zeros, or the least value if the type has one. A value that
// is not finite makes the scale NaN.
template <typename L>
inline PackedBlock pack_block(CacheType type, const float *given, int n) {
    const LevelRange range = level_range(type);
    float x[32], largest = 0, extreme = 0, low = given[0], high = given[0];
    bool finite = true;
    for (int i = 0; i < 32; ++i) x[i] = i < n ? given[i] : 0.0f;
    for (int i = 0; i < n; ++i) {
        const float magnitude = std::fabs(x[i]);
        finite = finite && magnitude <= 1e6f;  // beyond the range of a binary16 scale
        if (magnitude > largest) largest = magnitude, extreme = x[i];
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    PackedBlock block{};
    float least = 0;
    if (range.minimum) {
        block.least = half_of<L>(low < -65504.0f ? -65504.0f : low > 65504.0f ? 65504.0f : low);
        least = float_of_half<L>(block.least);
    }
    float wanted = type == CacheType::Q8_0 ? largest / 127.0f
                   : range.minimum         ? (high - least) / range.most
                                           : extreme / range.least;
    if (range.table) wanted = table_scale(x, wanted);
    block.scale = finite ? half_of<L>(wanted) : kNotANumber;
    const float scale = finite ? float_of_half<L>(block.scale) : 0.0f;
    const float inverse = scale == 0 ? 0.0f : 1.0f / scale;
    for (int i = 0; i < 32; ++i) {
        const float exact = i < n && scale != 0 ? (x[i] - least) * inverse : 0.0f;
        if (range.table) {
            block.levels[i] = static_cast<int8_t>(nearest_table_index(exact));
            continue;
        }
        float value = nearest_integer(exact);
        value = value < range.least ? range.least : value > range.most ? range.most : value;
        const float bias = type == CacheType::Q8_0 ? 0.0f : range.least;
        block.levels[i] = static_cast<int8_t>(static_cast<int>(value - bias));
    }
    return block;
}

inline uint16_t to_bfloat(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// OCP e4m3 ("OFP8", 2023): rounds to nearest even; above 448 the largest number; 0x7f for values that are not finite.
inline uint8_t to_e4m3(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const uint8_t sign = static_cast<uint8_t>(bits >> 24 & 0x80u);
    bits &= 0x7fffffffu;
    if (bits >= 0x7f800000u) return sign | 0x7fu;
    if (bits < 0x3c800000u)  // below 2^-6: steps of 2^-9
        return sign | static_cast<uint8_t>(nearest_integer(std::fabs(x) * 512.0f));
    const uint32_t rounded = ((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - (120u << 3);
    return sign | static_cast<uint8_t>(rounded > 0x7eu ? 0x7eu : rounded);
}

inline void store_bytes(std::byte *at, const void *value, size_t bytes) {
    std::memcpy(at, value, bytes);
}

// Writes a cell of a K page. (F16 cells are written by the lanes: attention_body.h.)
template <typename L>
inline void write_k_cell(CacheType type, std::byte *page, size_t cell, const float *k, int32_t dims) {
    for (int32_t d = 0; d < dims; ++d) {
        const size_t at = static_cast<size_t>(d) * kBlockTokens + cell;
        if (type == CacheType::F32) {
            store_bytes(page + 4 * at, k + d, 4);
        } else if (type == CacheType::BF16) {
            const uint16_t value = to_bfloat(k[d]);
            store_bytes(page + 2 * at, &value, 2);
        } else if (type == CacheType::FP8) {
            page[at] = static_cast<std::byte>(to_e4m3(k[d]));
        }
    }
    if (type == CacheType::F32 || type == CacheType::BF16 || type == CacheType::FP8) return;
    const LevelRange range = level_range(type);
    const size_t block_bytes = kBlockTokens * row_bytes(type, kFormatBlock);
    for (int32_t d = 0; d < dims; d += kFormatBlock, page += block_bytes) {
        const int n = dims - d < kFormatBlock ? dims - d : kFormatBlock;
        const PackedBlock block = pack_block<L>(type, k + d, n);
        store_bytes(page + 2 * cell, &block.scale, 2);
        std::byte *values = page + 2 * kBlockTokens;
        if (range.minimum) {
            store_bytes(values + 2 * cell, &block.least, 2);
            values += 2 * kBlockTokens;
        }
        std::byte *const fifth_bits = values + kFormatBlock * 16 + cell / 8;
        for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
            const auto level = static_cast<std::byte>(block.levels[i]);
            if (type == CacheType::Q8_0) {
                values[i * kBlockTokens + cell] = level;
                continue;
            }
            std::byte &pair = values[i * 16 + cell % 16];  // the other cell's nibble is kept
            const std::byte nibble = level & std::byte{0x0f};
            pair = cell < 16 ? (pair & std::byte{0xf0}) | nibble : (pair & std::byte{0x0f}) | nibble << 4;
            if (!range.fifth_bit) continue;
            const std::byte bit = std::byte{1} << cell % 8;  // the other cells' bits are kept
            std::byte &bits = fifth_bits[i * 4];
            bits = (level & std::byte{0x10}) != std::byte{0} ? bits | bit : bits & ~bit;
        }
    }
}

// Writes a block of a row of a V page, as in gguf/block.h.
inline void store_block(CacheType type, std::byte *to, const PackedBlock &block) {
    const LevelRange range = level_range(type);
    store_bytes(to, &block.scale, 2);
    to += 2;
    if (type == CacheType::Q8_0) return store_bytes(to, block.levels, 32);
    if (range.minimum) {
        store_bytes(to, &block.least, 2);
        to += 2;
    }
    if (range.fifth_bit) {
        uint32_t bits = 0;
        for (int i = 0; i < 32; ++i) bits |= static_cast<uint32_t>(block.levels[i] >> 4) << i;
        store_bytes(to, &bits, 4);
        to += 4;
    }
    for (int i = 0; i < 16; ++i)
        to[i] = static_cast<std::byte>((block.levels[i] & 15) | (block.levels[i + 16] & 15) << 4);
}

// Writes a row of a V page, padded with zeros.
template <typename L>
inline void write_v_row(CacheType type, std::byte *row, const float *v, int32_t dims) {
    const size_t block_bytes = row_bytes(type, kFormatBlock);
    for (int32_t d = 0; d < dims; d += kFormatBlock, row += block_bytes) {
        const int n = dims - d < kFormatBlock ? dims - d : kFormatBlock;
        if (type == CacheType::F32 || type == CacheType::BF16 || type == CacheType::FP8) {
            for (int i = 0; i < kFormatBlock; ++i) {
                const float x = i < n ? v[d + i] : 0.0f;
                const uint16_t wide = to_bfloat(x);
                if (type == CacheType::F32)
                    store_bytes(row + 4 * i, &x, 4);
                else if (type == CacheType::BF16)
                    store_bytes(row + 2 * i, &wide, 2);
                else
                    row[i] = static_cast<std::byte>(to_e4m3(x));
            }
            continue;
        }
        store_block(type, row, pack_block<L>(type, v + d, n));
    }
}

}  // namespace
}  // namespace runnel::kernels::cpu
