// Products of rows of Q2_K and Q3_K and up to four tokens, for AVX-512: one row at a time (linear_row.h), where more tokens have 16
// rows side by side (linear_tile.h).
//
// The low two bits of a block's weights are one register of four parts of 128 bits. Bits 2 f and 2 f + 1 of part p are the field f:
// 16 columns with a scale of their own, group 8 (p / 2) + 2 f + p % 2 of the block. In step r = 0 ... 3, lane m of each part takes
// field m from lane m ^ r. The dot products of the four steps are added in one register, whose lanes are then the sums of the 16
// groups: no sums across are needed before the scales. Fields are masked but not shifted, so the weights of field f are multiplied by
// a power of two, and one shift of the sums takes it back. (Q3_K adds the third bit, and its fields 1 and 3 are shifted.)
//
// Block b of a row belongs to the contract's partial sum b mod 8 (README.md), so eight blocks are the lanes of one vector of float
// operations, as in linear_row256.h.
#pragma once

#include <type_traits>
#include <utility>

#include "kernels/cpu/linear_packed.h"
#include "kernels/cpu/linear_row.h"
#include "kernels/cpu/linear_row256.h"
#include "kernels/cpu/linear_tile.h"

namespace runnel::kernels::cpu {
namespace {

// The formats of this header.
template <typename Format>
constexpr bool kTwoLowBits = false;
template <>
inline constexpr bool kTwoLowBits<FormatQ2_K> = true;
template <>
inline constexpr bool kTwoLowBits<FormatQ3_K> = true;

// These four lanes in every part of 128 bits.
[[gnu::always_inline]] inline Ints each_part(int a, int b, int c, int d) {
    return _mm512_broadcast_i32x4(_mm_setr_epi32(a, b, c, d));
}
// a where the bits of `mask` are set, else b.
[[gnu::always_inline]] inline Ints select_bits(Ints mask, Ints a, Ints b) {
    return _mm512_ternarylogic_epi64(mask, a, b, 0xca);
}
// The lanes of each part in the order of `order`, a constant: two bits per lane.
template <int order>
[[gnu::always_inline]] inline Ints lanes_in_order(Ints v) {
    return _mm512_shuffle_epi32(v, static_cast<_MM_PERM_ENUM>(order));
}
// Lanes m ^ 1 and m ^ 2 of each part.
[[gnu::always_inline]] inline Ints swap_lanes(Ints v) {
    return _mm512_rol_epi64(v, 32);
}
[[gnu::always_inline]] inline Ints swap_pairs_of_lanes(Ints v) {
    return lanes_in_order<0x4e>(v);
}

// Weights in lane m are multiplied by 2 to the power of its shift, which is taken back from the sum of the group.
template <typename Format>
[[gnu::always_inline]] inline Ints lane_shifts() {
    return kHasMinimum<Format> ? each_part(0, 2, 4, 6) : each_part(0, 0, 4, 4);
}

// A token's activations as the kernel reads them, copied once for all rows of a thread. What belongs to blocks beyond the last
// one, up to a multiple of kRowBlocks, is undefined.
template <typename Format>
struct FieldsInput {
    int8_t
        *q;  // [block][step r][part p][lane m][4]: of field m of part p, columns 4 (m ^ r) ... 4 (m ^ r) + 3
    int32_t *
        start;  // Q3_K: [block][part][lane]: -4 sum(q) of the group, times 2 to the power of the lane's shift
    int16_t *sums;  // Q2_K: [4 blocks][parity][block][8]: sum(q) of even groups, 16 sum(q) of odd groups
    float *scale;   // [block]

    FieldsInput() = default;
    // records: of the token; those of the next block are `tokens` later. memory: where the copy goes; set to the end of it.
    FieldsInput(const PackedQ8x256 *records, int64_t tokens, int64_t blocks, std::byte *&memory) {
        const int64_t places = (blocks + kRowBlocks - 1) / kRowBlocks * kRowBlocks;
        const auto take = [&](auto *&array, int64_t count) {
            array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(memory);
            memory += count * static_cast<int64_t>(sizeof *array);
        };
        take(q, places * 256);
        take(start, kHasMinimum<Format> ? 0 : places * 16);
        take(sums, kHasMinimum<Format> ? places * 16 : 0);
        take(scale, places);
        memory += -(places * 4) & 63;
        for (int64_t b = 0; b < blocks; ++b) {
            const PackedQ8x256 &record = records[b * tokens];
            copy_columns(record, b);
            copy_sums(record, b);
            scale[b] = record.scale;
        }
    }

