// Products of codebook blocks with few tokens, for AVX-512: one row at a time with 64 columns in a register,
// where the other formats have 16 rows side by side (linear_tile.h).
//
// Codebook entries are loaded eight bytes at a time, so rows side by side would need a transposition after
// every look-up; a single row needs none. Its signs are a 64-bit mask that negates activations instead of
// weights, and weights without signs are the unsigned operand that vpmaddubsw needs. (2 * 62 * 127 fits 16
// bits.) Integer scales multiply the 16-bit pairs while they are widened to 32 bits. At the end the sums of
// sixteen rows are added across, all at once. IQ1's weights 8 e - 8 +- 1 are multiplied as 8 e + 1 +- 1, which
// is unsigned; 9 times the sum of the activations is then subtracted.
#pragma once

#include "kernels/cpu/linear_grid.h"
#include "kernels/cpu/linear_packed.h"
#include "kernels/cpu/linear_tile.h"

namespace runnel::kernels::cpu {
namespace {

// Lane i is the sum of v[i]'s lanes.
[[gnu::always_inline]] inline Ints sums_across(const Ints (&v)[16]) {
    Ints pairs[8], fours[4];  // of rows {i, i + 8} and of rows {i, i + 4, i + 8, i + 12}
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
        pairs[i] = add32(interleave_low32(v[i], v[i + 8]), interleave_high32(v[i], v[i + 8]));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
        fours[i] = add32(interleave_low32(pairs[i], pairs[i + 4]), interleave_high32(pairs[i], pairs[i + 4]));
    // Each part of 128 bits of fours[i] has sums of rows i, i + 4, i + 8, i + 12. The four parts are now added.
    const Ints low =
        add32(_mm512_shuffle_i32x4(fours[0], fours[1], 0x44), _mm512_shuffle_i32x4(fours[0], fours[1], 0xee));
    const Ints high =
        add32(_mm512_shuffle_i32x4(fours[2], fours[3], 0x44), _mm512_shuffle_i32x4(fours[2], fours[3], 0xee));
    const Ints all = add32(_mm512_shuffle_i32x4(low, high, 0x88), _mm512_shuffle_i32x4(low, high, 0xdd));
    // Part i of `all` has the sums of rows i, i + 4, i + 8, i + 12.
    const Ints order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, all);
}

// The 256 columns of one row's block, unpacked.
struct GridRow {
    alignas(64) uint16_t index[64];  // codebook indices; codebooks of eight weights use 32
    alignas(32) uint64_t signs[4];   // bit k of signs[c]: weight 64 c + k is negative (IQ1: shifted up)
    __m256i scale;                   // integer scales of 16 columns each, as 16-bit numbers
};

[[gnu::always_inline]] inline __m256i load32(const void *p) {
    return _mm256_loadu_si256(static_cast<const __m256i *>(p));
}
[[gnu::always_inline]] inline uint64_t load8(const void *p) {
    uint64_t bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    return bits;
}

// 2 s + 1
[[gnu::always_inline]] inline __m256i odd_scales(__m256i s) {
    return _mm256_or_si256(_mm256_add_epi16(s, s), _mm256_set1_epi16(1));
}
// s from 16 nibbles, the first in the lowest.
[[gnu::always_inline]] inline __m256i nibble_scales(uint64_t nibbles) {
    constexpr uint64_t bytes = 0x0f0f0f0f0f0f0f0f;
    const uint64_t low = _pdep_u64(nibbles, bytes), high = _pdep_u64(nibbles >> 32, bytes);
    return odd_scales(
        _mm256_cvtepu8_epi16(_mm_set_epi64x(static_cast<long long>(high), static_cast<long long>(low))));
}
// s from the upper four bits of eight words, for two groups of 16 each.
[[gnu::always_inline]] inline __m256i top_scales(__m256i words) {
    const __m256i s = _mm256_srli_epi32(words, 28);
    return odd_scales(_mm256_or_si256(s, _mm256_slli_epi32(s, 16)));
}

// Adds the eighth sign to the seven signs in each byte (gguf::eight_signs).
[[gnu::always_inline]] inline __m256i eighth_of_bytes(__m256i seven) {
    const char p = static_cast<char>(0x80);  // the parity of four bits, at the place of the eighth sign
    const __m256i parity =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, p, p, 0, p, 0, 0, p, p, 0, 0, p, 0, p, p, 0));
    const __m256i low = _mm256_and_si256(seven, _mm256_set1_epi8(15)),
                  high = _mm256_and_si256(_mm256_srli_epi16(seven, 4), _mm256_set1_epi8(15));
    return _mm256_or_si256(
        seven, _mm256_xor_si256(_mm256_shuffle_epi8(parity, low), _mm256_shuffle_epi8(parity, high)));
}
// All signs of eight words that hold four groups of seven signs each, with the eighth sign of every group.
[[gnu::always_inline]] inline __m256i eighth_of_words(__m256i w) {
    const auto bits = [&](int k) {
        return _mm256_and_si256(_mm256_slli_epi32(w, k), _mm256_set1_epi32(0x7f << (8 * k)));
    };
    return eighth_of_bytes(
        _mm256_or_si256(_mm256_or_si256(bits(0), bits(1)), _mm256_or_si256(bits(2), bits(3))));
}

