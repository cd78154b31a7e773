// Sixteen float lanes in an AVX-512 register; vector_lanes_scalar.h defines the operations.
// Included only by files compiled for AVX-512; everything is local to the file (see vector_lanes_avx2.h).
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace runnel::kernels::cpu {
namespace {

struct Avx512Lanes {
    static constexpr int kWidth = 16;
    static constexpr int kRows = 8;
    static constexpr int kAccumulators = 16;
    using Float = __m512;

    // Lanes below n; n may be negative or above 16.
    static __mmask16 first(int n) {
        return static_cast<__mmask16>(n <= 0 ? 0u : n >= kWidth ? 0xffffu : (1u << n) - 1u);
    }
    static Float set(float x) { return _mm512_set1_ps(x); }
    static Float zero() { return _mm512_setzero_ps(); }
    static Float load(const float *x) { return _mm512_loadu_ps(x); }
    static Float load_n(const float *x, int n) { return _mm512_maskz_loadu_ps(first(n), x); }
    static void store(float *out, Float x) { _mm512_storeu_ps(out, x); }
    static void stream(float *out, Float x) { _mm512_stream_ps(out, x); }
    static void end_stream() { _mm_sfence(); }
    static void store_n(float *out, Float x, int n) { _mm512_mask_storeu_ps(out, first(n), x); }
    static Float load_half(const uint16_t *x) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(x)));
    }
    static Float broadcast_half(const uint16_t *x) {
        return _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<short>(*x)));
    }
    static Float load_half_n(const uint16_t *x, int n) {
        return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), x));
    }
    static __m256i to_half(Float x) {
        return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    static void store_half(uint16_t *out, Float x) {
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(out), to_half(x));
    }
    static void store_half_n(uint16_t *out, Float x, int n) {
        _mm256_mask_storeu_epi16(out, first(n), to_half(x));
    }

    static __m128i load_bytes(const void *x) { return _mm_loadu_si128(static_cast<const __m128i *>(x)); }
    static Float load_int8(const int8_t *x) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_bytes(x)));
    }
    static Float load_nibbles(const uint8_t *x, int shift) {
        const Float values = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
        const __m512i bytes = _mm512_cvtepu8_epi32(load_bytes(x));  // a permutation uses four bits of each
        return _mm512_permutexvar_ps(shift == 0 ? bytes : _mm512_srli_epi32(bytes, 4), values);
    }
    static Float load_table(const uint8_t *x, int shift, const int8_t *table) {
        const __m512i bytes = _mm512_cvtepu8_epi32(load_bytes(x));  // a permutation uses four bits of each
        return _mm512_permutexvar_ps(shift == 0 ? bytes : _mm512_srli_epi32(bytes, 4), load_int8(table));
    }
    static Float load_bfloat(const uint16_t *x) {
        const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(x));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    }
    static Float load_e4m3(const uint8_t *x) {
        // Sign-extended and shifted up by 7: the sign is in bits 15 and 14, the rest is where binary16 has it.
        const __m256i half = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(load_bytes(x)), 7),
                                              _mm256_set1_epi16(static_cast<short>(0xbf80)));
        const __mmask16 nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(half, _mm256_set1_epi16(0x7fff)),
                                                      _mm256_set1_epi16(0x3f80));
        return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(half, _mm256_maskz_set1_epi16(nan, 0x7e00))),
                             set(256.0f));
    }

    static Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
    static Float sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
    static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
    static Float div(Float a, Float b) { return _mm512_div_ps(a, b); }
    static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
    static Float fms(Float a, Float b, Float c) { return _mm512_fmsub_ps(a, b, c); }
    static Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
    static Float min(Float a, Float b) { return _mm512_min_ps(a, b); }
    static float reduce_max(Float a) { return _mm512_reduce_max_ps(a); }
    static bool any_greater(Float a, Float b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
    static Float keep(Float a, Float b, int begin, int end) {
        return _mm512_mask_blend_ps(static_cast<__mmask16>(first(end) & ~first(begin)), b, a);
    }
    static Float keep_bits(Float a, Float b, uint32_t bits) {
        return _mm512_mask_blend_ps(static_cast<__mmask16>(bits), b, a);
    }
    static int find(Float a, float x) {
        const unsigned equal = _mm512_cmp_ps_mask(a, set(x), _CMP_EQ_OQ);
        return equal == 0 ? kWidth : __builtin_ctz(equal);
    }
    static Float add_exponent(Float a, Float t) {
        const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
        return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), exponent));
    }
    static void rotate_adjacent(float *x, const float *cos, const float *sin, int n) {
        const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
        const Float c = _mm512_permutexvar_ps(twice, load_n(cos, n));
        const Float s = _mm512_permutexvar_ps(twice, load_n(sin, n));
        const Float pairs = load_n(x, 2 * n);
        const Float a = _mm512_moveldup_ps(pairs), b = _mm512_movehdup_ps(pairs);
        // Even lanes a * c - b * s, odd lanes a * s + b * c.
        const Float rotated = _mm512_fmaddsub_ps(a, _mm512_mask_blend_ps(0xaaaa, c, s),
                                                 _mm512_mul_ps(b, _mm512_mask_blend_ps(0xaaaa, s, c)));
        store_n(x, rotated, 2 * n);
    }
};

}  // namespace
}  // namespace runnel::kernels::cpu
