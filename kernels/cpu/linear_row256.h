// Products of rows with blocks of 256 weights and one or two tokens, for AVX-512: one row at a time (linear_row.h) with 64
// columns in a register, where other formats, and more tokens, have 16 rows side by side (linear_tile.h).
//
// Block b of a row belongs to the contract's partial sum b mod 8 (README.md), so eight blocks are the lanes of one vector of
// float operations. What is left of a row, one to four blocks, shares a vector with that of the next rows, and so do whole rows of
// one to four blocks, which experts often have. Sums of four columns fit 16 bits (at most 63 * 127 * 4), so vpdpwssd multiplies pairs
// of them by the integer scales, and what a block leaves in sixteen lanes is added across once.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/linear_packed.h"
#include "kernels/cpu/linear_row.h"
#include "kernels/cpu/linear_tile.h"

namespace runnel::kernels::cpu {
namespace {

constexpr int kRowBlocks = 8;  // blocks whose float operations are done together
// Groups of a block that have an integer scale each: 16 in Q6_K, else 8.
template <typename Format>
constexpr int kRowGroups = 256 / Format::kStep;

// A token's activations as the kernel reads them, copied once for all rows of a thread. What is left after a multiple of kRowBlocks
// blocks is repeated, for the rows that share a vector, until kRowBlocks places are full.
template <typename Format>
struct RowInput {
    int8_t *q;      // [block][256], in the order of weights_of_half()
    int16_t *sums;  // [block][kRowGroups]: sum(q) of each group with minimums, -16 sum(q) without
    float *scale;   // [block]

    RowInput() = default;
    // records: of the token; those of the next block are `tokens` later. memory: where the copy goes; set to the end of it.
    RowInput(const PackedQ8x256 *records, int64_t tokens, int64_t blocks, std::byte *&memory) {
        const int64_t places = (blocks + kRowBlocks - 1) / kRowBlocks * kRowBlocks;
        const auto take = [&](auto *&array, int64_t count) {
            array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(memory);
            memory += count * static_cast<int64_t>(sizeof *array);
        };
        take(q, places * 256);
        take(sums, places * kRowGroups<Format>);
        take(scale, places);
        memory += -(places * 4) & 63;
        for (int64_t place = 0, b = 0; place < places; ++place) {
            const PackedQ8x256 &record = records[b * tokens];
            for (int i = 0; i < 8; ++i)
                __builtin_memcpy(q + 256 * place + 32 * i, record.q + 32 * column_group(i), 32);
            for (int i = 0; i < kRowGroups<Format>; ++i)
                sums[place * kRowGroups<Format> + i] =
                    kHasMinimum<Format> ? record.sum32[i] : static_cast<int16_t>(-16 * record.sum16[i]);
            scale[place] = record.scale;
            if (++b == blocks) b = blocks / kRowBlocks * kRowBlocks;
        }
    }

  private:
    // Which 32 columns of a block come i-th.
    static int column_group(int i) { return kHasMinimum<Format> ? (i & 4) | (i & 1) << 1 | (i & 2) >> 1 : i; }
};

// Where the blocks that are multiplied together are: up to eight of a row, or a few of each of several rows. Where there is no
// block, the address is that of the first one.
template <typename Format>
struct BlocksOfRow {
    const std::byte *from;
    int count;
    [[gnu::always_inline]] const std::byte *operator[](int i) const {
        return from + (i < count ? i : 0) * Format::kBlockBytes;
    }
};
struct BlocksOfRows {
    const std::byte *from;
    const int64_t *offsets;  // [kRowBlocks], from there
    int count;
    [[gnu::always_inline]] const std::byte *operator[](int i) const { return from + offsets[i]; }
};

// 32 bytes in both halves of a register.
[[gnu::always_inline]] inline Ints both_halves(const std::byte *bytes) {
    return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(bytes)));
}
[[gnu::always_inline]] inline Ints halves(int first, int second) {
    return _mm512_setr_epi32(first, first, first, first, first, first, first, first, second, second, second,
                             second, second, second, second, second);
}
// a | (b & mask)
[[gnu::always_inline]] inline Ints or_masked(Ints a, Ints b, Ints mask) {
    return _mm512_ternarylogic_epi64(a, b, mask, 0xf8);
}

