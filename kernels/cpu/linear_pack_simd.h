// Packing of activations with 256-bit vectors: the arithmetic of linear_scalar.cpp, eight values at a time. (linear_pack_avx512.h
// does whole records with 512 bits.) linear_isa.h explains the anonymous namespace.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/linear_packed.h"

namespace runnel::kernels::cpu {
namespace {

// Bits without sign: their integer order is the order of magnitudes, with infinities and NaN on top.
inline __m256i magnitude_bits(__m256 x) {
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

inline uint32_t max_lane(__m256i v) {
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

// The largest magnitude_bits() of 32 values, in the eight lanes.
inline __m256i largest_bits(const float *x) {
    const auto eight = [x](int i) { return magnitude_bits(_mm256_loadu_ps(x + 8 * i)); };
    return _mm256_max_epi32(_mm256_max_epi32(eight(0), eight(1)), _mm256_max_epi32(eight(2), eight(3)));
}

struct GroupScale {
    float scale, inverse;  // inverse 0: all integers are 0
};

// fold() of four vectors at once: lane i is the fold of v[i].
inline __m128 fold_four(const __m256 (&v)[4]) {
    const auto halves = [](__m256 x) {
        return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    };
    const __m128 h0 = halves(v[0]), h1 = halves(v[1]), h2 = halves(v[2]), h3 = halves(v[3]);
    // The lanes of `low` belong to v[0], v[1], v[0], v[1].
    const __m128 low = _mm_add_ps(_mm_unpacklo_ps(h0, h1), _mm_unpackhi_ps(h0, h1));
    const __m128 high = _mm_add_ps(_mm_unpacklo_ps(h2, h3), _mm_unpackhi_ps(h2, h3));
    return _mm_add_ps(_mm_movelh_ps(low, high), _mm_movehl_ps(high, low));
}

// The scale of `count` values, a multiple of 8: of four candidates, the one with the least squared error.
inline GroupScale group_scale(const float *x, int count, uint32_t amax_bits) {
    float amax;
    __builtin_memcpy(&amax, &amax_bits, sizeof amax);
    if (amax_bits >= 0x7f800000u) return {__builtin_nanf(""), 0};
    if (amax < kTinyActivation) return {0, 0};
    const __m128 largest = _mm_setr_ps(127, 126, 125, 124);
    alignas(16) float inverse[4], slope[4], score[4];
    _mm_store_ps(inverse, _mm_div_ps(largest, _mm_set1_ps(amax)));
    __m256 uq[4] = {}, qq[4] = {};
    for (int i = 0; i < count; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i), u = _mm256_mul_ps(v, _mm256_set1_ps(inverse[0]));
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
            const __m256 q = _mm256_round_ps(_mm256_mul_ps(v, _mm256_set1_ps(inverse[c])),
                                             _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
            uq[c] = _mm256_fmadd_ps(u, q, uq[c]);
            qq[c] = _mm256_fmadd_ps(q, q, qq[c]);
        }
    }
    const __m128 a = fold_four(uq), b = fold_four(qq);
    _mm_store_ps(slope, _mm_div_ps(a, b));
    _mm_store_ps(score, _mm_div_ps(_mm_mul_ps(a, a), b));
    int best = 0;
    for (int c = 1; c < 4; ++c)
        if (score[c] > score[best]) best = c;
    return {slope[best] * (amax / 127.0f), inverse[best]};
}

// Quantizes 32 values into q; x holds them in order.
inline void quantize32(const float *x, float inverse, int8_t *q) {
    __m256i out = _mm256_setzero_si256();
    if (inverse != 0) {
        const __m256 scale = _mm256_set1_ps(inverse);
        const auto eight = [&](int i) {
            return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), scale));
        };
        const __m256i low = _mm256_packs_epi32(eight(0), eight(1)),
                      high = _mm256_packs_epi32(eight(2), eight(3));
        // packs works within 128-bit halves: groups of four are in the order 0 2 4 6 1 3 5 7
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        out = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(q), out);
}

// Sums of the two halves of 32 integers.
struct HalfSums {
    int32_t low, high;
};

