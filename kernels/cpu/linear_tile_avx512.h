// Weights of 16 rows, one row per 32-bit lane: how every block format becomes unsigned bytes for vpdpbusd.
//
// A chunk of 16 bytes of each row is transposed into four registers: register i holds bytes 4 i ... 4 i + 3
// of row r in lane r. From there each format is a few shifts and masks, the same in every lane. A group of 32
// weights is eight registers w[0..7], weights 4 i ... 4 i + 3 in w[i].
//
// Signed weights come out as w + kOffset; formats with minimums are unsigned as they are, kOffset is 0.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "gguf/block.h"

namespace runnel::kernels::cpu {
namespace {

// Sixteen rows, `stride` bytes apart, at some byte of their blocks.
struct Rows {
    const std::byte *base;
    int64_t stride;
    [[gnu::always_inline]] inline const std::byte *operator[](int64_t row) const {
        return base + row * stride;
    }
    [[gnu::always_inline]] inline Rows operator+(int64_t bytes) const { return {base + bytes, stride}; }
};

[[gnu::always_inline]] inline __m128i load16(const std::byte *p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
}

[[gnu::always_inline]] inline __m512i splat(uint32_t x) {
    return _mm512_set1_epi32(static_cast<int>(x));
}

[[gnu::always_inline]] inline void transpose_chunk(Rows rows, __m512i (&v)[4]) {
    __m512i z[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        // Two 256-bit halves: inserting from memory into 512 bits would take twice as long.
        const __m256i low =
            _mm256_inserti128_si256(_mm256_castsi128_si256(load16(rows[i])), load16(rows[4 + i]), 1);
        const __m256i high =
            _mm256_inserti128_si256(_mm256_castsi128_si256(load16(rows[8 + i])), load16(rows[12 + i]), 1);
        z[i] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
    const __m512i a = _mm512_unpacklo_epi32(z[0], z[1]), b = _mm512_unpacklo_epi32(z[2], z[3]);
    const __m512i c = _mm512_unpackhi_epi32(z[0], z[1]), d = _mm512_unpackhi_epi32(z[2], z[3]);
    v[0] = _mm512_unpacklo_epi64(a, b);
    v[1] = _mm512_unpackhi_epi64(a, b);
    v[2] = _mm512_unpacklo_epi64(c, d);
    v[3] = _mm512_unpackhi_epi64(c, d);
}

// 32 bytes of each row.
[[gnu::always_inline]] inline void transpose_chunks(Rows rows, __m512i (&v)[8]) {
    __m512i low[4], high[4];
    transpose_chunk(rows, low);
    transpose_chunk(rows + 16, high);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        v[i] = low[i];
        v[4 + i] = high[i];
    }
}

// A 16-bit number of each row.
[[gnu::always_inline]] inline __m256i gather_halves(Rows rows) {
    __m128i half[2];
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
        const auto at = [&](int r) {
            int16_t bits;
            __builtin_memcpy(&bits, rows[8 * h + r], sizeof bits);
            return bits;
        };
        __m128i x = _mm_cvtsi32_si128(at(0));
        x = _mm_insert_epi16(x, at(1), 1);
        x = _mm_insert_epi16(x, at(2), 2);
        x = _mm_insert_epi16(x, at(3), 3);
        x = _mm_insert_epi16(x, at(4), 4);
        x = _mm_insert_epi16(x, at(5), 5);
        x = _mm_insert_epi16(x, at(6), 6);
        half[h] = _mm_insert_epi16(x, at(7), 7);
    }
    return _mm256_inserti128_si256(_mm256_castsi128_si256(half[0]), half[1], 1);
}

[[gnu::always_inline]] inline __m512 gather_scales(Rows rows) {
    return _mm512_cvtph_ps(gather_halves(rows));
}

// The f16 in the low half of each lane.
[[gnu::always_inline]] inline __m512 low_half_scales(__m512i v) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v));
}
[[gnu::always_inline]] inline __m512 high_half_scales(__m512i v) {
    return low_half_scales(_mm512_srli_epi32(v, 16));
}

[[gnu::always_inline]] inline __m512i low_nibbles(__m512i v) {
    return _mm512_and_si512(v, splat(0x0f0f0f0f));
}
[[gnu::always_inline]] inline __m512i high_nibbles(__m512i v) {
    return low_nibbles(_mm512_srli_epi16(v, 4));
}

