// The vector operations that unpack weights, with the same names for AVX2 and AVX-512: linear_tile.h is
// written once on top of them. A vector has one 32-bit lane per row. The instruction set follows from the
// compiler flags of the including file; &, | and ^ work on vectors as on integers.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace runnel::kernels::cpu {
namespace {

[[gnu::always_inline]] inline __m128i load16(const std::byte *p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
}

#ifdef __AVX512VNNI__

using Ints = __m512i;
using Floats = __m512;
constexpr int kRows = 16;

[[gnu::always_inline]] inline Ints splat(uint32_t x) {
    return _mm512_set1_epi32(static_cast<int>(x));
}
[[gnu::always_inline]] inline Ints splat16(int16_t x) {
    return _mm512_set1_epi16(x);
}
[[gnu::always_inline]] inline Ints add32(Ints a, Ints b) {
    return _mm512_add_epi32(a, b);
}
[[gnu::always_inline]] inline Ints sub32(Ints a, Ints b) {
    return _mm512_sub_epi32(a, b);
}
[[gnu::always_inline]] inline Ints add8(Ints a, Ints b) {
    return _mm512_add_epi8(a, b);
}
[[gnu::always_inline]] inline Ints add16(Ints a, Ints b) {
    return _mm512_add_epi16(a, b);
}
[[gnu::always_inline]] inline Ints multiply32(Ints a, Ints b) {
    return _mm512_mullo_epi32(a, b);
}
[[gnu::always_inline]] inline Ints multiply16(Ints a, Ints b) {
    return _mm512_mullo_epi16(a, b);
}
[[gnu::always_inline]] inline Ints left32(Ints v, int n) {
    return _mm512_slli_epi32(v, static_cast<unsigned>(n));
}
[[gnu::always_inline]] inline Ints right32(Ints v, int n) {
    return _mm512_srli_epi32(v, static_cast<unsigned>(n));
}
[[gnu::always_inline]] inline Ints signed_right32(Ints v, int n) {
    return _mm512_srai_epi32(v, static_cast<unsigned>(n));
}
[[gnu::always_inline]] inline Ints left16(Ints v, int n) {
    return _mm512_slli_epi16(v, static_cast<unsigned>(n));
}
[[gnu::always_inline]] inline Ints right16(Ints v, int n) {
    return _mm512_srli_epi16(v, static_cast<unsigned>(n));
}
[[gnu::always_inline]] inline Ints left32_by(Ints v, Ints n) {
    return _mm512_sllv_epi32(v, n);
}
// Per lane: a where `v` is less than `bound` (both below 2^31), else b.
[[gnu::always_inline]] inline Ints select_less(Ints v, Ints bound, Ints a, Ints b) {
    return _mm512_mask_mov_epi32(b, _mm512_cmplt_epi32_mask(v, bound), a);
}
// -v in the bytes where `where` is nonzero.
[[gnu::always_inline]] inline Ints negate_where(Ints v, Ints where) {
    return _mm512_mask_sub_epi8(v, _mm512_test_epi8_mask(where, where), _mm512_setzero_si512(), v);
}
// table[i] for every byte i < 16
[[gnu::always_inline]] inline Ints lookup_bytes(__m128i table, Ints i) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), i);
}
[[gnu::always_inline]] inline Ints widen_bytes(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
}
[[gnu::always_inline]] inline Floats as_floats(Ints v) {
    return _mm512_castsi512_ps(v);
}
[[gnu::always_inline]] inline Floats zero_floats() {
    return _mm512_setzero_ps();
}
[[gnu::always_inline]] inline void store_floats(float *p, Floats v) {
    _mm512_storeu_ps(p, v);
}
[[gnu::always_inline]] inline Floats multiply_floats(Floats a, float b) {
    return _mm512_mul_ps(a, _mm512_set1_ps(b));
}
[[gnu::always_inline]] inline Ints load_ints(const int32_t *p) {
    return _mm512_loadu_si512(p);
}
// Converts eight f16 per element of `parts`. (Through registers: a load that spans two stores would stall.)
[[gnu::always_inline]] inline Floats halves_to_floats(const __m128i (&parts)[2]) {
    return _mm512_cvtph_ps(_mm256_set_m128i(parts[1], parts[0]));
}
// Zero-extends eight 16-bit numbers per element of `parts`.
[[gnu::always_inline]] inline Ints widen_halves(const __m128i (&parts)[2]) {
    return _mm512_cvtepu16_epi32(_mm256_set_m128i(parts[1], parts[0]));
}
// The f16 in the low half of each lane.
[[gnu::always_inline]] inline Floats low_halves_to_floats(Ints v) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v));
}