inline HalfSums half_sums(const int8_t *q) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(q));
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), v);
    const __m256i quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    const __m256i halves = _mm256_add_epi32(quads, _mm256_shuffle_epi32(quads, 0xb1));
    const __m256i sums = _mm256_add_epi32(halves, _mm256_shuffle_epi32(halves, 0x4e));
    return {_mm_cvtsi128_si32(_mm256_castsi256_si128(sums)),
            _mm_cvtsi128_si32(_mm256_extracti128_si256(sums, 1))};
}

struct Pack256 {
    // x: `count` values. The rest of the record is zeros.
    static void record(const float *x, int64_t count, PackedF32 &record) {
        for (int64_t i = 0; i < kRecordCols; ++i) record.x[i] = i < count ? x[i] : 0.0f;
    }

    static void record(const float *x, int64_t count, PackedQ8x32 &record) {
        if (count < kRecordCols) __builtin_memset(&record, 0, sizeof record);
        for (int g = 0; g < count / 32; ++g) {
            const float *v = x + 32 * g;
            int8_t *q = record.q + 32 * g;
            const GroupScale s = group_scale(v, 32, max_lane(largest_bits(v)));
            quantize32(v, s.inverse, q);
            const HalfSums sums = half_sums(q);
            const int32_t sum = sums.low + sums.high;
            record.scale[g] = s.scale;
            record.start[g] = -128 * sum;
            record.half[g] = -128 * sums.low;
            record.scaled_sum[g] = s.scale * static_cast<float>(sum);
        }
    }

    static void record(const float *x, int64_t, PackedQ8x256 &record) {
        __m256i largest = _mm256_setzero_si256();
        for (int g = 0; g < 8; ++g) largest = _mm256_max_epi32(largest, largest_bits(x + 32 * g));
        const GroupScale s = group_scale(x, kRecordCols, max_lane(largest));
        for (int g = 0; g < 8; ++g) {
            quantize32(x + 32 * g, s.inverse, record.q + 32 * g);
            const HalfSums sums = half_sums(record.q + 32 * g);
            record.start16[start16_index(2 * g)] = -128 * sums.low;
            record.start16[start16_index(2 * g + 1)] = -128 * sums.high;
            record.start32[g] = -128 * (sums.low + sums.high);
            record.sum16[2 * g] = static_cast<int16_t>(sums.low);
            record.sum16[2 * g + 1] = static_cast<int16_t>(sums.high);
            record.sum32[g] = static_cast<int16_t>(sums.low + sums.high);
        }
        record.scale = s.scale;
        __builtin_memset(record.padding, 0, sizeof record.padding);
    }
};

template <typename Pack, typename Record>
void pack_as(const float *x, int64_t x_stride, int64_t cols, int32_t tokens, int32_t t0, int32_t t1,
             int64_t col0, int64_t col1, void *packed) {
    Record *records = static_cast<Record *>(packed);
    for (int64_t t = t0; t < t1; ++t)
        for (int64_t col = col0; col < col1; col += kRecordCols) {
            const int64_t count = cols - col < kRecordCols ? cols - col : kRecordCols;
            Pack::record(x + t * x_stride + col, count, records[col / kRecordCols * tokens + t]);
        }
}

// LinearKernels::pack.
template <typename Pack>
void pack(ActFormat format, const float *x, int64_t x_stride, int64_t cols, int32_t tokens, int32_t t0,
          int32_t t1, int64_t col0, int64_t col1, void *packed) {
    switch (format) {
        case ActFormat::F32:
            return pack_as<Pack, PackedF32>(x, x_stride, cols, tokens, t0, t1, col0, col1, packed);
        case ActFormat::Q8x32:
            return pack_as<Pack, PackedQ8x32>(x, x_stride, cols, tokens, t0, t1, col0, col1, packed);
        case ActFormat::Q8x256:
            return pack_as<Pack, PackedQ8x256>(x, x_stride, cols, tokens, t0, t1, col0, col1, packed);
    }
}

}  // namespace
}  // namespace runnel::kernels::cpu
