// Products of rows of one- and two-bit weights (Q1_0, Q2_0) and one token, for AVX-512: one row at a time (linear_row.h), where
// more tokens have 16 rows side by side (linear_tile.h). Q1_0 comes here only where there are no tiles (linear_lookup.h).
//
// Weights stay where they are in the bytes of the file. One instruction takes a weight out of each of 64 bytes (with GFNI by a
// matrix of bits, otherwise by a table), another one multiplies it by an activation; these have been put in the same order
// once for a range of rows. A lane is a group of 32 columns (Q1_0) or half of one (Q2_0): there are no other sums across a row
// until the end.
//
// 512 weights of Q1_0 take about 28 vector instructions with GFNI, of which a core starts two per cycle: on a Xeon with AMX it
// multiplies 13 GB/s of weights in L2, less than it reads from memory (15 GB/s), and 21 GB/s of Q2_0; rows side by side reach
// 10 and 14 GB/s there. On a busy Xeon of 2019 without GFNI: 6 and 11 GB/s, side by side 3 and 4.
#pragma once

#include "kernels/cpu/linear_packed.h"
#include "kernels/cpu/linear_row.h"
#include "kernels/cpu/linear_tile.h"

namespace runnel::kernels::cpu {
namespace {

// Columns and groups of 32 that are multiplied together, a piece.
constexpr int kPieceCols = 512, kPieceGroups = kPieceCols / 32;
// Bits of a weight; 0: not a format of this header.
template <typename Format>
constexpr int kWeightBits = 0;
template <>
inline constexpr int kWeightBits<FormatQ1_0> = 1;
template <>
inline constexpr int kWeightBits<FormatQ2_0> = 2;
template <typename Format>
constexpr int kNumbers = 8 / kWeightBits<Format>;  // in a byte
template <typename Format>
constexpr int64_t kPieceBytes = kPieceGroups / kGroups<Format> *Format::kBlockBytes;

// The activations of a piece, in the order of its weights: kWeightBits registers of 64 bytes.
template <typename Format>
struct alignas(64) BitsPiece {
    int8_t q[kWeightBits<Format>][kNumbers<Format>][64];  // [register][number in its byte][byte]
    int32_t start[kWeightBits<Format>][16];               // -sum(q) of each group, in its first lane
    float scale[kPieceGroups];
};

// Four registers of activations. order: of the bytes in each part of 128 bits.
[[gnu::always_inline]] inline void load_ordered(const int8_t *q, __m128i order, Ints (&v)[4]) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
        v[i] = _mm512_shuffle_epi8(_mm512_load_si512(q + 64 * i), _mm512_broadcast_i32x4(order));
}

// Writes 256 activations to half of a piece: 32 bytes of a register for each of eight numbers.
[[gnu::always_inline]] inline void copy_record(const PackedQ8x32 &record, int64_t half,
                                               BitsPiece<FormatQ1_0> &piece) {
    Ints v[4];  // qword n: number n of eight bytes
    load_ordered(record.q, _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15), v);
    const auto word = [](int n) { return n | (n + 8) << 16; };
    const Ints by_number =
        _mm512_setr_epi32(word(0), word(16), word(1), word(17), word(2), word(18), word(3), word(19), word(4),
                          word(20), word(5), word(21), word(6), word(22), word(7), word(23));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) v[i] = _mm512_permutexvar_epi16(by_number, v[i]);
    const Ints pairs = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
#pragma GCC unroll 2
    for (int n = 0; n < 8; n += 4) {
        const Ints which = _mm512_setr_epi64(n, n + 8, n + 1, n + 9, n + 2, n + 10, n + 3, n + 11);
        const Ints low = _mm512_permutex2var_epi64(v[0], which, v[1]);
        const Ints high = _mm512_permutex2var_epi64(v[2], which, v[3]);
        const Ints first = _mm512_permutex2var_epi64(low, pairs, high);
        const Ints last = _mm512_permutex2var_epi64(low, pairs | _mm512_set1_epi64(4), high);
        const auto store = [&](int number, __m256i bytes) __attribute__((always_inline)) {
            _mm256_store_si256(reinterpret_cast<__m256i *>(piece.q[0][number] + 32 * half), bytes);
        };
        store(n, _mm512_castsi512_si256(first));
        store(n + 1, _mm512_extracti64x4_epi64(first, 1));
        store(n + 2, _mm512_castsi512_si256(last));
        store(n + 3, _mm512_extracti64x4_epi64(last, 1));
    }
}

// The same for a register of four numbers.
[[gnu::always_inline]] inline void copy_record(const PackedQ8x32 &record, int64_t half,
                                               BitsPiece<FormatQ2_0> &piece) {
    Ints v[4];  // dword n of a part of 128 bits: number n of four bytes
    load_ordered(record.q, _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), v);
