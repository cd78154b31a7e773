// Unpacks weights of kRows rows, one row per 32-bit lane, from every block format to bytes for dot products.
//
// A chunk of 16 bytes of each row is transposed into four registers: register i holds bytes 4 i ... 4 i + 3
// of row r in lane r. From there each format needs a few shifts and masks, the same in every lane. A group of
// 32 weights is eight registers w[0..7], with weights 4 i ... 4 i + 3 in w[i].
//
// Signed weights are stored as w + kOffset; in formats with minimums they are unsigned and kOffset is 0.
// kLargest is the largest byte.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gguf/block.h"
#include "kernels/cpu/linear_grid.h"
#include "kernels/cpu/linear_vector.h"

namespace runnel::kernels::cpu {
namespace {

// kRows rows, `stride` bytes apart, at any byte of their blocks.
struct Rows {
    const std::byte *base;
    int64_t stride;
    [[gnu::always_inline]] const std::byte *operator[](int64_t row) const { return base + row * stride; }
    [[gnu::always_inline]] Rows operator+(int64_t bytes) const { return {base + bytes, stride}; }
};

// 16 bytes of each row: v[i] holds bytes 4 i ... 4 i + 3.
[[gnu::always_inline]] inline void transpose_chunk(Rows rows, Ints (&v)[4]) {
    Ints z[4];  // rows i, 4 + i, 8 + i, ...
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) z[i] = load_parts(rows[i], 4 * rows.stride);
    const Ints a = interleave_low32(z[0], z[1]), b = interleave_low32(z[2], z[3]);
    const Ints c = interleave_high32(z[0], z[1]), d = interleave_high32(z[2], z[3]);
    v[0] = interleave_low64(a, b);
    v[1] = interleave_high64(a, b);
    v[2] = interleave_low64(c, d);
    v[3] = interleave_high64(c, d);
}

// 32 bytes of each row: v[i] holds bytes 4 i ... 4 i + 3.
[[gnu::always_inline]] inline void transpose_chunks(Rows rows, Ints (&v)[8]) {
    Ints low[4], high[4];
    transpose_chunk(rows, low);
    transpose_chunk(rows + 16, high);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        v[i] = low[i];
        v[4 + i] = high[i];
    }
}

// Loads a 16-bit number of each row, eight per element of `halves`.
[[gnu::always_inline]] inline void gather_halves(Rows rows, __m128i (&halves)[kRows / 8]) {
#pragma GCC unroll 2
    for (int h = 0; h < kRows / 8; ++h) {
        const auto at = [&](int r) {
            int16_t bits;
            __builtin_memcpy(&bits, rows[8 * h + r], sizeof bits);
            return bits;
        };
        // one by one: GCC turns _mm_setr_epi16 into a slower tree
        __m128i x = _mm_cvtsi32_si128(at(0));
        x = _mm_insert_epi16(x, at(1), 1);
        x = _mm_insert_epi16(x, at(2), 2);
        x = _mm_insert_epi16(x, at(3), 3);
        x = _mm_insert_epi16(x, at(4), 4);
        x = _mm_insert_epi16(x, at(5), 5);
        x = _mm_insert_epi16(x, at(6), 6);
        halves[h] = _mm_insert_epi16(x, at(7), 7);
    }
}

// Loads an f16 of each row.
[[gnu::always_inline]] inline Floats gather_scales(Rows rows) {
    __m128i halves[kRows / 8];
    gather_halves(rows, halves);
    return halves_to_floats(halves);
}

[[gnu::always_inline]] inline Floats high_halves_to_floats(Ints v) {
    return low_halves_to_floats(right32(v, 16));
}

[[gnu::always_inline]] inline Ints low_nibbles(Ints v) {
    return v & splat(0x0f0f0f0f);
}
[[gnu::always_inline]] inline Ints high_nibbles(Ints v) {
    return low_nibbles(right16(v, 4));
}

