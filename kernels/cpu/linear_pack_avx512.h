// Packing of activations with 512-bit vectors: whole records, whose results are those of linear_pack_simd.h bit for bit.
//
// A register holds two of the four candidates for a scale, each with the eight lanes of sums that the contract asks for. The last
// steps, the folds, the divisions and the choice, are done for four groups of 32 at once. 1.6 (Q8x256) and 2.2 (Q8x32) cycles per
// value on a Xeon of 2019, with 256 bits 2.5 and 4.
#pragma once

#include "kernels/cpu/linear_pack_simd.h"

namespace runnel::kernels::cpu {
namespace {

// Lane by lane, results of the four candidates in the four parts of 128 bits.
using ByCandidate = __m512;

// The inverses of the candidates, for the largest magnitude of each lane's group.
[[gnu::always_inline]] inline ByCandidate inverses_for(__m128 amax) {
    const ByCandidate largest =
        _mm512_setr_ps(127, 127, 127, 127, 126, 126, 126, 126, 125, 125, 125, 125, 124, 124, 124, 124);
    return _mm512_div_ps(largest, _mm512_broadcast_f32x4(amax));
}

// The sums of group_scale() over `count` values, of candidates 0 and 1, 2 and 3.
struct CandidateSums {
    __m512 uq[2], qq[2];
};

// inverses: ByCandidate in memory; lane: of the group.
[[gnu::always_inline]] inline CandidateSums candidate_sums(const float *x, int count, const float *inverses,
                                                           int lane) {
    const auto inverse = [&](int c) { return _mm512_set1_ps(inverses[4 * c + lane]); };
    const __m512 scale[2] = {_mm512_mask_mov_ps(inverse(0), 0xff00, inverse(1)),
                             _mm512_mask_mov_ps(inverse(2), 0xff00, inverse(3))};
    const __m512 unit = inverse(0);
    CandidateSums sums{};
#pragma GCC unroll 4
    for (int i = 0; i < count; i += 8) {
        const __m512 v = _mm512_broadcast_f32x8(_mm256_loadu_ps(x + i)), u = _mm512_mul_ps(v, unit);
#pragma GCC unroll 2
        for (int c = 0; c < 2; ++c) {
            const __m512 q = _mm512_roundscale_ps(_mm512_mul_ps(v, scale[c]),
                                                  _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
            sums.uq[c] = _mm512_fmadd_ps(u, q, sums.uq[c]);
            sums.qq[c] = _mm512_fmadd_ps(q, q, sums.qq[c]);
        }
    }
    return sums;
}

// fold() of each candidate's eight lanes, in all lanes of its part.
[[gnu::always_inline]] inline ByCandidate folds(const __m512 (&v)[2]) {
    const __m512 four =
        _mm512_add_ps(_mm512_shuffle_f32x4(v[0], v[1], 0x88), _mm512_shuffle_f32x4(v[0], v[1], 0xdd));
    const __m512 two = _mm512_add_ps(four, _mm512_permute_ps(four, 0x4e));
    return _mm512_add_ps(two, _mm512_permute_ps(two, 0xb1));
}

// What group_scale() returns, for the groups of four lanes.
struct GroupScales {
    __m128 scale, inverse;
};

// uq, qq: the folded sums.
[[gnu::always_inline]] inline GroupScales best_scales(__m128 amax, ByCandidate inverses, ByCandidate uq,
                                                      ByCandidate qq) {
    const ByCandidate slopes = _mm512_div_ps(uq, qq), scores = _mm512_div_ps(_mm512_mul_ps(uq, uq), qq);
    __m128 score = _mm512_castps512_ps128(scores), slope = _mm512_castps512_ps128(slopes),
           inverse = _mm512_castps512_ps128(inverses);
    const auto compare = [&]<int c>() __attribute__((always_inline)) {
        const __m128 other = _mm512_extractf32x4_ps(scores, c);
        const __mmask8 better = _mm_cmp_ps_mask(other, score, _CMP_GT_OQ);
        score = _mm_mask_mov_ps(score, better, other);
        slope = _mm_mask_mov_ps(slope, better, _mm512_extractf32x4_ps(slopes, c));
        inverse = _mm_mask_mov_ps(inverse, better, _mm512_extractf32x4_ps(inverses, c));
    };
    compare.template operator()<1>();
    compare.template operator()<2>();
    compare.template operator()<3>();
    return {_mm_mul_ps(slope, _mm_div_ps(amax, _mm_set1_ps(127))), inverse};
}

// The scales of four groups of 32 values. amax: their largest magnitudes, ordinary().
[[gnu::always_inline]] inline GroupScales four_scales(const float *x, __m128 amax) {
    alignas(64) float inverses[16];
    const ByCandidate all = inverses_for(amax);
    _mm512_store_ps(inverses, all);
    ByCandidate uq = _mm512_setzero_ps(), qq = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) {
        const CandidateSums sums = candidate_sums(x + 32 * g, 32, inverses, g);
        const auto lane = static_cast<__mmask16>(0x1111 << g);
        uq = _mm512_mask_mov_ps(uq, lane, folds(sums.uq));
        qq = _mm512_mask_mov_ps(qq, lane, folds(sums.qq));
    }
    return best_scales(amax, all, uq, qq);
}

// Which largest magnitudes give an ordinary scale: neither 0 nor NaN.
[[gnu::always_inline]] inline __mmask8 ordinary(__m256 amax) {
    return _mm256_cmp_ps_mask(amax, _mm256_set1_ps(kTinyActivation), _CMP_GE_OQ) &
           _mm256_cmp_ps_mask(amax, _mm256_set1_ps(__builtin_inff()), _CMP_LT_OQ);
}

// Lane i: the largest lane of v[i].
[[gnu::always_inline]] inline __m256i largest_lanes(const __m256i (&v)[8]) {
    __m256i two[4], four[2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
        two[i] = _mm256_max_epi32(_mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]),
                                  _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i)
        four[i] = _mm256_max_epi32(_mm256_unpacklo_epi64(two[2 * i], two[2 * i + 1]),
                                   _mm256_unpackhi_epi64(two[2 * i], two[2 * i + 1]));
    return _mm256_max_epi32(_mm256_permute2x128_si256(four[0], four[1], 0x20),
                            _mm256_permute2x128_si256(four[0], four[1], 0x31));
}

// Quantizes a record. inverse: of each group of 32 values.
[[gnu::always_inline]] inline void quantize256(const float *x, const float (&inverse)[8], int8_t *q) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        __m512i v[4];
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k)
            v[k] = _mm512_cvtps_epi32(
                _mm512_mul_ps(_mm512_loadu_ps(x + 64 * i + 16 * k), _mm512_set1_ps(inverse[2 * i + k / 2])));
        const __m512i low = _mm512_packs_epi32(v[0], v[1]), high = _mm512_packs_epi32(v[2], v[3]);
        // packs works within parts of 128 bits: part p has groups of four p, p + 4, p + 8 and p + 12
        const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        _mm512_store_si512(q + 64 * i, _mm512_permutexvar_epi32(order, _mm512_packs_epi16(low, high)));
    }
}