// The sums of the four lanes of each part of 128 bits of v[0] and v[1].
[[gnu::always_inline]] inline __m256i sums_of_each_part(const Ints (&v)[2]) {
    const Ints two = add32(interleave_low32(v[0], v[1]), interleave_high32(v[0], v[1]));
    const Ints one = add32(two, _mm512_shuffle_epi32(two, static_cast<_MM_PERM_ENUM>(0x4e)));
    return _mm512_castsi512_si256(
        _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0), one));
}

// Lane by lane, the sums of the four parts of 128 bits of `first`, then those of `last`.
[[gnu::always_inline]] inline __m256i sums_of_two(Ints first, Ints last) {
    const Ints two = add32(_mm512_shuffle_i32x4(first, last, 0x44), _mm512_shuffle_i32x4(first, last, 0xee));
    return _mm512_castsi512_si256(_mm512_permutexvar_epi64(
        _mm512_setr_epi64(0, 1, 4, 5, 0, 0, 0, 0),
        add32(two, _mm512_permutexvar_epi64(_mm512_setr_epi64(2, 3, 2, 3, 6, 7, 6, 7), two))));
}

// --- Q4_K and Q5_K: 6-bit scales and minimums of groups of 32, d and dmin --------------------------------------------------

template <typename Format, typename Blocks>
struct RowScales256 {
    __m256 d, dmin;
    [[gnu::always_inline]] explicit RowScales256(const Blocks &blocks) {
        Ints heads[2];  // the first 16 bytes of four blocks: d, dmin, 12 bytes of scales and minimums
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            const auto head = [&](int i) __attribute__((always_inline)) {
                return load16(blocks[4 * h + i]);
            };
            Ints v = _mm512_castsi128_si512(head(0));
            v = _mm512_mask_broadcast_i32x4(v, 0x00f0, head(1));
            v = _mm512_mask_broadcast_i32x4(v, 0x0f00, head(2));
            heads[h] = _mm512_mask_broadcast_i32x4(v, 0xf000, head(3));
            const Ints lower =
                _mm512_shuffle_epi32(heads[h], static_cast<_MM_PERM_ENUM>(0xa5));  // dwords 1 1 2 2
            const Ints upper = _mm512_shuffle_epi32(heads[h], static_cast<_MM_PERM_ENUM>(0xff));  // dword 3
            const auto each = [](int a, int b, int c, int e) __attribute__((always_inline)) {
                return _mm512_broadcast_i32x4(_mm_setr_epi32(a, b, c, e));
            };
            const Ints low = _mm512_srlv_epi32(lower, each(0, 2, 0, 2)) &
                             each(0x3f3f3f3f, 0x30303030, 0x3f3f3f3f, 0x30303030);
            six[h] = or_masked(low, _mm512_srlv_epi32(upper, each(0, 0, 0, 4)),
                               each(0, 0x0f0f0f0f, 0, 0x0f0f0f0f));
            _mm512_store_si512(scales[4 * h], six[h]);
        }
        const Ints order = _mm512_setr_epi32(0x00080000, 0x00180010, 0x00280020, 0x00380030, 0x00090001,
                                             0x00190011, 0x00290021, 0x00390031, 0, 0, 0, 0, 0, 0, 0, 0);
        const __m256i factors = _mm512_castsi512_si256(_mm512_permutex2var_epi16(heads[0], order, heads[1]));
        d = _mm256_cvtph_ps(_mm256_castsi256_si128(factors));
        dmin = _mm256_cvtph_ps(_mm256_extracti128_si256(factors, 1));
    }

    // The scales of columns 128 c ... of block b, each for the two sums of four columns that vpdpwssd adds.
    [[gnu::always_inline]] Ints words(int b, int c) const {
        int64_t eight;
        __builtin_memcpy(&eight, scales[b], sizeof eight);
        const auto pair = [&](int group) {
            return static_cast<int>(0x80008000u | 0x00010001u * static_cast<uint32_t>(4 * c + group));
        };
        const int a = pair(0), e = pair(1), i = pair(2), m = pair(3);
        const Ints order = _mm512_setr_epi32(a, a, e, e, a, a, e, e, i, i, m, m, i, i, m, m);
        return _mm512_shuffle_epi8(_mm512_set1_epi64(eight), order);
    }

    [[gnu::always_inline]] Ints start(int, const int16_t *) const {
        return _mm512_setzero_si512();
    }

    // sum(minimum * sum(q)) of the eight blocks. sums: RowInput::sums from the first of them on.
    [[gnu::always_inline]] __m256i minimum_sums(const int16_t *sums) const {
        Ints m[2];
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h)
            m[h] = _mm512_madd_epi16(_mm512_unpackhi_epi8(six[h], _mm512_setzero_si512()),
                                     _mm512_load_si512(sums + 32 * h));
        return sums_of_each_part(m);
    }

  private:
    Ints six[2];                                   // of four blocks each, 8 scales and 8 minimums per block
    alignas(64) std::byte scales[kRowBlocks][16];  // the same bytes
};