#pragma GCC unroll 2
    for (int n = 0; n < 4; n += 2) {
        const Ints which = _mm512_setr_epi32(n, n + 4, n + 8, n + 12, n + 16, n + 20, n + 24, n + 28, n + 1,
                                             n + 5, n + 9, n + 13, n + 17, n + 21, n + 25, n + 29);
        const Ints low = _mm512_permutex2var_epi32(v[0], which, v[1]);
        const Ints high = _mm512_permutex2var_epi32(v[2], which, v[3]);
        _mm512_store_si512(piece.q[half][n], _mm512_shuffle_i64x2(low, high, 0x44));
        _mm512_store_si512(piece.q[half][n + 1], _mm512_shuffle_i64x2(low, high, 0xee));
    }
}

// The activations of the task, piece by piece; those after the last record are zeros.
template <typename Format>
inline void copy_records(const Task &task, BitsPiece<Format> *pieces) {
    constexpr PackedQ8x32 kZeros{};
    const int64_t records = record_count(task.cols);
    const auto *packed = static_cast<const PackedQ8x32 *>(task.packed);
    for (int64_t r = 0; r < records + records % 2; ++r) {
        const PackedQ8x32 &record = r < records ? packed[r] : kZeros;
        BitsPiece<Format> &piece = pieces[r / 2];
        copy_record(record, r % 2, piece);
        const __m256i start =
            _mm256_srai_epi32(_mm256_load_si256(reinterpret_cast<const __m256i *>(record.start)), 7);
        if constexpr (kWeightBits<Format> == 1)
            _mm256_store_si256(reinterpret_cast<__m256i *>(piece.start[0] + 8 * (r % 2)), start);
        else
            _mm512_store_si512(piece.start[r % 2], _mm512_cvtepu32_epi64(start));
        _mm256_store_ps(piece.scale + 8 * (r % 2), _mm256_load_ps(record.scale));
    }
}

// 64 bytes of weights, those of four blocks.
template <typename Format>
[[gnu::always_inline]] inline Ints weight_bytes(const std::byte *blocks) {
    const auto load = [&](int i) __attribute__((always_inline)) {
        return load16(blocks + i * Format::kBlockBytes + 2);
    };
    Ints v = _mm512_castsi128_si512(load(0));
    v = _mm512_mask_broadcast_i32x4(v, 0x00f0, load(1));
    v = _mm512_mask_broadcast_i32x4(v, 0x0f00, load(2));
    return _mm512_mask_broadcast_i32x4(v, 0xf000, load(3));
}

// d of each group of a piece.
template <typename Format>
[[gnu::always_inline]] inline __m512 group_scales(const std::byte *blocks) {
    constexpr int kWords = Format::kBlockBytes / 2;  // from one d to the next
    const auto pair = [](int group) {
        return group / kGroups<Format> * kWords | (group + 1) / kGroups<Format> * kWords << 16;
    };
    const Ints order = _mm512_setr_epi32(pair(0), pair(2), pair(4), pair(6), pair(8), pair(10), pair(12),
                                         pair(14), 0, 0, 0, 0, 0, 0, 0, 0);
    const Ints first = _mm512_loadu_si512(blocks);
    if constexpr (kWeightBits<Format> == 1)
        return _mm512_cvtph_ps(_mm512_castsi512_si256(_mm512_permutexvar_epi16(order, first)));
    else
        return _mm512_cvtph_ps(
            _mm512_castsi512_si256(_mm512_permutex2var_epi16(first, order, _mm512_loadu_si512(blocks + 64))));
}

// Number n of each byte, where one bit b is the number 2 b. The instruction multiplies each byte by a matrix of bits, whose row
// for bit i of the result is byte 7 - i of the second operand. (This code is not compiled for GFNI, which some CPUs with
// AVX-512 lack.)
template <typename Format>
[[gnu::always_inline]] inline Ints number_by_matrix(Ints bytes, int n) {
    const uint64_t bit_0 = uint64_t{1} << 56, bit_1 = uint64_t{1} << 48;
    const uint64_t matrix = kWeightBits<Format> == 1 ? bit_1 << n : bit_0 << 2 * n | bit_1 << (2 * n + 1);
    const Ints matrices = _mm512_set1_epi64(static_cast<int64_t>(matrix));
    Ints numbers;
    asm("vgf2p8affineqb $0, %2, %1, %0" : "=v"(numbers) : "v"(bytes), "v"(matrices));
    return numbers;
}

