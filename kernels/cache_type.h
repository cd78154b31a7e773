// The types in which a device's cache keeps keys and values.
//
// F32, F16 and BF16 are numbers of 32 and 16 bits, FP8 is OCP e4m3. In the others, 32 dimensions of a cell form a
// block with a binary16 scale d and a level q per dimension, as in gguf/block.h:
//   Q8_0          d q          q = -127..127
//   Q5_0, Q4_0    d q          q = -16..15, -8..7; d has the sign that makes the value largest in magnitude d min(q)
//   Q5_1, Q4_1    d q + m      q = 0..31, 0..15; m: binary16, the block's least value
//   IQ4_NL        d T[q]       q = 0..15; T: kIQ4Values
// A value gets the level nearest to it, given d (and m) as they are stored.
#pragma once

#include <cstddef>
#include <cstdint>

namespace runnel::kernels {

enum class CacheType { F16, BF16, Q8_0, Q4_0, FP8, F32, Q4_1, Q5_0, Q5_1, IQ4_NL };

// Whether the low four bits of the levels are stored as nibbles.
constexpr bool has_nibbles(CacheType type) {
    return type == CacheType::Q4_0 || type == CacheType::Q4_1 || type == CacheType::Q5_0 ||
           type == CacheType::Q5_1 || type == CacheType::IQ4_NL;
}
// Whether blocks of 32 dimensions have a scale.
constexpr bool has_scales(CacheType type) {
    return type == CacheType::Q8_0 || has_nibbles(type);
}
// Whether the levels have a fifth bit.
constexpr bool has_fifth_bit(CacheType type) {
    return type == CacheType::Q5_0 || type == CacheType::Q5_1;
}
// Whether blocks also have a least value m.
constexpr bool has_minimum(CacheType type) {
    return type == CacheType::Q4_1 || type == CacheType::Q5_1;
}

// Bytes of `dims` values of one cell. All types but F16 are padded to a multiple of 32 dimensions.
constexpr size_t cache_row_bytes(CacheType type, int32_t dims) {
    const auto n = static_cast<size_t>(dims), blocks = (n + 31) / 32;
    switch (type) {
        case CacheType::F16:
            return n * 2;
        case CacheType::BF16:
            return blocks * 64;
        case CacheType::F32:
            return blocks * 128;
        case CacheType::Q8_0:
            return blocks * 34;
        case CacheType::Q5_1:
            return blocks * 24;
        case CacheType::Q5_0:
            return blocks * 22;
        case CacheType::Q4_1:
            return blocks * 20;
        case CacheType::Q4_0:
        case CacheType::IQ4_NL:
            return blocks * 18;
        case CacheType::FP8:
            return blocks * 32;
    }
    return 0;
}

// Whether keys, or values, of this type are rotated before rounding: each head is multiplied by the Hadamard
// matrix H of the largest power of two that divides its size, divided by the square root of that size. This
// spreads an outlier over all dimensions. Queries are rotated like the keys, and outputs are rotated back (H
// is its own inverse). With Q8_0 the rotation helps keys, which have outliers, but not values.
constexpr bool rotates_keys(CacheType type) {
    return has_scales(type);
}
constexpr bool rotates_values(CacheType type) {
    return has_nibbles(type);
}

}  // namespace runnel::kernels
