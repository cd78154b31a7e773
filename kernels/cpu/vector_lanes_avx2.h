// Eight float lanes in an AVX2 register; vector_lanes_scalar.h defines the operations. Included only by files
// compiled for AVX2 or more. Everything is local to the file, so that the linker cannot use this code in
// place of another instruction set's.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace runnel::kernels::cpu {
namespace {

struct Avx2Lanes {
    static constexpr int kWidth = 8;
    static constexpr int kRows = 4;
    static constexpr int kAccumulators = 8;
    using Float = __m256;

    static Float set(float x) { return _mm256_set1_ps(x); }
    static Float zero() { return _mm256_setzero_ps(); }
    static __m256i first(int n) {  // lanes below n
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    }
    static Float load(const float *x) { return _mm256_loadu_ps(x); }
    // (Masked stores are slow on AMD, so whole vectors use plain stores.)
    static Float load_n(const float *x, int n) {
        return n >= kWidth ? load(x) : _mm256_maskload_ps(x, first(n));
    }
    static void store(float *out, Float x) { _mm256_storeu_ps(out, x); }
    static void stream(float *out, Float x) { _mm256_stream_ps(out, x); }
    static void end_stream() { _mm_sfence(); }
    static void store_n(float *out, Float x, int n) {
        if (n >= kWidth) return store(out, x);
        _mm256_maskstore_ps(out, first(n), x);
    }
    static Float load_half(const uint16_t *x) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(x)));
    }
    static Float broadcast_half(const uint16_t *x) {
        return _mm256_cvtph_ps(_mm_set1_epi16(static_cast<short>(*x)));
    }
    static Float load_half_n(const uint16_t *x, int n) {
        uint16_t padded[kWidth] = {};
        for (int i = 0; i < n; ++i) padded[i] = x[i];
        return load_half(padded);
    }
    static void store_half(uint16_t *out, Float x) {
        _mm_storeu_si128(reinterpret_cast<__m128i *>(out),
                         _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    static void store_half_n(uint16_t *out, Float x, int n) {
        uint16_t padded[kWidth];
        store_half(padded, x);
        for (int i = 0; i < n; ++i) out[i] = padded[i];
    }

    static __m128i load_bytes(const void *x) { return _mm_loadl_epi64(static_cast<const __m128i *>(x)); }
    static Float load_int8(const int8_t *x) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_bytes(x)));
    }
    static Float load_nibbles(const uint8_t *x, int shift) {
        const __m128i bytes = _mm_srl_epi16(load_bytes(x), _mm_cvtsi32_si128(shift));
        const __m128i nibbles = _mm_sub_epi8(_mm_and_si128(bytes, _mm_set1_epi8(15)), _mm_set1_epi8(8));
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(nibbles));
    }
    static Float load_table(const uint8_t *x, int shift, const int8_t *table) {
        const __m128i indices =
            _mm_and_si128(_mm_srl_epi16(load_bytes(x), _mm_cvtsi32_si128(shift)), _mm_set1_epi8(15));
        const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i *>(table));
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_shuffle_epi8(values, indices)));
    }
    static Float load_bfloat(const uint16_t *x) {
        const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i *>(x));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
    }
    static Float load_e4m3(const uint8_t *x) {
        // Sign-extended and shifted up by 7: the sign is in bits 15 and 14, the rest is where binary16 has it.
        const __m128i half = _mm_and_si128(_mm_slli_epi16(_mm_cvtepi8_epi16(load_bytes(x)), 7),
                                           _mm_set1_epi16(static_cast<short>(0xbf80)));
        const __m128i nan =
            _mm_cmpeq_epi16(_mm_and_si128(half, _mm_set1_epi16(0x7fff)), _mm_set1_epi16(0x3f80));
        return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(half, _mm_and_si128(nan, _mm_set1_epi16(0x7e00)))),
                             set(256.0f));
    }

    static Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
    static Float sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
    static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
    static Float div(Float a, Float b) { return _mm256_div_ps(a, b); }
    static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
    static Float fms(Float a, Float b, Float c) { return _mm256_fmsub_ps(a, b, c); }
    static Float max(Float a, Float b) { return _mm256_max_ps(a, b); }
    static Float min(Float a, Float b) { return _mm256_min_ps(a, b); }
    static float reduce_max(Float a) {
        __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        x = _mm_max_ps(x, _mm_movehl_ps(x, x));
        return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
    }
    static bool any_greater(Float a, Float b) {
        return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0;
    }
    static Float keep(Float a, Float b, int begin, int end) {
        return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(_mm256_andnot_si256(first(begin), first(end))));
    }
    static Float keep_bits(Float a, Float b, uint32_t bits) {
        const __m256i lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lanes);
        return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, lanes)));
    }
    static int find(Float a, float x) {
        const int equal = _mm256_movemask_ps(_mm256_cmp_ps(a, set(x), _CMP_EQ_OQ));
        return equal == 0 ? kWidth : __builtin_ctz(static_cast<unsigned>(equal));
    }
    static Float add_exponent(Float a, Float t) {
        const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
        return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), exponent));
    }
    static void rotate_adjacent(float *x, const float *cos, const float *sin, int n) {
        const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
        const Float c = _mm256_permutevar8x32_ps(load_n(cos, n), twice);
        const Float s = _mm256_permutevar8x32_ps(load_n(sin, n), twice);
        const Float pairs = load_n(x, 2 * n);
        const Float a = _mm256_moveldup_ps(pairs), b = _mm256_movehdup_ps(pairs);
        // Even lanes a * c - b * s, odd lanes a * s + b * c.
        const Float rotated =
            _mm256_fmaddsub_ps(a, _mm256_blend_ps(c, s, 0xaa), _mm256_mul_ps(b, _mm256_blend_ps(s, c, 0xaa)));
        store_n(x, rotated, 2 * n);
    }
};

}  // namespace
}  // namespace runnel::kernels::cpu