  private:
    void copy_columns(const PackedQ8x256 &record, int64_t b) {
        Ints in[4], field[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) in[i] = _mm512_load_si512(record.q + 64 * i);
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            field[2 * i] = _mm512_shuffle_i64x2(in[i], in[2 + i], 0x44);
            field[2 * i + 1] = _mm512_shuffle_i64x2(in[i], in[2 + i], 0xee);
        }
        const auto store = [&]<int order>(int r) __attribute__((always_inline)) {
            Ints v = lanes_in_order<order>(field[0]);
            v = _mm512_mask_mov_epi32(v, 0x2222, lanes_in_order<order>(field[1]));
            v = _mm512_mask_mov_epi32(v, 0x4444, lanes_in_order<order>(field[2]));
            v = _mm512_mask_mov_epi32(v, 0x8888, lanes_in_order<order>(field[3]));
            _mm512_store_si512(q + 256 * b + 64 * r, v);
        };
        store.template operator()<0xe4>(0);
        store.template operator()<0xb1>(1);
        store.template operator()<0x4e>(2);
        store.template operator()<0x1b>(3);
    }
    void copy_sums(const PackedQ8x256 &record, int64_t b) {
        const Ints all =
            _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(record.sum16)));
        if constexpr (kHasMinimum<Format>) {
            const Ints by_parity = _mm512_permutexvar_epi32(
                _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15), all);
            const __m256i words = _mm512_cvtepi32_epi16(by_parity);
            const auto to = reinterpret_cast<__m128i *>(sums + 64 * (b / 4) + 8 * (b % 4));
            _mm_store_si128(to, _mm256_castsi256_si128(words));
            _mm_store_si128(to + 4, _mm_slli_epi16(_mm256_extracti128_si256(words, 1), 4));
        } else {
            const Ints by_lane = _mm512_permutexvar_epi32(
                _mm512_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15), all);
            const Ints four = sub32(_mm512_setzero_si512(), left32(by_lane, 2));
            _mm512_store_si512(start + 16 * b, _mm512_sllv_epi32(four, lane_shifts<Format>()));
        }
    }
};

// Two to eight blocks that follow each other, in pairs. Of an odd number of blocks, the last one is there twice.
template <typename Format, int pairs>
struct PairsOfBlocks {
    static constexpr int kBlocks = 2 * pairs, kFours = (pairs + 1) / 2;
    const std::byte *from;
    int odd;  // 1 if their number is odd, else 0
    [[gnu::always_inline]] int place(int b) const { return b == kBlocks - 1 ? b - odd : b; }
    [[gnu::always_inline]] const std::byte *operator[](int b) const {
        return from + place(b) * Format::kBlockBytes;
    }
    // 16 bytes of each of the blocks 4 h ... 4 h + 3, from byte `at` on; zeros for blocks that do not exist.
    [[gnu::always_inline]] Ints sixteen_bytes(int h, int at) const {
        const auto load = [&](int i) __attribute__((always_inline)) {
            return 4 * h + i < kBlocks ? load16((*this)[4 * h + i] + at) : _mm_setzero_si128();
        };
        Ints v = _mm512_castsi128_si512(load(0));
        v = _mm512_mask_broadcast_i32x4(v, 0x00f0, load(1));
        v = _mm512_mask_broadcast_i32x4(v, 0x0f00, load(2));
        return _mm512_mask_broadcast_i32x4(v, 0xf000, load(3));
    }
};

// pairs[0] and pairs[1]: the integer scales of two pairs of blocks, [part][block][lane]. scales: of four blocks, a signed byte for
// each group.
[[gnu::always_inline]] inline void scales_of_pairs(Ints scales, Ints *pairs) {
    const Ints even = _mm512_maddubs_epi16(splat(0x00010001), scales),
               odd = _mm512_maddubs_epi16(splat(0x01000100), scales);
    pairs[0] = _mm512_permutex2var_epi64(even, _mm512_setr_epi64(0, 2, 8, 10, 1, 3, 9, 11), odd);
    pairs[1] = _mm512_permutex2var_epi64(even, _mm512_setr_epi64(4, 6, 12, 14, 5, 7, 13, 15), odd);
}

// The scales of blocks. pairs: of each pair of blocks, [part][block][lane].
template <typename Format>
struct FieldScales;