[[gnu::always_inline]] inline Ints interleave_low32(Ints a, Ints b) {
    return _mm512_unpacklo_epi32(a, b);
}
[[gnu::always_inline]] inline Ints interleave_high32(Ints a, Ints b) {
    return _mm512_unpackhi_epi32(a, b);
}
[[gnu::always_inline]] inline Ints interleave_low64(Ints a, Ints b) {
    return _mm512_unpacklo_epi64(a, b);
}
[[gnu::always_inline]] inline Ints interleave_high64(Ints a, Ints b) {
    return _mm512_unpackhi_epi64(a, b);
}

// 16 bytes each at p, p + step, ... in the 128-bit parts of a vector.
[[gnu::always_inline]] inline Ints load_parts(const std::byte *p, int64_t step) {
    // Two 256-bit halves: inserting from memory into 512 bits would take twice as long.
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(load16(p)), load16(p + step), 1);
    const __m256i high =
        _mm256_inserti128_si256(_mm256_castsi128_si256(load16(p + 2 * step)), load16(p + 3 * step), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// Nibble k of each lane: its four bits, doubled, as the bytes of the lane.
[[gnu::always_inline]] inline Ints doubled_bits(Ints v, int k) {
    const Ints table =
        _mm512_setr_epi32(0, 0x2, 0x200, 0x202, 0x20000, 0x20002, 0x20200, 0x20202, 0x2000000, 0x2000002,
                          0x2000200, 0x2000202, 0x2020000, 0x2020002, 0x2020200, 0x2020202);
    return _mm512_permutexvar_epi32(right32(v, 4 * k), table);  // uses the lowest four bits of each index
}
// The bytes of each 128-bit part in the order of `control`; 0 where it is negative.
[[gnu::always_inline]] inline Ints shuffle_parts(Ints v, __m128i control) {
    return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(control));
}
[[gnu::always_inline]] inline Ints high_product16(Ints a, Ints b) {
    return _mm512_mulhi_epu16(a, b);
}

// Byte i < 16 of the table in the same 128-bit part of `tables`, for every byte i.
[[gnu::always_inline]] inline Ints lookup_by_part(Ints tables, Ints i) {
    return _mm512_shuffle_epi8(tables, i);
}
// Per lane: start + the sum of four products of an unsigned byte of `u` and a signed one of `s`; two of them fit 16 bits.
[[gnu::always_inline]] inline Ints dot4(Ints start, Ints u, Ints s) {
    return _mm512_dpbusd_epi32(start, u, s);
}
// The sum of two such products per number of 16 bits, which it fits.
[[gnu::always_inline]] inline Ints dot2(Ints u, Ints s) {
    return _mm512_maddubs_epi16(u, s);
}
[[gnu::always_inline]] inline Ints interleave_low8(Ints a, Ints b) {
    return _mm512_unpacklo_epi8(a, b);
}
[[gnu::always_inline]] inline Ints interleave_high8(Ints a, Ints b) {
    return _mm512_unpackhi_epi8(a, b);
}
[[gnu::always_inline]] inline Ints interleave_low16(Ints a, Ints b) {
    return _mm512_unpacklo_epi16(a, b);
}
[[gnu::always_inline]] inline Ints interleave_high16(Ints a, Ints b) {
    return _mm512_unpackhi_epi16(a, b);
}
// The low halves of the numbers in each part of a, then b.
[[gnu::always_inline]] inline Ints narrow32(Ints a, Ints b) {
    return _mm512_packus_epi32(a, b);
}
[[gnu::always_inline]] inline Ints narrow16(Ints a, Ints b) {
    return _mm512_packus_epi16(a, b);
}
// Lane i is lane order[i] of v.
[[gnu::always_inline]] inline Ints permute_lanes(Ints v, Ints order) {
    return _mm512_permutexvar_epi32(order, v);
}
[[gnu::always_inline]] inline void store_ints(void *p, Ints v) {
    _mm512_storeu_si512(p, v);
}
[[gnu::always_inline]] inline Floats load_floats(const float *p) {
    return _mm512_loadu_ps(p);
}
[[gnu::always_inline]] inline Floats ints_to_floats(Ints v) {
    return _mm512_cvtepi32_ps(v);
}
// a * b + c, rounded once
[[gnu::always_inline]] inline Floats fma_floats(Floats a, Floats b, Floats c) {
    return _mm512_fmadd_ps(a, b, c);
}
// Of the sixteen f16 at p, numbers 4 i ... 4 i + 3 in the first half of the parts of quads[i], and those at q in the second.
[[gnu::always_inline]] inline void load_quads(const void *p, const void *q, Floats (&quads)[4]) {
    const Floats a = _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i *>(p))),
                 b = _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i *>(q)));
    quads[0] = _mm512_shuffle_f32x4(a, b, 0x00);
    quads[1] = _mm512_shuffle_f32x4(a, b, 0x55);
    quads[2] = _mm512_shuffle_f32x4(a, b, 0xaa);
    quads[3] = _mm512_shuffle_f32x4(a, b, 0xff);
}
// The sums of the first and third part, and of the second and fourth.
[[gnu::always_inline]] inline __m256 add_parts(const Floats (&v)[1]) {
    return _mm512_castps512_ps256(v[0]) + _mm512_extractf32x8_ps(v[0], 1);
}