// Byte `i` of each lane, zero-extended.
[[gnu::always_inline]] inline Ints byte_of(Ints v, int i) {
    return right32(v, 8 * i) & splat(255);
}

// Bytes 0 and 1 (pair 0) or 2 and 3 (pair 1) of each lane as two 16-bit numbers.
[[gnu::always_inline]] inline Ints word_pair(Ints v, int pair) {
    const Ints x = pair == 0 ? (v & splat(0xffff)) : right32(v, 16);
    return (x | left32(x, 8)) & splat(0x00ff00ff);
}

enum class Table { Q4_0, IQ4, MXFP4, NVFP4 };

// The sixteen values of a 4-bit format, made unsigned: Q4_0's plus 8, NVFP4's plus 16, the others' plus 128.
template <Table table>
[[gnu::always_inline]] inline Ints lookup(Ints nibbles) {
    __m128i values;
    if constexpr (table == Table::Q4_0)
        return nibbles;
    else if constexpr (table == Table::IQ4)
        values = _mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, -127, -115, -103, -90, -75, -59, -39, -15);
    else if constexpr (table == Table::NVFP4)
        values = _mm_setr_epi8(16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4);
    else
        values = _mm_setr_epi8(-128, -127, -126, -125, -124, -122, -120, -116, -128, 127, 126, 125, 124, 122,
                               120, 116);
    return lookup_bytes(values, nibbles);
}

// --- formats with blocks of 32 weights -------------------------------------------------------------------
// scale(rows) -> d of all rows, minimum(rows) -> m if kOffset is 0, weights(rows, w) -> one group. In formats
// with several groups per block (kGroups), `rows` points to the block and the group is a further argument.
// Formats with kHalves have a scale for each 16 weights of a group: scales(rows, group, first, second). Formats with
// kGroups that share one scale transpose a block, into kWords words v of each row, and return its scale: load(rows, v);
// the groups follow in their order, and may change v: weights(v, group, w).

template <int kBytes, Table table>
struct Nibbles32 {
    static constexpr int kBlockBytes = kBytes;
    static constexpr int kOffset = table == Table::Q4_0 ? 8 : 128;
    static constexpr int kLargest = table == Table::Q4_0 ? 15 : 255;
    [[gnu::always_inline]] static void weights(Rows rows, Ints (&w)[8]) {
        Ints v[4];
        transpose_chunk(rows + (kBytes - 16), v);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            w[i] = lookup<table>(low_nibbles(v[i]));
            w[4 + i] = lookup<table>(high_nibbles(v[i]));
        }
    }
};

struct FormatQ4_0 : Nibbles32<18, Table::Q4_0> {
    [[gnu::always_inline]] static Floats scale(Rows rows) { return gather_scales(rows); }
};

struct FormatIQ4_NL : Nibbles32<18, Table::IQ4> {
    [[gnu::always_inline]] static Floats scale(Rows rows) { return gather_scales(rows); }
};

struct FormatMXFP4 : Nibbles32<17, Table::MXFP4> {
    // 2^(e - 128), subnormal for e < 2
    [[gnu::always_inline]] static Floats scale(Rows rows) {
        uint8_t exponents[kRows];
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) exponents[r] = static_cast<uint8_t>(*rows[r]);
        const Ints e = widen_bytes(exponents);
        const Ints normal = left32(sub32(e, splat(1)), 23);
        const Ints subnormal = left32_by(splat(0x00200000), e);
        return as_floats(select_less(e, splat(2), subnormal, normal));
    }
};

// Half of the UE4M3 number in the lowest 8 bits of each lane, whose other bits are 0 (gguf/nvfp4.h).
[[gnu::always_inline]] inline Floats half_ue4m3(Ints v) {
    const Ints number = select_less(v ^ splat(0x7f), splat(1), splat(0), v & splat(0x7f));
    return multiply_floats(low_halves_to_floats(left32(number, 7)), 128);
}