// The same number by a table of 16 entries, from the four bits of the byte that contain it.
template <typename Format>
[[gnu::always_inline]] inline Ints number_by_table(Ints four_bits, int n) {
    const auto entry = [n](int bits) __attribute__((always_inline)) {
        const int number = kWeightBits<Format> == 1 ? (bits >> n & 1) * 2 : bits >> 2 * n & 3;
        return static_cast<char>(number);
    };
    const __m128i table =
        _mm_setr_epi8(entry(0), entry(1), entry(2), entry(3), entry(4), entry(5), entry(6), entry(7),
                      entry(8), entry(9), entry(10), entry(11), entry(12), entry(13), entry(14), entry(15));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), four_bits);
}

// The integers of a register's lanes: sum((number - 1) q).
template <typename Format, bool gfni>
[[gnu::always_inline]] inline Ints lane_totals(Ints bytes, const int8_t (&q)[kNumbers<Format>][64],
                                               const int32_t (&start)[16]) {
    constexpr int kHalf = kNumbers<Format> / 2;  // numbers in four bits
    const Ints low = bytes & _mm512_set1_epi8(15), high = _mm512_srli_epi16(bytes, 4) & _mm512_set1_epi8(15);
    Ints sum = _mm512_load_si512(start);
#pragma GCC unroll 8
    for (int n = 0; n < kNumbers<Format>; ++n) {
        const Ints numbers = gfni        ? number_by_matrix<Format>(bytes, n)
                             : n < kHalf ? number_by_table<Format>(low, n)
                                         : number_by_table<Format>(high, n - kHalf);
        sum = _mm512_dpbusd_epi32(sum, numbers, _mm512_load_si512(q[n]));
    }
    return sum;
}

// The integers of the sixteen groups of a piece.
template <typename Format, bool gfni>
[[gnu::always_inline]] inline Ints piece_totals(const std::byte *blocks, const BitsPiece<Format> &a) {
    const Ints first = lane_totals<Format, gfni>(weight_bytes<Format>(blocks), a.q[0], a.start[0]);
    if constexpr (kWeightBits<Format> == 1) {
        return first;
    } else {
        const Ints last = lane_totals<Format, gfni>(weight_bytes<Format>(blocks + 4 * Format::kBlockBytes),
                                                    a.q[1], a.start[1]);
        const Ints even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        return add32(_mm512_permutex2var_epi32(first, even, last),
                     _mm512_permutex2var_epi32(first, even | splat(1), last));
    }
}

// partial: the contract's partial sums; adds those of a piece. there: the groups that exist.
template <typename Format, bool gfni>
[[gnu::always_inline]] inline void add_piece(const std::byte *blocks, const BitsPiece<Format> &a,
                                             __mmask16 there, __m256 &partial) {
    const __m512 factor = _mm512_mul_ps(group_scales<Format>(blocks), _mm512_load_ps(a.scale));
    const __m512 total = _mm512_cvtepi32_ps(piece_totals<Format, gfni>(blocks, a));
    partial = _mm256_mask3_fmadd_ps(_mm512_castps512_ps256(factor), _mm512_castps512_ps256(total), partial,
                                    static_cast<__mmask8>(there));
    partial = _mm256_mask3_fmadd_ps(_mm512_extractf32x8_ps(factor, 1), _mm512_extractf32x8_ps(total, 1),
                                    partial, static_cast<__mmask8>(there >> 8));
}

template <typename Format, bool gfni>
inline void multiply_rows_bits(const RowRange &rows, const Task &task) {
    auto *pieces = static_cast<BitsPiece<Format> *>(task.scratch);
    copy_records(task, pieces);
    const int64_t whole = task.cols / kPieceCols;
    const auto left = static_cast<int>(task.cols / 32 % kPieceGroups);
    for_each_row(
        rows, [&](const std::byte *row, int64_t r, Ahead ahead) __attribute__((always_inline)) {
            __m256 partial = _mm256_setzero_ps();
            for (int64_t p = 0; p < whole; ++p, row += kPieceBytes<Format>) {
                ahead.prefetch<kPieceBytes<Format>>(row);
                add_piece<Format, gfni>(row, pieces[p], 0xffff, partial);
            }
            if (left > 0) {
                std::byte padded[kPieceBytes<Format>] = {};  // the last blocks of the row, then zeros
                __builtin_memcpy(padded, row,
                                 static_cast<size_t>(left / kGroups<Format> * Format::kBlockBytes));
                add_piece<Format, gfni>(padded, pieces[whole], static_cast<__mmask16>((1 << left) - 1),
                                        partial);
            }
            task.out[r] = folded(partial);
        });
}

// y = W x for the task's only token.
template <typename Format>
inline void multiply_rows_bits(const RowRange &rows, const Task &task) {
    if (__builtin_cpu_supports("gfni")) return multiply_rows_bits<Format, true>(rows, task);
    multiply_rows_bits<Format, false>(rows, task);
}

}  // namespace
}  // namespace runnel::kernels::cpu