template <>
struct FieldScales<FormatQ2_K> {
    Ints pairs[4];
    __m256 d, dmin;
    template <int count>
    [[gnu::always_inline]] explicit FieldScales(const PairsOfBlocks<FormatQ2_K, count> &blocks) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            both[h] = h < blocks.kFours ? blocks.sixteen_bytes(h, 0) : _mm512_setzero_si512();
            scales_of_pairs(low_nibbles(both[h]), pairs + 2 * h);
        }
        __m256i factors = _mm256_setzero_si256();
        [&]<int... b>(std::integer_sequence<int, b...>) __attribute__((always_inline)) {
            ((factors = _mm256_blend_epi32(factors, _mm256_broadcastd_epi32(_mm_loadu_si32(blocks[b] + 80)),
                                           1 << b)),
             ...);
        }
        (std::make_integer_sequence<int, 2 * count>{});
        const __m256i order =
            _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
        factors = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(factors, order), 0xd8);
        d = _mm256_cvtph_ps(_mm256_castsi256_si128(factors));
        dmin = _mm256_cvtph_ps(_mm256_extracti128_si256(factors, 1));
    }
    // sum(minimum * sum(q)) of each block. sums: FieldsInput::sums from the first block on.
    [[gnu::always_inline]] __m256i minimum_sums(const int16_t *sums) const {
        Ints m[2];  // times 16
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            m[h] = _mm512_madd_epi16(both[h] & splat(0x00f000f0), _mm512_load_si512(sums + 64 * h));
            m[h] = _mm512_dpwssd_epi32(m[h], right16(both[h], 12), _mm512_load_si512(sums + 64 * h + 32));
        }
        return _mm256_srai_epi32(sums_of_each_part(m), 4);
    }

  private:
    Ints both[2];  // of four blocks each, scales in the low and minimums in the high nibbles
};

template <>
struct FieldScales<FormatQ3_K> {
    Ints pairs[4];
    __m256 d;
    template <int count>
    [[gnu::always_inline]] explicit FieldScales(const PairsOfBlocks<FormatQ3_K, count> &blocks) {
        Ints ends[2];  // two bytes of weights, 12 of scales, d
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            ends[h] = h < blocks.kFours ? blocks.sixteen_bytes(h, 94) : _mm512_setzero_si512();
            const Ints low =
                shuffle_parts(ends[h], _mm_setr_epi8(2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5, 6, 7, 8, 9));
            const Ints high = shuffle_parts(
                ends[h], _mm_setr_epi8(10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13));
            const Ints six = or_masked(low_nibbles(_mm512_srlv_epi32(low, each_part(0, 0, 4, 4))),
                                       _mm512_rolv_epi32(high, each_part(4, 2, 0, 30)), splat(0x30303030));
            scales_of_pairs(_mm512_sub_epi8(six, splat(0x20202020)), pairs + 2 * h);
        }
        const Ints order = _mm512_setr_epi32(0x000f0007, 0x001f0017, 0x002f0027, 0x003f0037, 0, 0, 0, 0, 0, 0,
                                             0, 0, 0, 0, 0, 0);
        d = _mm256_cvtph_ps(_mm512_castsi512_si128(_mm512_permutex2var_epi16(ends[0], order, ends[1])));
    }
};

// The weights of a block in the four steps, as unsigned bytes w + Format::kOffset, multiplied as lane_shifts() says.
template <typename Format>
[[gnu::always_inline]] inline void weights_in_steps(const std::byte *block, Ints (&w)[4]) {
    constexpr int64_t kLowBits = kHasMinimum<Format> ? 16 : 32;
    Ints low = _mm512_loadu_si512(block + kLowBits);
    asm("" : "+v"(low));  // or GCC loads them several times, each time from two cache lines
    Ints own, next;       // lanes m and m ^ 1, with the bits that lane m masks
    if constexpr (kHasMinimum<Format>) {
        own = low;
        next = swap_lanes(low);
    } else {
        // In x and y a weight takes a nibble, whose highest bit is arbitrary: fields 0 and 2 in x, fields 1 and 3 in y.
        const Ints bits = both_halves(block), two = splat(0x33333333);
        const Ints third = select_bits(splat(0x0f0f0f0f), _mm512_rolv_epi32(bits, halves(2, 30)),
                                       _mm512_rolv_epi32(bits, halves(4, 0)));
        const Ints x = select_bits(two, low, third), y = select_bits(two, right16(low, 2), right16(third, 1));
        own = _mm512_mask_mov_epi32(x, 0xaaaa, y);
        next = _mm512_permutex2var_epi32(
            x, _mm512_setr_epi32(1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11, 26, 13, 28, 15, 30), y);
    }
    const Ints mask = kHasMinimum<Format> ? each_part(0x03030303, 0x0c0c0c0c, 0x30303030, -0x3f3f3f40)
                                          : each_part(0x07070707, 0x07070707, 0x70707070, 0x70707070);
    w[0] = own & mask;
    w[1] = next & mask;
    w[2] = swap_pairs_of_lanes(own) & mask;
    w[3] = swap_pairs_of_lanes(next) & mask;
}