[[gnu::always_inline]] inline void store_signs(GridRow &row, __m256i signs) {
    _mm256_store_si256(reinterpret_cast<__m256i *>(row.signs), signs);
}
[[gnu::always_inline]] inline void store_indices(uint16_t *to, Ints indices) {
    _mm512_store_si512(to, indices);
}

// Stores no indices: they are bytes and are read from the block itself.
[[gnu::always_inline]] inline void read_row(const gguf::BlockIQ2_XXS &b, GridRow &row) {
    const Ints groups = _mm512_loadu_si512(b.qs);
    const __m256i words = _mm512_cvtepi64_epi32(_mm512_srli_epi64(groups, 32));
    store_signs(row, eighth_of_words(words));
    row.scale = top_scales(words);
}

[[gnu::always_inline]] inline void read_row(const gguf::BlockIQ2_XS &b, GridRow &row) {
    const Ints words = _mm512_loadu_si512(b.qs);
    store_indices(row.index, words & splat(0x01ff01ff));
    store_signs(row, eighth_of_bytes(_mm512_cvtepi16_epi8(right16(words, 9))));
    row.scale = nibble_scales(load8(b.scales));
}

[[gnu::always_inline]] inline void read_row(const gguf::BlockIQ2_S &b, GridRow &row) {
    // The high bits of index i: bits 2 (i % 4) and 2 (i % 4) + 1 of byte i / 4, moved to bits 8 and 9.
    const __m128i high = _mm_cvtsi64_si128(static_cast<long long>(load8(b.qh)));
    const Ints fours = _mm512_cvtepu8_epi64(high);  // one byte for four entries of 16 bits
    const auto even = static_cast<long long>(0x8000800080008000),
               odd = static_cast<long long>(0x8008800880088008);
    const Ints spread =
        _mm512_shuffle_epi8(fours, _mm512_set_epi64(odd, even, odd, even, odd, even, odd, even));
    const Ints upper = _mm512_sllv_epi16(spread, _mm512_set1_epi64(0x0002000400060008)) & splat(0x03000300);
    store_indices(row.index, upper | _mm512_cvtepu8_epi16(load32(b.qs)));
    store_signs(row, load32(b.signs));
    row.scale = nibble_scales(load8(b.scales));
}

[[gnu::always_inline]] inline void read_row(const gguf::BlockIQ3_XXS &b, GridRow &row) {
    const __m256i words = load32(b.signs_scale);
    store_signs(row, eighth_of_words(words));
    row.scale = top_scales(words);
}

[[gnu::always_inline]] inline void read_row(const gguf::BlockIQ3_S &b, GridRow &row) {
    const uint64_t ninth = load8(b.qh);
    const auto indices = [&](const uint8_t *qs, uint64_t bits) {
        const Ints low = _mm512_cvtepu8_epi16(load32(qs));
        return _mm512_mask_add_epi16(low, static_cast<__mmask32>(bits), low, splat(0x01000100));
    };
    store_indices(row.index, indices(b.qs, ninth));
    store_indices(row.index + 32, indices(b.qs + 32, ninth >> 32));
    store_signs(row, load32(b.signs));
    // One nibble is the scale of two groups of 16.
    const uint64_t eight = _pdep_u64(word(b.scales), 0x0f0f0f0f0f0f0f0f);
    const __m128i s = _mm_cvtsi64_si128(static_cast<long long>(eight));
    row.scale = odd_scales(_mm256_cvtepu8_epi16(_mm_unpacklo_epi8(s, s)));
}