// --- Q6_K: 8-bit scales of groups of 16, d -----------------------------------------------------------------------------------

template <typename Blocks>
struct RowScales256<FormatQ6_K, Blocks> {
    __m256 d;
    [[gnu::always_inline]] explicit RowScales256(const Blocks &from) : blocks(from) {
        __m256i v = _mm256_setzero_si256();  // d in the upper halves
#pragma GCC unroll 8
        for (int b = 0; b < kRowBlocks; ++b) {
            int last;
            __builtin_memcpy(&last, from[b] + 206, sizeof last);
            v = _mm256_mask_set1_epi32(v, static_cast<__mmask8>(1 << b), last);
        }
        v = _mm256_srli_epi32(v, 16);
        d = _mm256_cvtph_ps(_mm256_cvtepi32_epi16(v));
    }
    [[gnu::always_inline]] Ints words(int b, int c) const {
        const auto pair = [&](int group) { return 0x00010001 * (8 * c + group); };
        const Ints order =
            _mm512_setr_epi32(pair(0), pair(0), pair(4), pair(4), pair(1), pair(1), pair(5), pair(5), pair(2),
                              pair(2), pair(6), pair(6), pair(3), pair(3), pair(7), pair(7));
        return _mm512_permutexvar_epi16(order, _mm512_castsi256_si512(all(b)));
    }
    // -32 times the sum of scale * sum(q). sums: RowInput::sums of block b.
    [[gnu::always_inline]] Ints start(int b, const int16_t *sums) const {
        const __m256i scale = all(b), sixteen = _mm256_load_si256(reinterpret_cast<const __m256i *>(sums));
        return _mm512_zextsi256_si512(_mm256_dpwssd_epi32(_mm256_madd_epi16(scale, sixteen), scale, sixteen));
    }

  private:
    [[gnu::always_inline]] __m256i all(int b) const {
        return _mm256_cvtepi8_epi16(load16(blocks[b] + 192));
    }
    Blocks blocks;
};

// --- weights -----------------------------------------------------------------------------------------------------------------