struct FormatNVFP4 {
    static constexpr int kBlockBytes = 36;
    static constexpr int kGroups = 2;
    static constexpr bool kHalves = true;
    static constexpr int kOffset = 16;
    static constexpr int kLargest = 28;
    [[gnu::always_inline]] static void scales(Rows rows, int group, Floats &first, Floats &second) {
        __m128i halves[kRows / 8];
        gather_halves(rows + 2 * group, halves);
        const Ints both = widen_halves(halves);
        first = half_ue4m3(both & splat(255));
        second = half_ue4m3(right32(both, 8));
    }
    [[gnu::always_inline]] static void weights(Rows rows, int group, Ints (&w)[8]) {
        Ints v[4];
        transpose_chunk(rows + (4 + 16 * group), v);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            w[i / 2 * 4 + i % 2] = lookup<Table::NVFP4>(low_nibbles(v[i]));
            w[i / 2 * 4 + 2 + i % 2] = lookup<Table::NVFP4>(high_nibbles(v[i]));
        }
    }
};

// Byte k of each lane: its four 2-bit numbers as the bytes of the lane.
[[gnu::always_inline]] inline Ints quarter_bytes(Ints v, int k) {
    const int high = k * 0x01000100,
              next = 0x04000400;  // into the high bytes of both words; the low ones are 0
    const Ints words =
        shuffle_parts(v, _mm_setr_epi32(high | 0x00800080, (high + next) | 0x00800080,
                                        (high + 2 * next) | 0x00800080, (high + 3 * next) | 0x00800080));
    // A nibble n becomes n + (n << 6): n is at bit 8 of the first word and at bit 12 of the second.
    const Ints nibbles = words & splat(0xf0000f00);
    return high_product16(nibbles, splat(0x04104100)) & splat(0x03030303);
}

// The first trit of each byte; the byte is multiplied by 3 so that the next trit becomes the first.
[[gnu::always_inline]] inline Ints next_trit(Ints &x) {
    const Ints three = splat16(3), low = splat(0x00ff00ff), high = splat(0xff00ff00);
    const Ints even = multiply16((x & low), three);
    const Ints odd = multiply16(right16(x, 8), three);
    const Ints trits = right16(even, 8) | (odd & high);
    x = (even & low) | left16(odd, 8);
    return trits;
}

struct FormatQ1_0 {
    static constexpr int kBlockBytes = 18;
    static constexpr int kGroups = 4;
    static constexpr int kWords = 4;
    static constexpr int kOffset = 1;
    static constexpr int kLargest = 2;
    [[gnu::always_inline]] static Floats load(Rows rows, Ints (&v)[4]) {
        transpose_chunk(rows + 2, v);
        return gather_scales(rows);
    }
    [[gnu::always_inline]] static void weights(const Ints (&v)[4], int group, Ints (&w)[8]) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) w[i] = doubled_bits(v[group], i);
    }
};

struct FormatQ2_0 {
    static constexpr int kBlockBytes = 18;
    static constexpr int kGroups = 2;
    static constexpr int kWords = 4;
    static constexpr int kOffset = 1;
    static constexpr int kLargest = 3;
    [[gnu::always_inline]] static Floats load(Rows rows, Ints (&v)[4]) {
        transpose_chunk(rows + 2, v);
        return gather_scales(rows);
    }
    [[gnu::always_inline]] static void weights(const Ints (&v)[4], int group, Ints (&w)[8]) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) w[i] = quarter_bytes(v[2 * group + i / 4], i % 4);
    }
};

struct FormatPQ2_0 {
    static constexpr int kBlockBytes = 34;
    static constexpr int kGroups = 4;
    static constexpr int kWords = 8;
    static constexpr int kOffset = 1;
    static constexpr int kLargest = 3;
    [[gnu::always_inline]] static Floats load(Rows rows, Ints (&v)[8]) {
        transpose_chunks(rows + 2, v);
        return gather_scales(rows);
    }
    [[gnu::always_inline]] static void weights(const Ints (&v)[8], int group, Ints (&w)[8]) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) w[i] = quarter_bytes(v[2 * group + i / 4], i % 4);
    }
};