// Byte `i` of each lane, zero-extended.
[[gnu::always_inline]] inline __m512i byte_of(__m512i v, int i) {
    return _mm512_and_si512(_mm512_srli_epi32(v, static_cast<unsigned>(8 * i)), splat(255));
}

// Bytes 0 and 1 (pair 0) or 2 and 3 (pair 1) of each lane as two 16-bit numbers.
[[gnu::always_inline]] inline __m512i word_pair(__m512i v, int pair) {
    const __m512i x = pair == 0 ? _mm512_and_si512(v, splat(0xffff)) : _mm512_srli_epi32(v, 16);
    return _mm512_and_si512(_mm512_or_si512(x, _mm512_slli_epi32(x, 8)), splat(0x00ff00ff));
}

enum class Table { Q4_0, IQ4, MXFP4 };

// The sixteen values of a 4-bit format: Q4_0's plus 8, the others' plus 128.
template <Table table>
[[gnu::always_inline]] inline __m512i lookup(__m512i nibbles) {
    __m128i values;
    if constexpr (table == Table::Q4_0)
        return nibbles;
    else if constexpr (table == Table::IQ4)
        values = _mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, -127, -115, -103, -90, -75, -59, -39, -15);
    else
        values = _mm_setr_epi8(-128, -127, -126, -125, -124, -122, -120, -116, -128, 127, 126, 125, 124, 122,
                               120, 116);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), nibbles);
}

// --- formats with blocks of 32 weights -------------------------------------------------------------------
// scale(rows) -> d of 16 rows, minimum(rows) -> m where kOffset is 0, weights(rows, w) -> one group.

template <int kBytes, Table table>
struct Nibbles32 {
    static constexpr int kBlockBytes = kBytes;
    static constexpr int kOffset = table == Table::Q4_0 ? 8 : 128;
    [[gnu::always_inline]] static void weights(Rows rows, __m512i (&w)[8]) {
        __m512i v[4];
        transpose_chunk(rows + (kBytes - 16), v);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            w[i] = lookup<table>(low_nibbles(v[i]));
            w[4 + i] = lookup<table>(high_nibbles(v[i]));
        }
    }
};

struct FormatQ4_0 : Nibbles32<18, Table::Q4_0> {
    [[gnu::always_inline]] static __m512 scale(Rows rows) { return gather_scales(rows); }
};

struct FormatIQ4_NL : Nibbles32<18, Table::IQ4> {
    [[gnu::always_inline]] static __m512 scale(Rows rows) { return gather_scales(rows); }
};

struct FormatMXFP4 : Nibbles32<17, Table::MXFP4> {
    // 2^(e - 128), subnormal for e < 2
    [[gnu::always_inline]] static __m512 scale(Rows rows) {
        alignas(16) uint8_t exponents[16];
#pragma GCC unroll 16
        for (int r = 0; r < 16; ++r) exponents[r] = static_cast<uint8_t>(*rows[r]);
        const __m512i e = _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i *>(exponents)));
        const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, splat(1)), 23);
        const __m512i subnormal = _mm512_sllv_epi32(splat(0x00200000), e);
        return _mm512_castsi512_ps(
            _mm512_mask_mov_epi32(normal, _mm512_cmplt_epu32_mask(e, splat(2)), subnormal));
    }
};

struct FormatQ4_1 {
    static constexpr int kBlockBytes = 20;
    static constexpr int kOffset = 0;
    [[gnu::always_inline]] static __m512 scale(Rows rows) { return gather_scales(rows); }
    [[gnu::always_inline]] static __m512 minimum(Rows rows) { return gather_scales(rows + 2); }
    [[gnu::always_inline]] static void weights(Rows rows, __m512i (&w)[8]) {
        __m512i v[4];
        transpose_chunk(rows + 4, v);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            w[i] = low_nibbles(v[i]);
            w[4 + i] = high_nibbles(v[i]);
        }
    }
};

// Bits 4 i ... 4 i + 3 of each lane, one in bit 4 of each byte.
[[gnu::always_inline]] inline __m512i spread_bits(__m512i bits, int i) {
    const __m512i four = _mm512_and_si512(_mm512_srli_epi32(bits, static_cast<unsigned>(4 * i)), splat(15));
    return _mm512_and_si512(_mm512_mullo_epi32(four, splat(0x02040810)), splat(0x10101010));
}

