// Products of rows with blocks of 32 weights and up to four tokens, for AVX-512: one row at a time (linear_row.h) with 64
// columns in a register, where other formats, and more tokens, have 16 rows side by side (linear_tile.h).
//
// The transposition of rows side by side costs shuffles (Q8_0: 32 per 544 bytes), the sums across a row fewer (24), and the
// fifth bits of 64 weights are a mask register. The order of all float operations is that of the tiles: lane j holds what they
// keep in their j-th partial sum of the row.
#pragma once

#include "kernels/cpu/linear_packed.h"
#include "kernels/cpu/linear_row.h"
#include "kernels/cpu/linear_tile.h"

namespace runnel::kernels::cpu {
namespace {

// A record's blocks of a row.
constexpr int kRecordBlocks = kRecordCols / 32;
template <typename Format>
constexpr int64_t kRecordBytes = kRecordBlocks *Format::kBlockBytes;

// The weights of two blocks, as unsigned bytes: w + Format::kOffset.
template <typename Format>
[[gnu::always_inline]] inline Ints weights_of_pair(const std::byte *block) {
    constexpr int64_t kBytes = Format::kBlockBytes;
    if constexpr (Format::kLargest == 255) {
        const auto load = [](const std::byte *from) __attribute__((always_inline)) {
            return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from));
        };
        const Ints first = _mm512_castsi256_si512(load(block + kBytes - 32));
        return _mm512_inserti64x4(first, load(block + 2 * kBytes - 32), 1) ^ splat(0x80808080);
    } else {
        // Low nibbles are the first 16 weights of a block, high ones the others; then come the fifth bits.
        const auto load = [](const std::byte *from) __attribute__((always_inline)) {
            return _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
        };
        const Ints first = _mm512_broadcast_i32x4(load(block + kBytes - 16));
        const Ints both = _mm512_mask_broadcast_i32x4(first, 0xff00, load(block + 2 * kBytes - 16));
        const Ints nibbles =
            _mm512_srlv_epi64(both, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4)) & splat(0x0f0f0f0f);
        if constexpr (Format::kLargest == 15) return nibbles;
        uint32_t bits[2];
        __builtin_memcpy(&bits[0], block + kBytes - 20, sizeof bits[0]);
        __builtin_memcpy(&bits[1], block + 2 * kBytes - 20, sizeof bits[1]);
        const auto fifth = static_cast<__mmask64>(uint64_t{bits[1]} << 32 | bits[0]);
        return _mm512_mask_add_epi8(nibbles, fifth, nibbles, splat(0x10101010));
    }
}