struct FormatPTQ1_0 {
    static constexpr int kBlockBytes = 28;
    static constexpr int kGroups = 4;
    static constexpr int kWords = 7;
    static constexpr int kOffset = 1;
    static constexpr int kLargest = 2;
    [[gnu::always_inline]] static Floats load(Rows rows, Ints (&v)[7]) {
        Ints first[4], last[4];  // bytes 0-15 and 12-27
        transpose_chunk(rows, first);
        transpose_chunk(rows + 12, last);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            v[i] = first[i];
            v[3 + i] = last[i];
        }
        const Floats d = high_halves_to_floats(v[6]);
        v[6] = (v[6] & splat(0xffff)) | left32(v[6], 16);
        return d;
    }
    [[gnu::always_inline]] static void weights(Ints (&v)[7], int group, Ints (&w)[8]) {
        if (group < 3) {  // two trits of bytes 0-15; the last group: one, and two of bytes 16-23
#pragma GCC unroll 8
            for (int i = 0; i < 8; ++i) w[i] = next_trit(v[group < 2 || i < 4 ? i % 4 : 4 + i % 2]);
        } else {  // three trits of bytes 16-23, four of bytes 24 and 25, which are twice in a word
#pragma GCC unroll 6
            for (int i = 0; i < 6; ++i) w[i] = next_trit(v[4 + i % 2]);
#pragma GCC unroll 2
            for (int i = 6; i < 8; ++i) {
                const Ints low = next_trit(v[6]), high = next_trit(v[6]);
                w[i] = (low & splat(0x0000ffff)) | (high & splat(0xffff0000));
            }
        }
    }
};

struct FormatQ4_1 {
    static constexpr int kBlockBytes = 20;
    static constexpr int kOffset = 0;
    static constexpr int kLargest = 15;
    [[gnu::always_inline]] static Floats scale(Rows rows) { return gather_scales(rows); }
    [[gnu::always_inline]] static Floats minimum(Rows rows) { return gather_scales(rows + 2); }
    [[gnu::always_inline]] static void weights(Rows rows, Ints (&w)[8]) {
        Ints v[4];
        transpose_chunk(rows + 4, v);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            w[i] = low_nibbles(v[i]);
            w[4 + i] = high_nibbles(v[i]);
        }
    }
};

// Bits 4 i ... 4 i + 3 of each lane, each moved to bit 4 of its byte.
[[gnu::always_inline]] inline Ints spread_bits(Ints bits, int i) {
    const Ints four = right32(bits, 4 * i) & splat(15);
    return multiply32(four, splat(0x02040810)) & splat(0x10101010);
}

// Five-bit weights; `kBits` is the offset of the high bits in the block, the nibbles follow.
template <int kBits>
[[gnu::always_inline]] inline void five_bit_weights(Rows rows, Ints (&w)[8]) {
    Ints bits[4], v[4];
    transpose_chunk(rows + kBits, bits);
    transpose_chunk(rows + (kBits + 4), v);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        w[i] = low_nibbles(v[i]) | spread_bits(bits[0], i);
        w[4 + i] = high_nibbles(v[i]) | spread_bits(bits[0], 4 + i);
    }
}

struct FormatQ5_0 {
    static constexpr int kBlockBytes = 22;
    static constexpr int kOffset = 16;
    static constexpr int kLargest = 31;
    [[gnu::always_inline]] static Floats scale(Rows rows) { return gather_scales(rows); }
    [[gnu::always_inline]] static void weights(Rows rows, Ints (&w)[8]) { five_bit_weights<2>(rows, w); }
};