// Five bits; `kBits` is the offset of the high bits in the block, the nibbles follow.
template <int kBits>
[[gnu::always_inline]] inline void five_bit_weights(Rows rows, __m512i (&w)[8]) {
    __m512i bits[4], v[4];
    transpose_chunk(rows + kBits, bits);
    transpose_chunk(rows + (kBits + 4), v);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        w[i] = _mm512_or_si512(low_nibbles(v[i]), spread_bits(bits[0], i));
        w[4 + i] = _mm512_or_si512(high_nibbles(v[i]), spread_bits(bits[0], 4 + i));
    }
}

struct FormatQ5_0 {
    static constexpr int kBlockBytes = 22;
    static constexpr int kOffset = 16;
    [[gnu::always_inline]] static __m512 scale(Rows rows) { return gather_scales(rows); }
    [[gnu::always_inline]] static void weights(Rows rows, __m512i (&w)[8]) { five_bit_weights<2>(rows, w); }
};

struct FormatQ5_1 {
    static constexpr int kBlockBytes = 24;
    static constexpr int kOffset = 0;
    [[gnu::always_inline]] static __m512 scale(Rows rows) { return gather_scales(rows); }
    [[gnu::always_inline]] static __m512 minimum(Rows rows) { return gather_scales(rows + 2); }
    [[gnu::always_inline]] static void weights(Rows rows, __m512i (&w)[8]) { five_bit_weights<4>(rows, w); }
};

struct FormatQ8_0 {
    static constexpr int kBlockBytes = 34;
    static constexpr int kOffset = 128;
    [[gnu::always_inline]] static __m512 scale(Rows rows) { return gather_scales(rows); }
    [[gnu::always_inline]] static void weights(Rows rows, __m512i (&w)[8]) {
        transpose_chunks(rows + 2, w);
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) w[i] = _mm512_xor_si512(w[i], splat(0x80808080));
    }
};

// --- formats with blocks of 256 weights ------------------------------------------------------------------
// scales(rows, s) fills Scales256, weights(rows, emit) calls emit(j, w) for the groups j = 0..7 of 32
// weights.

// What the integers of one block of 16 rows are multiplied with.
struct Scales256 {
    __m512 d, dmin;      // dmin: where kOffset is 0
    __m512i scale[16];   // per group of kStep weights
    __m512i minimum[8];  // 16-bit pairs: minimums of groups 2 i and 2 i + 1 of kStep weights
};

// `step` weights share an integer scale (16 or 32); `offset` 0: the format has minimums.
// 128.
template <int kBytes, int step, int offset>
struct Super {
    static constexpr int kBlockBytes = kBytes;
    static constexpr int kStep = step;
    static constexpr int kOffset = offset;
};

// The four bytes of each lane, minus `bias`, as the scales of four groups.
[[gnu::always_inline]] inline void four_scales(__m512i v, uint32_t bias, __m512i *scale) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) scale[i] = _mm512_sub_epi32(byte_of(v, i), splat(bias));
}

// d, dmin and the 6-bit scales and minimums of Q4_K and Q5_K: the first 16 bytes of the block.
[[gnu::always_inline]] inline void scales_4_5(Rows rows, Scales256 &s) {
    __m512i v[4];
    transpose_chunk(rows, v);
    const __m512i six = splat(0x3f3f3f3f), two = splat(0x30303030);
    s.d = low_half_scales(v[0]);
    s.dmin = high_half_scales(v[0]);
    const __m512i high_scales = _mm512_and_si512(_mm512_srli_epi32(v[1], 2), two);
    const __m512i high_minimums = _mm512_and_si512(_mm512_srli_epi32(v[2], 2), two);
    four_scales(_mm512_and_si512(v[1], six), 0, s.scale);
    four_scales(_mm512_or_si512(low_nibbles(v[3]), high_scales), 0, s.scale + 4);
    const __m512i m0 = _mm512_and_si512(v[2], six), m4 = _mm512_or_si512(high_nibbles(v[3]), high_minimums);
    s.minimum[0] = word_pair(m0, 0);
    s.minimum[1] = word_pair(m0, 1);
    s.minimum[2] = word_pair(m4, 0);
    s.minimum[3] = word_pair(m4, 1);
}