// total[t]: the sums of a block's groups for token t, [part][lane]. at: the block's number in the row.
template <typename Format, int count>
[[gnu::always_inline]] inline void sums_of_groups(const std::byte *block,
                                                  const FieldsInput<Format> (&a)[count], int64_t at,
                                                  Ints (&total)[count]) {
    Ints w[4];
    weights_in_steps<Format>(block, w);
#pragma GCC unroll 4
    for (int t = 0; t < count; ++t) {
        Ints sum = _mm512_setzero_si512();
        if constexpr (!kHasMinimum<Format>) sum = _mm512_load_si512(a[t].start + 16 * at);
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r)
            sum = _mm512_dpbusd_epi32(sum, w[r], _mm512_load_si512(a[t].q + 256 * at + 64 * r));
        total[t] = _mm512_srav_epi32(sum, lane_shifts<Format>());
    }
}

// The sums of eight blocks. v[i]: of blocks 2 i and 2 i + 1, each two lanes of every part.
[[gnu::always_inline]] inline __m256i sums_of_pairs(const Ints (&v)[4]) {
    const auto four = [](Ints first, Ints last) __attribute__((always_inline)) {
        const __m512 f = _mm512_castsi512_ps(first), l = _mm512_castsi512_ps(last);
        return add32(_mm512_castps_si512(_mm512_shuffle_ps(f, l, 0x88)),
                     _mm512_castps_si512(_mm512_shuffle_ps(f, l, 0xdd)));
    };
    return sums_of_two(four(v[0], v[1]), four(v[2], v[3]));
}

// Adds the products of blocks, the first of which is the row's block `first`.
template <typename Format, int count, int pairs>
[[gnu::always_inline]] inline void add_pairs(const PairsOfBlocks<Format, pairs> &blocks, int64_t first,
                                             const FieldsInput<Format> (&a)[count], __m256 (&partial)[count],
                                             Ahead ahead) {
    const FieldScales<Format> scales(blocks);
    Ints sums[count][kRowBlocks / 2];
    for (int i = 0; i < pairs; ++i) {
        ahead.prefetch<2 * Format::kBlockBytes>(blocks[2 * i]);
        Ints even[count], odd[count];
        sums_of_groups<Format, count>(blocks[2 * i], a, first + 2 * i, even);
        sums_of_groups<Format, count>(blocks[2 * i + 1], a, first + blocks.place(2 * i + 1), odd);
#pragma GCC unroll 4
        for (int t = 0; t < count; ++t)
            sums[t][i] = _mm512_madd_epi16(_mm512_packs_epi32(even[t], odd[t]), scales.pairs[i]);
    }
    for (int i = pairs; i < kRowBlocks / 2; ++i)
        for (int t = 0; t < count; ++t) sums[t][i] = _mm512_setzero_si512();
    const auto there = static_cast<__mmask8>((1 << (2 * pairs - blocks.odd)) - 1);
#pragma GCC unroll 4
    for (int t = 0; t < count; ++t) {
        const __m256 scale = _mm256_load_ps(a[t].scale + first);
        partial[t] = _mm256_mask3_fmadd_ps(_mm256_mul_ps(scales.d, scale),
                                           _mm256_cvtepi32_ps(sums_of_pairs(sums[t])), partial[t], there);
        if constexpr (kHasMinimum<Format>)
            partial[t] = _mm256_mask3_fnmadd_ps(
                _mm256_mul_ps(scales.dmin, scale),
                _mm256_cvtepi32_ps(scales.minimum_sums(a[t].sums + 16 * first)), partial[t], there);
    }
}

// y = W x for all tokens of the task.
template <typename Format, int count>
inline void multiply_rows_q2q3(const RowRange &rows, const Task &task) {
    const int64_t blocks = task.cols / kRecordCols;
    const int left = static_cast<int>(blocks % kRowBlocks);
    std::byte *memory = static_cast<std::byte *>(task.scratch);
    FieldsInput<Format> inputs[count];
    for (int t = 0; t < count; ++t)
        inputs[t] = {static_cast<const PackedQ8x256 *>(task.packed) + t, count, blocks, memory};
    for_each_row(
        rows, [&](const std::byte *row, int64_t r, Ahead ahead) __attribute__((always_inline)) {
            __m256 partial[count];
#pragma GCC unroll 4
            for (int t = 0; t < count; ++t) partial[t] = _mm256_setzero_ps();
            int64_t first = 0;
            for (; first + kRowBlocks <= blocks; first += kRowBlocks, row += kRowBlocks * Format::kBlockBytes)
                add_pairs<Format, count, 4>({row, 0}, first, inputs, partial, ahead);
            if (left > 0)
                with_count<4>((left + 1) / 2, [&]<int pairs>() __attribute__((always_inline)) {
                    add_pairs<Format, count, pairs>({row, left % 2}, first, inputs, partial, ahead);
                });
#pragma GCC unroll 4
            for (int t = 0; t < count; ++t) task.out[t * task.out_stride + r] = folded(partial[t]);
        });
}

}  // namespace
}  // namespace runnel::kernels::cpu