struct FormatQ5_1 {
    static constexpr int kBlockBytes = 24;
    static constexpr int kOffset = 0;
    static constexpr int kLargest = 31;
    [[gnu::always_inline]] static Floats scale(Rows rows) { return gather_scales(rows); }
    [[gnu::always_inline]] static Floats minimum(Rows rows) { return gather_scales(rows + 2); }
    [[gnu::always_inline]] static void weights(Rows rows, Ints (&w)[8]) { five_bit_weights<4>(rows, w); }
};

struct FormatQ8_0 {
    static constexpr int kBlockBytes = 34;
    static constexpr int kOffset = 128;
    static constexpr int kLargest = 255;
    [[gnu::always_inline]] static Floats scale(Rows rows) { return gather_scales(rows); }
    [[gnu::always_inline]] static void weights(Rows rows, Ints (&w)[8]) {
        transpose_chunks(rows + 2, w);
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) w[i] = w[i] ^ splat(0x80808080);
    }
};

// --- formats with blocks of 256 weights ------------------------------------------------------------------
// scales(rows, s) fills Scales256; weights(rows, emit) calls emit(j, w) for the
// groups j = 0..7 of 32 weights.

// The factors of the integers of one block of all rows.
struct Scales256 {
    Floats d, dmin;   // dmin: only if kOffset is 0
    Ints scale[16];   // per group of kStep weights
    Ints minimum[8];  // 16-bit pairs: minimums of groups 2 i and 2 i + 1 of kStep weights
};

// step: the number of weights, 16 or 32, that share an integer scale.
// offset: kOffset; 0 if the format has minimums.
// largest: kLargest, the largest unpacked byte.
template <int kBytes, int step, int offset, int largest>
struct Super {
    static constexpr int kBlockBytes = kBytes;
    static constexpr int kStep = step;
    static constexpr int kOffset = offset;
    static constexpr int kLargest = largest;
};

// Four scales per lane: its four bytes, minus `bias`.
[[gnu::always_inline]] inline void four_scales(Ints v, uint32_t bias, Ints *scale) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) scale[i] = sub32(byte_of(v, i), splat(bias));
}

// d, dmin and the 6-bit scales and minimums of Q4_K and Q5_K: the first 16 bytes of the block.
[[gnu::always_inline]] inline void scales_4_5(Rows rows, Scales256 &s) {
    Ints v[4];
    transpose_chunk(rows, v);
    const Ints six = splat(0x3f3f3f3f), two = splat(0x30303030);
    s.d = low_halves_to_floats(v[0]);
    s.dmin = high_halves_to_floats(v[0]);
    const Ints high_scales = right32(v[1], 2) & two;
    const Ints high_minimums = right32(v[2], 2) & two;
    four_scales((v[1] & six), 0, s.scale);
    four_scales((low_nibbles(v[3]) | high_scales), 0, s.scale + 4);
    const Ints m0 = v[2] & six, m4 = high_nibbles(v[3]) | high_minimums;
    s.minimum[0] = word_pair(m0, 0);
    s.minimum[1] = word_pair(m0, 1);
    s.minimum[2] = word_pair(m4, 0);
    s.minimum[3] = word_pair(m4, 1);
}

struct FormatQ4_K : Super<144, 32, 0, 15> {
    [[gnu::always_inline]] static void scales(Rows rows, Scales256 &s) { scales_4_5(rows, s); }
    template <typename Emit>
    [[gnu::always_inline]] static void weights(Rows rows, Emit emit) {
        for (int c = 0; c < 4; ++c) {
            Ints v[8], low[8];
            transpose_chunks(rows + (16 + 32 * c), v);
#pragma GCC unroll 8
            for (int i = 0; i < 8; ++i) low[i] = low_nibbles(v[i]);
            emit(2 * c, low);
#pragma GCC unroll 8
            for (int i = 0; i < 8; ++i) v[i] = high_nibbles(v[i]);
            emit(2 * c + 1, v);
        }
    }
};