// w[0] and w[1]: the columns 128 c ... 128 c + 127 of a block, as unsigned bytes w + Format::kOffset. Q6_K has them in their
// order; of Q4_K and Q5_K, whose low nibbles are 32 columns and whose high ones are the next 32, w[0] is the first and
// third 32 columns.
template <typename Format>
[[gnu::always_inline]] inline void weights_of_half(const std::byte *block, int c, Ints (&w)[2]) {
    constexpr int64_t kNibbles = Format::kOffset == 32 ? 0 : Format::kBlockBytes - 128;
    Ints nibbles = _mm512_loadu_si512(block + kNibbles + 64 * c);
    asm("" : "+v"(nibbles));  // or GCC loads them twice, each time from two cache lines
    w[0] = low_nibbles(nibbles);
    w[1] = high_nibbles(nibbles);
    if constexpr (Format::kOffset == 32) {
        const Ints bits = both_halves(block + 128 + 32 * c), two = splat(0x30303030);
        w[0] = or_masked(w[0], _mm512_sllv_epi32(bits, halves(4, 2)), two);
        w[1] = or_masked(w[1], _mm512_srlv_epi32(bits, halves(0, 2)), two);
    } else if constexpr (Format::kLargest == 31) {
        const Ints bits = both_halves(block + 16);
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {  // bits 4 c and 4 c + 2, 4 c + 1 and 4 c + 3
            const int first = 0x01010101 << i;
            const __mmask64 fifth = _mm512_test_epi8_mask(bits, halves(first << 4 * c, first << (4 * c + 2)));
            w[i] = _mm512_mask_add_epi8(w[i], fifth, w[i], splat(0x10101010));
        }
    }
}

// The sums of the sixteen lanes of v[0] to v[7].
[[gnu::always_inline]] inline __m256i sums_of_eight(const Ints (&v)[8]) {
    const Ints low[4] = {v[0], v[1], v[2], v[3]}, high[4] = {v[4], v[5], v[6], v[7]};
    return sums_of_two(sums_of_parts(low), sums_of_parts(high));
}

// total[t]: sixteen lanes whose sum is the integer I of block b, which begins at `block`, for token t. place: of its activations.
template <typename Format, int count, typename Scales>
[[gnu::always_inline]] inline void multiply_block(const std::byte *block, const Scales &scales, int b,
                                                  const RowInput<Format> (&a)[count], int64_t place,
                                                  Ints (&total)[count]) {
#pragma GCC unroll 2
    for (int t = 0; t < count; ++t) total[t] = scales.start(b, a[t].sums + kRowGroups<Format> * place);
#pragma GCC unroll 2
    for (int c = 0; c < 2; ++c) {
        Ints w[2];
        weights_of_half<Format>(block, c, w);
        const Ints factors = scales.words(b, c);
#pragma GCC unroll 2
        for (int t = 0; t < count; ++t) {
            const int8_t *q = a[t].q + 256 * place + 128 * c;
            const Ints zero = _mm512_setzero_si512();
            const Ints first = _mm512_dpbusd_epi32(zero, w[0], _mm512_load_si512(q)),
                       second = _mm512_dpbusd_epi32(zero, w[1], _mm512_load_si512(q + 64));
            total[t] = _mm512_dpwssd_epi32(total[t], _mm512_packs_epi32(first, second), factors);
        }
    }
}

// Adds the products of the blocks, lane by lane. place: of the first one's activations.
template <typename Format, int count, typename Blocks>
[[gnu::always_inline]] inline void add_blocks(const Blocks &blocks, int64_t place,
                                              const RowInput<Format> (&a)[count], __m256 (&partial)[count],
                                              Ahead ahead) {
    const RowScales256<Format, Blocks> scales(blocks);
    Ints sums[count][kRowBlocks];
    for (int b = 0; b < blocks.count; ++b) {
        const std::byte *block = blocks[b];
        ahead.prefetch<Format::kBlockBytes>(block);
        Ints total[count];
        multiply_block<Format, count>(block, scales, b, a, place + b, total);
#pragma GCC unroll 2
        for (int t = 0; t < count; ++t) sums[t][b] = total[t];
    }
    for (int b = blocks.count; b < kRowBlocks; ++b)
        for (int t = 0; t < count; ++t) sums[t][b] = _mm512_setzero_si512();
    const auto there = static_cast<__mmask8>((1 << blocks.count) - 1);
#pragma GCC unroll 2
    for (int t = 0; t < count; ++t) {
        const __m256 scale = _mm256_load_ps(a[t].scale + place);
        partial[t] = _mm256_mask3_fmadd_ps(_mm256_mul_ps(scales.d, scale),
                                           _mm256_cvtepi32_ps(sums_of_eight(sums[t])), partial[t], there);
        if constexpr (kHasMinimum<Format>)
            partial[t] = _mm256_mask3_fnmadd_ps(
                _mm256_mul_ps(scales.dmin, scale),
                _mm256_cvtepi32_ps(scales.minimum_sums(a[t].sums + kRowGroups<Format> * place)), partial[t],
                there);
    }
}