// The integers of the eight groups of 32 columns: sum(w q). w: the weights of pairs of blocks.
[[gnu::always_inline]] inline __m256i products_with(const Ints (&w)[4], const int8_t *q) {
    Ints sums[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
        sums[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w[i], _mm512_load_si512(q + 64 * i));
    const Ints parts =
        sums_of_parts(sums);  // groups 0 2 4 6 in parts 0 and 1, groups 1 3 5 7 in parts 2 and 3
    const __m256i all = _mm256_add_epi32(_mm512_castsi512_si256(_mm512_shuffle_i32x4(parts, parts, 0x08)),
                                         _mm512_castsi512_si256(_mm512_shuffle_i32x4(parts, parts, 0x0d)));
    return _mm256_permutevar8x32_epi32(all, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// What products_with() lacks: -kOffset * sum(q), from -128 * sum(q).
template <typename Format>
[[gnu::always_inline]] inline __m256i correction(const PackedQ8x32 &record) {
    if constexpr (kHasMinimum<Format>) return _mm256_setzero_si256();
    const __m256i start = _mm256_load_si256(reinterpret_cast<const __m256i *>(record.start));
    return _mm256_srai_epi32(start, 7 - __builtin_ctz(Format::kOffset | 256));
}

// The scales of eight blocks, and their minimums, if the format has them.
template <typename Format>
struct RowScales {
    __m256 d, m;

    [[gnu::always_inline]] explicit RowScales(const std::byte *blocks) {
        const __m128i first = four(blocks), last = four(blocks + 4 * kBytes);
        if constexpr (kHasMinimum<Format>) {
            const __m128i low = _mm_set1_epi32(0xffff);
            d = _mm256_cvtph_ps(_mm_packus_epi32(_mm_and_si128(first, low), _mm_and_si128(last, low)));
            m = _mm256_cvtph_ps(_mm_packus_epi32(_mm_srli_epi32(first, 16), _mm_srli_epi32(last, 16)));
        } else {
            const __m128i up = _mm_setr_epi32(16, 0, 16, 0);
            const auto halves = [&](__m128i v) __attribute__((always_inline)) {
                return _mm_srli_epi32(_mm_sllv_epi32(v, up), 16);
            };
            d = _mm256_cvtph_ps(_mm_packus_epi32(halves(first), halves(last)));
            m = _mm256_setzero_ps();
        }
    }

  private:
    static constexpr int64_t kBytes = Format::kBlockBytes;
    static constexpr int kSecond = Format::kBlockBytes / 4;

    // The dwords with the scales of four blocks. From an even block on, they are dword 0 and dword kSecond (without minimums,
    // the upper half of it). No load reaches beyond the eighth block.
    [[gnu::always_inline]] static __m128i four(const std::byte *blocks) {
        if constexpr (kSecond < 8) {
            const auto load = [](const std::byte *from) __attribute__((always_inline)) {
                return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from));
            };
            const __m256i order = _mm256_setr_epi32(0, kSecond, 8, 8 + kSecond, 0, 0, 0, 0);
            return _mm256_castsi256_si128(
                _mm256_permutex2var_epi32(load(blocks), order, load(blocks + 2 * kBytes)));
        } else {
            const Ints order =
                _mm512_setr_epi32(0, kSecond, 16, 16 + kSecond, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
            return _mm512_castsi512_si128(_mm512_permutex2var_epi32(_mm512_loadu_si512(blocks), order,
                                                                    _mm512_loadu_si512(blocks + 2 * kBytes)));
        }
    }
};

// A row's products with `count` tokens, which are stored `out_stride` apart. records: of the first token; those of a token
// are `tokens` apart.
template <typename Format, int count>
[[gnu::always_inline]] inline void multiply_row(const std::byte *row, int64_t cols,
                                                const PackedQ8x32 *records, int64_t tokens, float *out,
                                                int64_t out_stride, Ahead ahead) {
    __m256 sums[count];
#pragma GCC unroll 4
    for (int t = 0; t < count; ++t) sums[t] = _mm256_setzero_ps();
    // there: the groups of 32 columns that exist.
    const auto add = [&](const std::byte *blocks, __mmask8 there) __attribute__((always_inline)) {
        Ints w[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) w[i] = weights_of_pair<Format>(blocks + 2 * i * Format::kBlockBytes);
        const RowScales<Format> scales(blocks);
#pragma GCC unroll 4
        for (int t = 0; t < count; ++t) {
            const PackedQ8x32 &record = records[t];
            const __m256 factor = _mm256_mul_ps(scales.d, _mm256_load_ps(record.scale));
            const __m256i total = _mm256_add_epi32(correction<Format>(record), products_with(w, record.q));
            sums[t] = _mm256_mask3_fmadd_ps(factor, _mm256_cvtepi32_ps(total), sums[t], there);
            if constexpr (kHasMinimum<Format>)
                sums[t] = _mm256_mask3_fmadd_ps(scales.m, _mm256_load_ps(record.scaled_sum), sums[t], there);
        }
    };
    int64_t left = cols;
    for (; left >= kRecordCols; left -= kRecordCols, row += kRecordBytes<Format>, records += tokens) {
        ahead.prefetch<kRecordBytes<Format>>(row);
        add(row, 0xff);
    }
    if (left > 0) {
        std::byte padded[kRecordBytes<Format>] = {};  // the last blocks of the row, then zeros
        __builtin_memcpy(padded, row, static_cast<size_t>(left / 32 * Format::kBlockBytes));
        add(padded, static_cast<__mmask8>((1u << left / 32) - 1));
    }
#pragma GCC unroll 4
    for (int t = 0; t < count; ++t) out[t * out_stride] = folded(sums[t]);
}

// y = W x for all tokens of the task.
template <typename Format, int count>
inline void multiply_rows32(const RowRange &rows, const Task &task) {
    const auto *records = static_cast<const PackedQ8x32 *>(task.packed);
    for_each_row(
        rows, [&](const std::byte *row, int64_t r, Ahead ahead) __attribute__((always_inline)) {
            multiply_row<Format, count>(row, task.cols, records, count, task.out + r, task.out_stride, ahead);
        });
}

}  // namespace
}  // namespace runnel::kernels::cpu