struct FormatQ5_K : Super<176, 32, 0, 31> {
    [[gnu::always_inline]] static void scales(Rows rows, Scales256 &s) { scales_4_5(rows, s); }
    template <typename Emit>
    [[gnu::always_inline]] static void weights(Rows rows, Emit emit) {
        Ints high[8];  // shifted so that the bit of the next group is bit 0
        transpose_chunks(rows + 16, high);
        for (int c = 0; c < 4; ++c) {
            Ints v[8], w[8];
            transpose_chunks(rows + (48 + 32 * c), v);
#pragma GCC unroll 8
            for (int i = 0; i < 8; ++i) w[i] = low_nibbles(v[i]) | (left32(high[i], 4) & splat(0x10101010));
            emit(2 * c, w);
#pragma GCC unroll 8
            for (int i = 0; i < 8; ++i) {
                w[i] = high_nibbles(v[i]) | (left32(high[i], 3) & splat(0x10101010));
                high[i] = right32(high[i], 2);
            }
            emit(2 * c + 1, w);
        }
    }
};

struct FormatQ6_K : Super<210, 16, 32, 63> {
    [[gnu::always_inline]] static void scales(Rows rows, Scales256 &s) {
        Ints v[4];
        transpose_chunk(rows + 192, v);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) s.scale[i] = signed_right32(left32(v[i / 4], 24 - 8 * (i % 4)), 24);
        s.d = gather_scales(rows + 208);
    }
    [[gnu::always_inline]] static Ints value(Ints low, Ints high) {
        return low | (high & splat(0x30303030));
    }
    template <typename Emit>
    [[gnu::always_inline]] static void weights(Rows rows, Emit emit) {
        for (int half = 0; half < 2; ++half) {
            Ints high[8], v[8], w[8];
            transpose_chunks(rows + (128 + 32 * half), high);
#pragma GCC unroll 2
            for (int part = 0; part < 2; ++part) {
                transpose_chunks(rows + (64 * half + 32 * part), v);
#pragma GCC unroll 8
                for (int i = 0; i < 8; ++i)
                    w[i] = value(low_nibbles(v[i]), left32(high[i], part == 0 ? 4 : 2));
                emit(4 * half + part, w);
#pragma GCC unroll 8
                for (int i = 0; i < 8; ++i)
                    w[i] = value(high_nibbles(v[i]), part == 0 ? high[i] : right32(high[i], 2));
                emit(4 * half + 2 + part, w);
            }
        }
    }
};

struct FormatQ2_K : Super<84, 16, 0, 3> {
    [[gnu::always_inline]] static void scales(Rows rows, Scales256 &s) {
        Ints v[4], tail[4];
        transpose_chunk(rows, v);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            four_scales(low_nibbles(v[i]), 0, s.scale + 4 * i);
            s.minimum[2 * i] = word_pair(high_nibbles(v[i]), 0);
            s.minimum[2 * i + 1] = word_pair(high_nibbles(v[i]), 1);
        }
        transpose_chunk(rows + 68, tail);
        s.d = low_halves_to_floats(tail[3]);
        s.dmin = high_halves_to_floats(tail[3]);
    }
    template <typename Emit>
    [[gnu::always_inline]] static void weights(Rows rows, Emit emit) {
        for (int half = 0; half < 2; ++half) {
            Ints v[8], w[8];
            transpose_chunks(rows + (16 + 32 * half), v);
            for (int j = 0; j < 4; ++j) {
#pragma GCC unroll 8
                for (int i = 0; i < 8; ++i) {
                    w[i] = v[i] & splat(0x03030303);
                    v[i] = right32(v[i], 2);
                }
                emit(4 * half + j, w);
            }
        }
    }
};