struct FormatQ4_K : Super<144, 32, 0> {
    [[gnu::always_inline]] static void scales(Rows rows, Scales256 &s) { scales_4_5(rows, s); }
    template <typename Emit>
    [[gnu::always_inline]] static void weights(Rows rows, Emit emit) {
        for (int c = 0; c < 4; ++c) {
            __m512i v[8], low[8];
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

struct FormatQ5_K : Super<176, 32, 0> {
    [[gnu::always_inline]] static void scales(Rows rows, Scales256 &s) { scales_4_5(rows, s); }
    template <typename Emit>
    [[gnu::always_inline]] static void weights(Rows rows, Emit emit) {
        __m512i high[8];  // shifted so that the bit of the next group is bit 0
        transpose_chunks(rows + 16, high);
        for (int c = 0; c < 4; ++c) {
            __m512i v[8], w[8];
            transpose_chunks(rows + (48 + 32 * c), v);
#pragma GCC unroll 8
            for (int i = 0; i < 8; ++i)
                w[i] = _mm512_or_si512(low_nibbles(v[i]),
                                       _mm512_and_si512(_mm512_slli_epi32(high[i], 4), splat(0x10101010)));
            emit(2 * c, w);
#pragma GCC unroll 8
            for (int i = 0; i < 8; ++i) {
                w[i] = _mm512_or_si512(high_nibbles(v[i]),
                                       _mm512_and_si512(_mm512_slli_epi32(high[i], 3), splat(0x10101010)));
                high[i] = _mm512_srli_epi32(high[i], 2);
            }
            emit(2 * c + 1, w);
        }
    }
};

struct FormatQ6_K : Super<210, 16, 32> {
    [[gnu::always_inline]] static void scales(Rows rows, Scales256 &s) {
        __m512i v[4];
        transpose_chunk(rows + 192, v);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i)
            s.scale[i] =
                _mm512_srai_epi32(_mm512_slli_epi32(v[i / 4], static_cast<unsigned>(24 - 8 * (i % 4))), 24);
        s.d = gather_scales(rows + 208);
    }
    [[gnu::always_inline]] static __m512i value(__m512i low, __m512i high) {
        return _mm512_or_si512(low, _mm512_and_si512(high, splat(0x30303030)));
    }
    template <typename Emit>
    [[gnu::always_inline]] static void weights(Rows rows, Emit emit) {
        for (int half = 0; half < 2; ++half) {
            __m512i high[8], v[8], w[8];
            transpose_chunks(rows + (128 + 32 * half), high);
#pragma GCC unroll 2
            for (int part = 0; part < 2; ++part) {
                transpose_chunks(rows + (64 * half + 32 * part), v);
#pragma GCC unroll 8
                for (int i = 0; i < 8; ++i)
                    w[i] = value(low_nibbles(v[i]), _mm512_slli_epi32(high[i], part == 0 ? 4 : 2));
                emit(4 * half + part, w);
#pragma GCC unroll 8
                for (int i = 0; i < 8; ++i)
                    w[i] = value(high_nibbles(v[i]), part == 0 ? high[i] : _mm512_srli_epi32(high[i], 2));
                emit(4 * half + 2 + part, w);
            }
        }
    }
};

struct FormatQ2_K : Super<84, 16, 0> {
    [[gnu::always_inline]] static void scales(Rows rows, Scales256 &s) {
        __m512i v[4], tail[4];
        transpose_chunk(rows, v);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            four_scales(low_nibbles(v[i]), 0, s.scale + 4 * i);
            s.minimum[2 * i] = word_pair(high_nibbles(v[i]), 0);
            s.minimum[2 * i + 1] = word_pair(high_nibbles(v[i]), 1);
        }
        transpose_chunk(rows + 68, tail);
        s.d = low_half_scales(tail[3]);
        s.dmin = high_half_scales(tail[3]);
    }
    template <typename Emit>
    [[gnu::always_inline]] static void weights(Rows rows, Emit emit) {
        for (int half = 0; half < 2; ++half) {
            __m512i v[8], w[8];
            transpose_chunks(rows + (16 + 32 * half), v);
            for (int j = 0; j < 4; ++j) {
#pragma GCC unroll 8
                for (int i = 0; i < 8; ++i) {
                    w[i] = _mm512_and_si512(v[i], splat(0x03030303));
                    v[i] = _mm512_srli_epi32(v[i], 2);
                }
                emit(4 * half + j, w);
            }
        }
    }
};

struct FormatQ3_K : Super<110, 16, 4> {
    [[gnu::always_inline]] static void scales(Rows rows, Scales256 &s) {
        __m512i v[4];
        transpose_chunk(rows + 92, v);
        const auto high = [&](__m512i shifted) { return _mm512_and_si512(shifted, splat(0x30303030)); };
        four_scales(_mm512_or_si512(low_nibbles(v[1]), high(_mm512_slli_epi32(v[3], 4))), 32, s.scale);
        four_scales(_mm512_or_si512(low_nibbles(v[2]), high(_mm512_slli_epi32(v[3], 2))), 32, s.scale + 4);
        four_scales(_mm512_or_si512(high_nibbles(v[1]), high(v[3])), 32, s.scale + 8);
        four_scales(_mm512_or_si512(high_nibbles(v[2]), high(_mm512_srli_epi32(v[3], 2))), 32, s.scale + 12);
        s.d = gather_scales(rows + 108);
    }
    template <typename Emit>
    [[gnu::always_inline]] static void weights(Rows rows, Emit emit) {
        __m512i high[8];  // shifted so that the bit of the next group is bit 0
        transpose_chunks(rows, high);
        for (int half = 0; half < 2; ++half) {
            __m512i v[8], w[8];
            transpose_chunks(rows + (32 + 32 * half), v);
            for (int j = 0; j < 4; ++j) {
#pragma GCC unroll 8
                for (int i = 0; i < 8; ++i) {
                    const __m512i bit = _mm512_and_si512(_mm512_slli_epi32(high[i], 2), splat(0x04040404));
                    w[i] = _mm512_or_si512(_mm512_and_si512(v[i], splat(0x03030303)), bit);
                    v[i] = _mm512_srli_epi32(v[i], 2);
                    high[i] = _mm512_srli_epi32(high[i], 1);
                }
                emit(4 * half + j, w);
            }
        }
    }
};

struct FormatIQ4_XS : Super<136, 32, 128> {
    [[gnu::always_inline]] static void scales(Rows rows, Scales256 &s) {
        __m512i v[4];
        transpose_chunk(rows, v);
        s.d = low_half_scales(v[0]);
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) {
            const unsigned low_at = static_cast<unsigned>(4 * j), high_at = static_cast<unsigned>(16 + 2 * j);
            const __m512i low = _mm512_and_si512(_mm512_srli_epi32(v[1], low_at), splat(15));
            const __m512i high = _mm512_and_si512(_mm512_srli_epi32(v[0], high_at), splat(3));
            s.scale[j] = _mm512_sub_epi32(_mm512_or_si512(low, _mm512_slli_epi32(high, 4)), splat(32));
        }
    }
    template <typename Emit>
    [[gnu::always_inline]] static void weights(Rows rows, Emit emit) {
        for (int j = 0; j < 8; ++j) {
            __m512i v[4], w[8];
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

[[gnu::always_inline]] inline void unit_scales(__m512i (&scale)[16]) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) scale[j] = splat(1);
}

struct FormatTQ2_0 : Super<66, 32, 1> {
    [[gnu::always_inline]] static void scales(Rows rows, Scales256 &s) {
        unit_scales(s.scale);
        s.d = gather_scales(rows + 64);
    }
    template <typename Emit>
    [[gnu::always_inline]] static void weights(Rows rows, Emit emit) {
        for (int half = 0; half < 2; ++half) {
            __m512i v[8], w[8];
            transpose_chunks(rows + 32 * half, v);
            for (int j = 0; j < 4; ++j) {
#pragma GCC unroll 8
                for (int i = 0; i < 8; ++i) {
                    w[i] = _mm512_and_si512(v[i], splat(0x03030303));
                    v[i] = _mm512_srli_epi32(v[i], 2);
                }
                emit(4 * half + j, w);
            }
        }
    }
};

struct FormatTQ1_0 : Super<54, 32, 1> {
    [[gnu::always_inline]] static void scales(Rows rows, Scales256 &s) {
        unit_scales(s.scale);
        s.d = gather_scales(rows + 52);
    }
    // The leading trit of each byte; the byte is tripled so that the next trit leads.
    [[gnu::always_inline]] static __m512i next_trit(__m512i &x) {
        const __m512i three = _mm512_set1_epi16(3), low = splat(0x00ff00ff), high = splat(0xff00ff00);
        const __m512i even = _mm512_mullo_epi16(_mm512_and_si512(x, low), three);
        const __m512i odd = _mm512_mullo_epi16(_mm512_srli_epi16(x, 8), three);
        const __m512i trits = _mm512_or_si512(_mm512_srli_epi16(even, 8), _mm512_and_si512(odd, high));
        x = _mm512_or_si512(_mm512_and_si512(even, low), _mm512_slli_epi16(odd, 8));
        return trits;
    }
    template <typename Emit>
    [[gnu::always_inline]] static void weights(Rows rows, Emit emit) {
        __m512i v[8], w[8], tail[4], last[4];
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

}  // namespace
}  // namespace runnel::kernels::cpu