[[gnu::always_inline]] inline void read_row(const gguf::BlockIQ1_S &b, GridRow &row) {
    const __m128i words = load16(reinterpret_cast<const std::byte *>(b.qh));
    const __m256i twice =
        _mm256_set_m128i(_mm_unpackhi_epi16(words, words), _mm_unpacklo_epi16(words, words));
    row.scale = odd_scales(_mm256_and_si256(_mm256_srli_epi16(twice, 12), _mm256_set1_epi16(7)));
    // The high bits of index i: the three bits of word i / 4 from bit 3 (i % 4) on.
    const Ints fours = _mm512_cvtepu16_epi64(words);
    const Ints spread = _mm512_shuffle_epi8(
        fours,
        _mm512_set_epi64(0x0908090809080908, 0x0100010001000100, 0x0908090809080908, 0x0100010001000100,
                         0x0908090809080908, 0x0100010001000100, 0x0908090809080908, 0x0100010001000100));
    const Ints upper = _mm512_srlv_epi16(spread, _mm512_set1_epi64(0x0009000600030000)) & splat(0x00070007);
    store_indices(row.index, left16(upper, 8) | _mm512_cvtepu8_epi16(load32(b.qs)));
    const __m256i up = _mm256_cmpgt_epi32(_mm256_cvtepi16_epi32(words), _mm256_set1_epi32(-1));
    store_signs(row, up);
}

[[gnu::always_inline]] inline void read_row(const gguf::BlockIQ1_M &b, GridRow &row) {
    const uint64_t s = _pext_u64(load8(b.scales), 0x0fff0fff0fff0fff);
    constexpr uint64_t threes = 0x0707070707070707;
    row.scale = odd_scales(_mm256_cvtepu8_epi16(_mm_set_epi64x(
        static_cast<long long>(_pdep_u64(s >> 24, threes)), static_cast<long long>(_pdep_u64(s, threes)))));
    const __m256i pairs = _mm256_cvtepu8_epi16(load16(reinterpret_cast<const std::byte *>(b.qh)));
    const __m256i nibbles =
        _mm256_and_si256(_mm256_or_si256(pairs, _mm256_slli_epi16(pairs, 4)), _mm256_set1_epi8(15));
    const Ints upper = _mm512_cvtepu8_epi16(nibbles) & splat(0x00070007);
    store_indices(row.index, left16(upper, 8) | _mm512_cvtepu8_epi16(load32(b.qs)));
    // The fourth bit of each nibble tells whether eight columns are shifted down.
    const uint64_t down = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_slli_epi16(nibbles, 4)));
    for (int c = 0; c < 4; ++c) row.signs[c] = _pdep_u64(~down >> (8 * c), 0x0101010101010101) * 255;
}