struct FormatQ3_K : Super<110, 16, 4, 7> {
    [[gnu::always_inline]] static void scales(Rows rows, Scales256 &s) {
        Ints v[4];
        transpose_chunk(rows + 92, v);
        const auto high = [&](Ints shifted) { return shifted & splat(0x30303030); };
        four_scales((low_nibbles(v[1]) | high(left32(v[3], 4))), 32, s.scale);
        four_scales((low_nibbles(v[2]) | high(left32(v[3], 2))), 32, s.scale + 4);
        four_scales((high_nibbles(v[1]) | high(v[3])), 32, s.scale + 8);
        four_scales((high_nibbles(v[2]) | high(right32(v[3], 2))), 32, s.scale + 12);
        s.d = gather_scales(rows + 108);
    }
    template <typename Emit>
    [[gnu::always_inline]] static void weights(Rows rows, Emit emit) {
        Ints high[8];  // shifted so that the bit of the next group is bit 0
        transpose_chunks(rows, high);
        for (int half = 0; half < 2; ++half) {
            Ints v[8], w[8];
            transpose_chunks(rows + (32 + 32 * half), v);
            for (int j = 0; j < 4; ++j) {
#pragma GCC unroll 8
                for (int i = 0; i < 8; ++i) {
                    const Ints bit = left32(high[i], 2) & splat(0x04040404);
                    w[i] = (v[i] & splat(0x03030303)) | bit;
                    v[i] = right32(v[i], 2);
                    high[i] = right32(high[i], 1);
                }
                emit(4 * half + j, w);
            }
        }
    }
};

struct FormatIQ4_XS : Super<136, 32, 128, 255> {
    [[gnu::always_inline]] static void scales(Rows rows, Scales256 &s) {
        Ints v[4];
        transpose_chunk(rows, v);
        s.d = low_halves_to_floats(v[0]);
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) {
            const Ints low = right32(v[1], 4 * j) & splat(15);
            const Ints high = right32(v[0], 16 + 2 * j) & splat(3);
            s.scale[j] = sub32((low | left32(high, 4)), splat(32));
        }
    }
    template <typename Emit>
    [[gnu::always_inline]] static void weights(Rows rows, Emit emit) {
        for (int j = 0; j < 8; ++j) {
            Ints v[4], w[8];
            transpose_chunk(rows + (8 + 16 * j), v);
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) {
                w[i] = lookup<Table::IQ4>(low_nibbles(v[i]));
                w[4 + i] = lookup<Table::IQ4>(high_nibbles(v[i]));
            }
            emit(j, w);
        }
    }
};

[[gnu::always_inline]] inline void unit_scales(Ints (&scale)[16]) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) scale[j] = splat(1);
}

struct FormatTQ2_0 : Super<66, 32, 1, 3> {
    [[gnu::always_inline]] static void scales(Rows rows, Scales256 &s) {
        unit_scales(s.scale);
        s.d = gather_scales(rows + 64);
    }
    template <typename Emit>
    [[gnu::always_inline]] static void weights(Rows rows, Emit emit) {
        for (int half = 0; half < 2; ++half) {
            Ints v[8], w[8];
            transpose_chunks(rows + 32 * half, v);
            for (int j = 0; j < 4; ++j) {
#pragma GCC unroll 8
                for (int i = 0; i < 8; ++i) {
                    w[i] = v[i] & splat(0x03030303);
                    v[i] = right32(v[i], 2);
                }
                emit(4 * half + j, w);
            }
        }
    }
};

struct FormatTQ1_0 : Super<54, 32, 1, 2> {
    [[gnu::always_inline]] static void scales(Rows rows, Scales256 &s) {
        unit_scales(s.scale);
        s.d = gather_scales(rows + 52);
    }
    template <typename Emit>
    [[gnu::always_inline]] static void weights(Rows rows, Emit emit) {
        Ints v[8], w[8], tail[4], last[4];
        transpose_chunks(rows, v);
        for (int j = 0; j < 5; ++j) {
#pragma GCC unroll 8
            for (int i = 0; i < 8; ++i) w[i] = next_trit(v[i]);
            emit(j, w);
        }
        transpose_chunk(rows + 32, tail);
        for (int j = 5; j < 7; ++j) {
#pragma GCC unroll 8
            for (int i = 0; i < 8; ++i) w[i] = next_trit(tail[i % 4]);
            emit(j, w);
        }
        transpose_chunk(rows + 36, last);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            w[i] = next_trit(tail[i]);
            w[4 + i] = next_trit(last[3]);
        }
        emit(7, w);
    }
};

