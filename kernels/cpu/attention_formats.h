// Writes cells of K and V into their pages in fewer bits (attention_pages.h reads them).
//
// The formats are those of CacheType (backend.h). In a K page the dimensions of one cell are far apart, so
// each block of 32 dimensions of all 32 cells is stored together: first the 32 scales, then, dimension by
// dimension, the values of the cells (Q4_0: cell i in the low nibble of byte i, cell i + 16 in the high one).
// A V page consists of plain rows of blocks as in gguf/block.h. A value read back is the product of an 11-bit
// scale and an integer of at most 8 bits, or a number of 4 or 8 significant bits: exact in float32, so all
// instruction sets read the same value. Writing is plain C++ on all of them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/backend.h"

namespace runnel::kernels::cpu {
namespace {

constexpr int32_t kFormatBlock = 32;  // dimensions that share a scale

// Always inlined: the linker must not take this function from a file of another instruction set.
[[gnu::flatten]] constexpr size_t row_bytes(CacheType type, int32_t dims) {
    return cache_row_bytes(type, dims);
}

struct PackedBlock {
    uint16_t scale;     // binary16
    int8_t values[32];  // Q8_0: the integers; Q4_0: 0..15
};

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

// Quantizes the n <= 32 values at x; the rest of the block is zeros. A value that is not finite makes the scale NaN.
template <typename L>
inline PackedBlock pack_block(CacheType type, const float *x, int n) {
    float largest = 0, extreme = 0;
    bool finite = true;
    for (int i = 0; i < n; ++i) {
        const float magnitude = std::fabs(x[i]);
        finite = finite && magnitude <= 1e6f;  // beyond the range of a binary16 scale
        if (magnitude > largest) largest = magnitude, extreme = x[i];
    }
    PackedBlock block{};
    const bool nibbles = type == CacheType::Q4_0;
    const float wanted = nibbles ? extreme / -8.0f : largest / 127.0f;
    block.scale = finite ? half_of<L>(wanted) : kNotANumber;
    float scales[L::kWidth];
    L::store(scales, L::broadcast_half(&block.scale));
    const float scale = finite ? scales[0] : 0.0f;
    const float inverse = scale == 0 ? 0.0f : 1.0f / scale;
    const float least = nibbles ? -8.0f : -127.0f, most = nibbles ? 7.0f : 127.0f;
    for (int i = 0; i < 32; ++i) {
        float value = i < n && scale != 0 ? nearest_integer(x[i] * inverse) : 0.0f;
        value = value < least ? least : value > most ? most : value;
        block.values[i] = static_cast<int8_t>(static_cast<int>(value) + (nibbles ? 8 : 0));
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
    const size_t block_bytes = kBlockTokens * row_bytes(type, kFormatBlock);
    for (int32_t d = 0; d < dims; ++d) {
        const size_t at = static_cast<size_t>(d) * kBlockTokens + cell;
        if (type == CacheType::BF16) {
            const uint16_t value = to_bfloat(k[d]);
            store_bytes(page + 2 * at, &value, 2);
        } else if (type == CacheType::FP8) {
            page[at] = static_cast<std::byte>(to_e4m3(k[d]));
        }
    }
    if (type != CacheType::Q8_0 && type != CacheType::Q4_0) return;
    for (int32_t d = 0; d < dims; d += kFormatBlock, page += block_bytes) {
        const int n = dims - d < kFormatBlock ? dims - d : kFormatBlock;
        const PackedBlock block = pack_block<L>(type, k + d, n);
        store_bytes(page + 2 * cell, &block.scale, 2);
        std::byte *values = page + 2 * kBlockTokens;
        for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
            const auto value = static_cast<std::byte>(block.values[i]);
            if (type == CacheType::Q8_0) {
                values[i * kBlockTokens + cell] = value;
                continue;
            }
            std::byte &pair = values[i * 16 + cell % 16];  // the other cell's nibble is kept
            pair = cell < 16 ? (pair & std::byte{0xf0}) | value : (pair & std::byte{0x0f}) | value << 4;
        }
    }
}

// Writes a row of a V page, padded with zeros.
template <typename L>
inline void write_v_row(CacheType type, std::byte *row, const float *v, int32_t dims) {
    const size_t block_bytes = row_bytes(type, kFormatBlock);
    for (int32_t d = 0; d < dims; d += kFormatBlock, row += block_bytes) {
        const int n = dims - d < kFormatBlock ? dims - d : kFormatBlock;
        if (type == CacheType::BF16 || type == CacheType::FP8) {
            for (int i = 0; i < kFormatBlock; ++i) {
                const float x = i < n ? v[d + i] : 0.0f;
                const uint16_t wide = to_bfloat(x);
                if (type == CacheType::BF16)
                    store_bytes(row + 2 * i, &wide, 2);
                else
                    row[i] = static_cast<std::byte>(to_e4m3(x));
            }
            continue;
        }
        const PackedBlock block = pack_block<L>(type, v + d, n);
        store_bytes(row, &block.scale, 2);
        if (type == CacheType::Q8_0) store_bytes(row + 2, block.values, 32);
        for (int i = 0; i < 16 && type == CacheType::Q4_0; ++i)
            row[2 + i] = static_cast<std::byte>(block.values[i] | block.values[i + 16] << 4);
    }
}

}  // namespace
}  // namespace runnel::kernels::cpu