// The sums of 16 consecutive integers of a record: subgroup s in lane start16_index(s).
[[gnu::always_inline]] inline __m512i subgroup_sums(const int8_t *q) {
    __m512i v[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
        v[i] =
            _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_load_si512(q + 64 * i));
    const auto pairs = [](__m512i a, __m512i b) __attribute__((always_inline)) {
        return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    };
    const __m512i first = pairs(v[0], v[1]), last = pairs(v[2], v[3]);
    return _mm512_add_epi32(_mm512_unpacklo_epi64(first, last), _mm512_unpackhi_epi64(first, last));
}

// The sums in the order of the subgroups.
[[gnu::always_inline]] inline __m512i in_order(__m512i sums) {
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
                                    sums);
}

[[gnu::always_inline]] inline __m256i times_minus_128(__m256i v) {
    return _mm256_slli_epi32(_mm256_sub_epi32(_mm256_setzero_si256(), v), 7);
}

struct Pack512 {
    static void record(const float *x, int64_t count, PackedF32 &record) {
        Pack256::record(x, count, record);
    }

    static void record(const float *x, int64_t count, PackedQ8x32 &record) {
        if (count < kRecordCols) return Pack256::record(x, count, record);
        __m256i largest[8];
#pragma GCC unroll 8
        for (int g = 0; g < 8; ++g) largest[g] = largest_bits(x + 32 * g);
        const __m256 amax = _mm256_castsi256_ps(largest_lanes(largest));
        if (ordinary(amax) != 0xff) return Pack256::record(x, count, record);
        const GroupScales low = four_scales(x, _mm256_castps256_ps128(amax)),
                          high = four_scales(x + 128, _mm256_extractf128_ps(amax, 1));
        const __m256 scale = _mm256_set_m128(high.scale, low.scale);
        alignas(32) float inverse[8];
        _mm256_store_ps(inverse, _mm256_set_m128(high.inverse, low.inverse));
        quantize256(x, inverse, record.q);
        const __m512i sums = in_order(subgroup_sums(record.q));
        const __m256i first = _mm512_cvtepi64_epi32(sums),
                      sum = _mm256_add_epi32(first, _mm512_cvtepi64_epi32(_mm512_srli_epi64(sums, 32)));
        _mm256_store_ps(record.scale, scale);
        _mm256_store_si256(reinterpret_cast<__m256i *>(record.start), times_minus_128(sum));
        _mm256_store_si256(reinterpret_cast<__m256i *>(record.half), times_minus_128(first));
        _mm256_store_ps(record.scaled_sum, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(sum)));
    }

    static void record(const float *x, int64_t count, PackedQ8x256 &record) {
        __m256i largest = _mm256_setzero_si256();
        for (int g = 0; g < 8; ++g) largest = _mm256_max_epi32(largest, largest_bits(x + 32 * g));
        const __m256 amax = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(max_lane(largest))));
        if (ordinary(amax) != 0xff) return Pack256::record(x, count, record);
        alignas(64) float inverses[16];
        const ByCandidate all = inverses_for(_mm256_castps256_ps128(amax));
        _mm512_store_ps(inverses, all);
        const CandidateSums sums = candidate_sums(x, kRecordCols, inverses, 0);
        const GroupScales best =
            best_scales(_mm256_castps256_ps128(amax), all, folds(sums.uq), folds(sums.qq));
        alignas(32) float inverse[8];
        _mm256_store_ps(inverse, _mm256_broadcastss_ps(best.inverse));
        quantize256(x, inverse, record.q);
        const __m512i sixteen = subgroup_sums(record.q);
        const __m256i words = _mm512_cvtepi32_epi16(in_order(sixteen)),
                      sum = _mm256_madd_epi16(words, _mm256_set1_epi16(1));
        _mm512_store_si512(record.start16,
                           _mm512_slli_epi32(_mm512_sub_epi32(_mm512_setzero_si512(), sixteen), 7));
        _mm256_store_si256(reinterpret_cast<__m256i *>(record.start32), times_minus_128(sum));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(record.sum32), _mm256_cvtepi32_epi16(sum));
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(record.sum16), words);
        record.scale = _mm_cvtss_f32(best.scale);
        __builtin_memset(record.padding, 0, sizeof record.padding);
    }
};

}  // namespace
}  // namespace runnel::kernels::cpu