#else

using Ints = __m256i;
using Floats = __m256;
constexpr int kRows = 8;

[[gnu::always_inline]] inline Ints splat(uint32_t x) {
    return _mm256_set1_epi32(static_cast<int>(x));
}
[[gnu::always_inline]] inline Ints splat16(int16_t x) {
    return _mm256_set1_epi16(x);
}
[[gnu::always_inline]] inline Ints add32(Ints a, Ints b) {
    return _mm256_add_epi32(a, b);
}
[[gnu::always_inline]] inline Ints sub32(Ints a, Ints b) {
    return _mm256_sub_epi32(a, b);
}
[[gnu::always_inline]] inline Ints add8(Ints a, Ints b) {
    return _mm256_add_epi8(a, b);
}
[[gnu::always_inline]] inline Ints add16(Ints a, Ints b) {
    return _mm256_add_epi16(a, b);
}
[[gnu::always_inline]] inline Ints multiply32(Ints a, Ints b) {
    return _mm256_mullo_epi32(a, b);
}
[[gnu::always_inline]] inline Ints multiply16(Ints a, Ints b) {
    return _mm256_mullo_epi16(a, b);
}
[[gnu::always_inline]] inline Ints left32(Ints v, int n) {
    return _mm256_slli_epi32(v, n);
}
[[gnu::always_inline]] inline Ints right32(Ints v, int n) {
    return _mm256_srli_epi32(v, n);
}
[[gnu::always_inline]] inline Ints signed_right32(Ints v, int n) {
    return _mm256_srai_epi32(v, n);
}
[[gnu::always_inline]] inline Ints left16(Ints v, int n) {
    return _mm256_slli_epi16(v, n);
}
[[gnu::always_inline]] inline Ints right16(Ints v, int n) {
    return _mm256_srli_epi16(v, n);
}
[[gnu::always_inline]] inline Ints left32_by(Ints v, Ints n) {
    return _mm256_sllv_epi32(v, n);
}
[[gnu::always_inline]] inline Ints select_less(Ints v, Ints bound, Ints a, Ints b) {
    return _mm256_blendv_epi8(b, a, _mm256_cmpgt_epi32(bound, v));
}
[[gnu::always_inline]] inline Ints negate_where(Ints v, Ints where) {
    const Ints kept = _mm256_cmpeq_epi8(where, _mm256_setzero_si256());
    return _mm256_blendv_epi8(_mm256_sub_epi8(_mm256_setzero_si256(), v), v, kept);
}
[[gnu::always_inline]] inline Ints lookup_bytes(__m128i table, Ints i) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), i);
}
[[gnu::always_inline]] inline Ints widen_bytes(const uint8_t *p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p)));
}
[[gnu::always_inline]] inline Floats as_floats(Ints v) {
    return _mm256_castsi256_ps(v);
}
[[gnu::always_inline]] inline Floats zero_floats() {
    return _mm256_setzero_ps();
}
[[gnu::always_inline]] inline void store_floats(float *p, Floats v) {
    _mm256_storeu_ps(p, v);
}
[[gnu::always_inline]] inline Floats multiply_floats(Floats a, float b) {
    return _mm256_mul_ps(a, _mm256_set1_ps(b));
}
[[gnu::always_inline]] inline Ints load_ints(const int32_t *p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
}
[[gnu::always_inline]] inline Floats halves_to_floats(const __m128i (&parts)[1]) {
    return _mm256_cvtph_ps(parts[0]);
}
[[gnu::always_inline]] inline Ints widen_halves(const __m128i (&parts)[1]) {
    return _mm256_cvtepu16_epi32(parts[0]);
}
[[gnu::always_inline]] inline Floats low_halves_to_floats(Ints v) {
    const __m256i low = _mm256_and_si256(v, _mm256_set1_epi32(0xffff));
    return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}