// Columns 64 c ... 64 c + 63 of a row, without signs.
template <class Entry, size_t kCount, class Index>
[[gnu::always_inline]] inline Ints grid_entries(const std::array<Entry, kCount> &grid, Index index) {
    const auto two = [&](int i) __attribute__((always_inline)) {
        if constexpr (sizeof(Entry) == 4) {
            const auto at = [&](int k) { return static_cast<int>(grid[index[4 * i + k]]); };
            return _mm_setr_epi32(at(0), at(1), at(2), at(3));
        } else {
            const auto at = [&](int k) { return static_cast<long long>(grid[index[2 * i + k]]); };
            return _mm_set_epi64x(at(1), at(0));
        }
    };
    const __m256i low = _mm256_set_m128i(two(1), two(0)), high = _mm256_set_m128i(two(3), two(2));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
// A view of every second group of four bytes.
struct BytesApart {
    const uint8_t *bytes;
    [[gnu::always_inline]] uint8_t operator[](int i) const { return bytes[i + i / 4 * 4]; }
};
[[gnu::always_inline]] inline Ints grid_entries(const gguf::BlockIQ2_XXS &b, const GridRow &, int c) {
    return grid_entries(gguf::kGridIQ2_XXS, BytesApart{reinterpret_cast<const uint8_t *>(b.qs) + 16 * c});
}
[[gnu::always_inline]] inline Ints grid_entries(const gguf::BlockIQ2_XS &, const GridRow &row, int c) {
    return grid_entries(gguf::kGridIQ2_XS, &row.index[8 * c]);
}
[[gnu::always_inline]] inline Ints grid_entries(const gguf::BlockIQ2_S &, const GridRow &row, int c) {
    return grid_entries(gguf::kGridIQ2_S, &row.index[8 * c]);
}
[[gnu::always_inline]] inline Ints grid_entries(const gguf::BlockIQ3_XXS &b, const GridRow &, int c) {
    return grid_entries(gguf::kGridIQ3_XXS, b.qs + 16 * c);
}
[[gnu::always_inline]] inline Ints grid_entries(const gguf::BlockIQ3_S &, const GridRow &row, int c) {
    return grid_entries(gguf::kGridIQ3_S, &row.index[16 * c]);
}
[[gnu::always_inline]] inline Ints grid_entries(const gguf::BlockIQ1_S &, const GridRow &row, int c) {
    return grid_entries(gguf::kGridIQ1, &row.index[8 * c]);
}
[[gnu::always_inline]] inline Ints grid_entries(const gguf::BlockIQ1_M &, const GridRow &row, int c) {
    return grid_entries(gguf::kGridIQ1, &row.index[8 * c]);
}

// totals[t]: lane r is the sum of integer scale * weight * activation over row r's block. Calls prefetch(j)
// for j = 0 ... 7 along the way.
template <class Block, int count, typename Prefetch>
[[gnu::always_inline]] inline void grid_totals(Rows rows, const PackedQ8x256 *a, Ints (&totals)[count],
                                               Prefetch prefetch) {
    constexpr bool shifted = GridBlock<Block>::kSigns == Signs::Shift;
    Ints sums[count][16];
    for (int r = 0; r < 16; ++r) {
        const Block &b = *reinterpret_cast<const Block *>(rows[r]);
        if (r % 2 == 0) prefetch(r / 2);
        GridRow g;
        read_row(b, g);
        Ints row[count];
#pragma GCC unroll 4
        for (int t = 0; t < count; ++t) {
            row[t] = _mm512_setzero_si512();
            if constexpr (shifted) {
                const __m256i sum16 = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(a[t].sum16));
                const __m256i nine = _mm256_mullo_epi16(g.scale, _mm256_set1_epi16(-9));
                row[t] = _mm512_zextsi256_si512(_mm256_madd_epi16(nine, sum16));
            }
        }
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
            Ints w = grid_entries(b, g, c);
            const __mmask64 signs = g.signs[c];
            if constexpr (shifted) {
                w = left16(w, 3);  // bytes become 0, 8 or 16: no bit moves into the next byte
                w = _mm512_mask_add_epi8(w, signs, w, splat(0x02020202));
            }
            // Each of the scales of groups 4 c ... 4 c + 3, repeated for eight pairs of columns.
            const Ints at = _mm512_add_epi16(
                _mm512_set1_epi16(static_cast<short>(4 * c)),
                _mm512_set_epi64(0x0003000300030003, 0x0003000300030003, 0x0002000200020002,
                                 0x0002000200020002, 0x0001000100010001, 0x0001000100010001, 0, 0));
            const Ints scale = _mm512_permutexvar_epi16(at, _mm512_castsi256_si512(g.scale));
#pragma GCC unroll 4
            for (int t = 0; t < count; ++t) {
                Ints x = _mm512_loadu_si512(a[t].q + 64 * c);
                if constexpr (!shifted) x = _mm512_mask_sub_epi8(x, signs, _mm512_setzero_si512(), x);
                row[t] = _mm512_dpwssd_epi32(row[t], _mm512_maddubs_epi16(w, x), scale);
            }
        }
#pragma GCC unroll 4
        for (int t = 0; t < count; ++t) sums[t][r] = row[t];
    }
#pragma GCC unroll 4
    for (int t = 0; t < count; ++t) totals[t] = sums_across(sums[t]);
}

}  // namespace
}  // namespace runnel::kernels::cpu