// Extends each lane's four groups of seven sign bits to eight bits; the eighth makes the parity even.
[[gnu::always_inline]] inline Ints eighth_signs(Ints v) {
    const Ints seven = (v & splat(0x7f)) | (left32(v, 1) & splat(0x7f00)) | (left32(v, 2) & splat(0x7f0000)) |
                       (left32(v, 3) & splat(0x7f000000));
    Ints parity = seven ^ right32(seven, 4);
    parity = parity ^ right32(parity, 2);
    parity = parity ^ right32(parity, 1);
    return seven | left32(parity & splat(0x01010101), 7);
}

// The weights of codebook entries, plus 128, from their bytes, with the `signs` of each row applied.
template <Signs kind>
[[gnu::always_inline]] inline void apply_signs(Ints signs, Ints (&w)[8]) {
    if constexpr (kind == Signs::Shift) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
            const Ints down = right32(signs, i / 2) & splat(1);
            w[i] = add32(left32(w[i], 3), select_less(down, splat(1), splat(0x79797979), splat(0x77777777)));
        }
    } else {
        const Ints eight = kind == Signs::Seven ? eighth_signs(signs) : signs;
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) w[i] = negate_where(w[i], spread_bits(eight, i)) ^ splat(0x80808080);
    }
}

// Codebook entries are looked up row by row and then transposed like the bytes of other formats. All entries
// of a block are looked up before any is used: a load must not wait for the smaller stores that it covers.
template <class BlockOfFile>
struct FormatGrid : Super<sizeof(BlockOfFile), 16, 128, 255> {
    using Block = BlockOfFile;
    using Grid = GridBlock<Block>;
    // The block is packed, so any alignment is allowed.
    [[gnu::always_inline]] static const Block &block(Rows rows, int row) {
        return *reinterpret_cast<const Block *>(rows[row]);
    }
    // d of all rows.
    [[gnu::always_inline]] static Floats factors(Rows rows) {
        uint16_t d[kRows];
        for (int r = 0; r < kRows; ++r) d[r] = Grid::scale_bits(block(rows, r));
        return multiply_floats(gather_scales({reinterpret_cast<const std::byte *>(d), sizeof d[0]}),
                               Grid::kUnit);
    }
    [[gnu::always_inline]] static void scales(Rows rows, Scales256 &s) {
        for (int r = 0; r < kRows; ++r) {
            const Block &b = block(rows, r);
#pragma GCC unroll 16
            for (int i = 0; i < 16; ++i) {
                const int32_t scale = Grid::scale(b, i);
                __builtin_memcpy(reinterpret_cast<std::byte *>(&s.scale[i]) + r * sizeof scale, &scale,
                                 sizeof scale);
            }
        }
        s.d = factors(rows);
    }
    template <typename Emit>
    [[gnu::always_inline]] static void weights(Rows rows, Emit emit) {
        alignas(64) uint64_t entries[8][kRows][4];
        alignas(64) int32_t signs[8][kRows];
        for (int r = 0; r < kRows; ++r) {
            const Block &b = block(rows, r);
#pragma GCC unroll 8
            for (int j = 0; j < 8; ++j) {
#pragma GCC unroll 4
                for (int i = 0; i < 4; ++i) entries[j][r][i] = Grid::entry(b, 4 * j + i);
                signs[j][r] = static_cast<int32_t>(Grid::signs(b, j));
            }
        }
        for (int j = 0; j < 8; ++j) {
            Ints w[8];
            transpose_chunks({reinterpret_cast<const std::byte *>(entries[j]), sizeof entries[j][0]}, w);
            apply_signs<Grid::kSigns>(load_ints(signs[j]), w);
            emit(j, w);
        }
    }
};

}  // namespace
}  // namespace runnel::kernels::cpu