[[gnu::always_inline]] inline Ints interleave_low32(Ints a, Ints b) {
    return _mm256_unpacklo_epi32(a, b);
}
[[gnu::always_inline]] inline Ints interleave_high32(Ints a, Ints b) {
    return _mm256_unpackhi_epi32(a, b);
}
[[gnu::always_inline]] inline Ints interleave_low64(Ints a, Ints b) {
    return _mm256_unpacklo_epi64(a, b);
}
[[gnu::always_inline]] inline Ints interleave_high64(Ints a, Ints b) {
    return _mm256_unpackhi_epi64(a, b);
}

[[gnu::always_inline]] inline Ints shuffle_parts(Ints v, __m128i control) {
    return _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(control));
}
[[gnu::always_inline]] inline Ints doubled_bits(Ints v, int k) {
    const int first = (k / 2) * 0x01010101, next = 0x04040404;
    const Ints bytes = shuffle_parts(v, _mm_setr_epi32(first, first + next, first + 2 * next,
                                                       first + 3 * next));  // four copies of byte k / 2
    const Ints bit = splat(k % 2 == 0 ? 0x08040201 : 0x80402010);
    return _mm256_cmpeq_epi8(bytes & bit, bit) & splat(0x02020202);
}
[[gnu::always_inline]] inline Ints high_product16(Ints a, Ints b) {
    return _mm256_mulhi_epu16(a, b);
}

[[gnu::always_inline]] inline Ints load_parts(const std::byte *p, int64_t step) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load16(p)), load16(p + step), 1);
}

[[gnu::always_inline]] inline Ints lookup_by_part(Ints tables, Ints i) {
    return _mm256_shuffle_epi8(tables, i);
}
[[gnu::always_inline]] inline Ints dot4(Ints start, Ints u, Ints s) {
    return _mm256_add_epi32(start, _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1)));
}
[[gnu::always_inline]] inline Ints dot2(Ints u, Ints s) {
    return _mm256_maddubs_epi16(u, s);
}
[[gnu::always_inline]] inline Ints interleave_low8(Ints a, Ints b) {
    return _mm256_unpacklo_epi8(a, b);
}
[[gnu::always_inline]] inline Ints interleave_high8(Ints a, Ints b) {
    return _mm256_unpackhi_epi8(a, b);
}
[[gnu::always_inline]] inline Ints interleave_low16(Ints a, Ints b) {
    return _mm256_unpacklo_epi16(a, b);
}
[[gnu::always_inline]] inline Ints interleave_high16(Ints a, Ints b) {
    return _mm256_unpackhi_epi16(a, b);
}
[[gnu::always_inline]] inline Ints narrow32(Ints a, Ints b) {
    return _mm256_packus_epi32(a, b);
}
[[gnu::always_inline]] inline Ints narrow16(Ints a, Ints b) {
    return _mm256_packus_epi16(a, b);
}
[[gnu::always_inline]] inline Ints permute_lanes(Ints v, Ints order) {
    return _mm256_permutevar8x32_epi32(v, order);
}
[[gnu::always_inline]] inline void store_ints(void *p, Ints v) {
    _mm256_storeu_si256(static_cast<__m256i *>(p), v);
}
[[gnu::always_inline]] inline Floats load_floats(const float *p) {
    return _mm256_loadu_ps(p);
}
[[gnu::always_inline]] inline Floats ints_to_floats(Ints v) {
    return _mm256_cvtepi32_ps(v);
}
[[gnu::always_inline]] inline Floats fma_floats(Floats a, Floats b, Floats c) {
    return _mm256_fmadd_ps(a, b, c);
}
[[gnu::always_inline]] inline void load_quads(const void *p, const void *q, Floats (&quads)[4]) {
    const auto load = [](const void *from, int half) __attribute__((always_inline)) {
        return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i *>(from) + half));
    };
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
        quads[2 * half] = _mm256_permute2f128_ps(load(p, half), load(q, half), 0x20);
        quads[2 * half + 1] = _mm256_permute2f128_ps(load(p, half), load(q, half), 0x31);
    }
}
[[gnu::always_inline]] inline __m256 add_parts(const Floats (&v)[2]) {
    return v[0] + v[1];
}

#endif

}  // namespace
}  // namespace runnel::kernels::cpu