// Row by row.
template <typename Format, int count>
[[gnu::noinline]] void multiply_each_row(const RowRange &rows, const Task &task,
                                         const RowInput<Format> (&inputs)[count]) {
    const int64_t blocks = task.cols / kRecordCols;
    for_each_row(
        rows, [&](const std::byte *row, int64_t r, Ahead ahead) __attribute__((always_inline)) {
            __m256 partial[count];
#pragma GCC unroll 2
            for (int t = 0; t < count; ++t) partial[t] = _mm256_setzero_ps();
            const auto add = [&](int64_t b, int n) __attribute__((always_inline)) {
                const BlocksOfRow<Format> from{row + b * Format::kBlockBytes, n};
                add_blocks<Format, count>(from, b, inputs, partial, ahead);
            };
            int64_t b = 0;
            for (; b + kRowBlocks <= blocks; b += kRowBlocks) add(b, kRowBlocks);
            if (b < blocks) add(b, static_cast<int>(blocks - b));
#pragma GCC unroll 2
            for (int t = 0; t < count; ++t) task.out[t * task.out_stride + r] = folded(partial[t]);
        });
}

// `together` rows at once, of whose blocks `each` are left after a multiple of kRowBlocks that is not 0.
template <typename Format, int count>
[[gnu::noinline]] void multiply_row_groups(const RowRange &rows, const Task &task, int together, int each,
                                           const RowInput<Format> (&inputs)[count]) {
    const int64_t whole = task.cols / kRecordCols - each;
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const auto first = static_cast<__mmask8>((1 << each) - 1);
    int64_t offsets[kRowBlocks] = {};
    for (int i = 0; i < together * each; ++i)
        offsets[i] = i / each * rows.stride + (whole + i % each) * Format::kBlockBytes;
    for (int64_t begin = 0; begin < rows.count; begin += together) {
        const int n = static_cast<int>(rows.count - begin < together ? rows.count - begin : together);
        for (int i = n * each; i < kRowBlocks; ++i) offsets[i] = offsets[0];
        __m256 partial[kRowBlocks][count], shared[count] = {};
        for (int r = 0; r < n; ++r) {
            const std::byte *row = rows[begin + r];
            const Ahead ahead = ahead_of(rows, row);
#pragma GCC unroll 2
            for (int t = 0; t < count; ++t) partial[r][t] = _mm256_setzero_ps();
            for (int64_t b = 0; b < whole; b += kRowBlocks) {
                const BlocksOfRow<Format> from{row + b * Format::kBlockBytes, kRowBlocks};
                add_blocks<Format, count>(from, b, inputs, partial[r], ahead);
            }
            // Lane i becomes lane r * each + i of `shared`.
#pragma GCC unroll 2
            for (int t = 0; t < count; ++t)
                shared[t] = _mm256_mask_permutexvar_ps(shared[t], static_cast<__mmask8>(first << r * each),
                                                       _mm256_sub_epi32(lanes, _mm256_set1_epi32(r * each)),
                                                       partial[r][t]);
        }
        add_blocks<Format, count>(BlocksOfRows{rows[begin], offsets, n * each}, whole, inputs, shared,
                                  ahead_of(rows, rows[begin]));
        for (int r = 0; r < n; ++r)
#pragma GCC unroll 2
            for (int t = 0; t < count; ++t) {
                const __m256 sums = _mm256_mask_permutexvar_ps(
                    partial[r][t], first, _mm256_add_epi32(lanes, _mm256_set1_epi32(r * each)), shared[t]);
                task.out[t * task.out_stride + begin + r] = folded(sums);
            }
    }
}

// Rows of `each` blocks, one to four. As many rows as fit are up to eight blocks in the order of addresses, since rows follow
// each other without gaps.
template <typename Format, int count, int each>
[[gnu::noinline]] void multiply_short_rows(const RowRange &rows, const Task &task,
                                           const RowInput<Format> (&inputs)[count]) {
    constexpr int kTogether = kRowBlocks / each;
    // Three sums of each row, to the lanes from 4 r on.
    const __m256i apart = _mm256_setr_epi32(0, 1, 2, 0, 3, 4, 5, 0);
    // Where the rows' results are.
    const __m256i results = each > 2    ? _mm256_setr_epi32(0, 4, 0, 0, 0, 0, 0, 0)
                            : each == 2 ? _mm256_setr_epi32(0, 2, 4, 6, 0, 0, 0, 0)
                                        : _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    for (int64_t begin = 0; begin < rows.count; begin += kTogether) {
        const int n = static_cast<int>(std::min<int64_t>(rows.count - begin, kTogether));
        const std::byte *row = rows[begin];
        __m256 partial[count];
#pragma GCC unroll 2
        for (int t = 0; t < count; ++t) partial[t] = _mm256_setzero_ps();
        add_blocks<Format, count>(BlocksOfRow<Format>{row, n * each}, 0, inputs, partial,
                                  ahead_of(rows, row));
#pragma GCC unroll 2
        for (int t = 0; t < count; ++t) {
            // folded(), with zeros for the partial sums of blocks that are not there.
            __m256 y = _mm256_add_ps(partial[t], _mm256_setzero_ps());
            if constexpr (each == 3) y = _mm256_maskz_permutexvar_ps(0x77, apart, y);
            if constexpr (each > 2) y = _mm256_add_ps(y, _mm256_permute_ps(y, 0x4e));
            if constexpr (each > 1) y = _mm256_add_ps(y, _mm256_permute_ps(y, 0xb1));
            _mm256_mask_storeu_ps(task.out + t * task.out_stride + begin, static_cast<__mmask8>((1 << n) - 1),
                                  _mm256_permutexvar_ps(results, y));
        }
    }
}

// y = W x for all tokens of the task.
template <typename Format, int count>
inline void multiply_rows256(const RowRange &rows, const Task &task) {
    const int64_t blocks = task.cols / kRecordCols;
    std::byte *memory = static_cast<std::byte *>(task.scratch);
    RowInput<Format> inputs[count];
    for (int t = 0; t < count; ++t)
        inputs[t] = {static_cast<const PackedQ8x256 *>(task.packed) + t, count, blocks, memory};
    const int each = static_cast<int>(blocks % kRowBlocks), together = each > 0 ? kRowBlocks / each : 1;
    if (blocks == 1) return multiply_short_rows<Format, count, 1>(rows, task, inputs);
    if (blocks == 2) return multiply_short_rows<Format, count, 2>(rows, task, inputs);
    if (blocks == 3) return multiply_short_rows<Format, count, 3>(rows, task, inputs);
    if (blocks == 4) return multiply_short_rows<Format, count, 4>(rows, task, inputs);
    if (together > 1)
        multiply_row_groups<Format, count>(rows, task, together, each, inputs);
    else
        multiply_each_row<Format, count>(rows, task, inputs);
}

}  // namespace
}  // namespace runnel::kernels::cpu
