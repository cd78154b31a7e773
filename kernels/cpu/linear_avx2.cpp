// y = W x with AVX2: 8 rows in the lanes of a register, 4 columns per multiply.
//
// Like linear_avx512.cpp, but without its dot product: vpmaddubsw multiplies unsigned weights with signed
// activations and adds pairs in 16 bits. As many of these as the format's range allows are added in 16 bits
// before one vpmaddwd widens them and multiplies by the integer scale. Formats that use all 8 bits (Q8_0 and
// the table formats) first move the weight's sign to the activation; their pairs reach 2 * 128 * 127, so each
// pair is widened at once.
#include <immintrin.h>

#include "kernels/cpu/linear_driver.h"
#include "kernels/cpu/linear_isa.h"
#include "kernels/cpu/linear_packed.h"
#include "kernels/cpu/linear_tile.h"

namespace runnel::kernels::cpu {
namespace {

// Formats whose bytes are signed.
template <typename Format>
constexpr bool kSigned = Format::kOffset == 128;

// Number of pair sums that fit in 16 bits: 2 * 127 * (largest weight) * kPairs <= 32767.
template <typename Format>
constexpr int kPairs = kSigned<Format>                             ? 1
                       : 32767 / (2 * 127 * Format::kLargest) >= 8 ? 8
                       : 32767 / (2 * 127 * Format::kLargest) >= 4 ? 4
                                                                   : 2;

[[gnu::always_inline]] inline Ints broadcast_int(const void *p) {
    int32_t x;
    __builtin_memcpy(&x, p, sizeof x);
    return _mm256_set1_epi32(x);
}

template <typename Format>
[[gnu::always_inline]] inline Ints pair_products(Ints w, Ints a) {
    if constexpr (kSigned<Format>)
        return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w));
    else
        return _mm256_maddubs_epi16(w, a);
}

// Dot products of groups w[first..last) of four columns with the bytes at q, times the 16-bit number in both
// halves of each lane of `scale`.
template <typename Format, int first, int last>
[[gnu::always_inline]] inline Ints scaled_dot(const Ints (&w)[8], const int8_t *q, Ints scale) {
    Ints total = _mm256_setzero_si256();
    constexpr int step = kPairs<Format> < last - first ? kPairs<Format> : last - first;
#pragma GCC unroll 8
    for (int i = first; i < last; i += step) {
        Ints sum = pair_products<Format>(w[i], broadcast_int(q + 4 * i));
#pragma GCC unroll 8
        for (int k = i + 1; k < i + step; ++k)
            sum = _mm256_add_epi16(sum, pair_products<Format>(w[k], broadcast_int(q + 4 * k)));
        total = _mm256_add_epi32(total, _mm256_madd_epi16(sum, scale));
    }
    return total;
}

// The bytes of a tile as the products read them.
template <typename Format>
[[gnu::always_inline]] inline Ints to_tile(Ints w) {
    return kSigned<Format> ? w ^ splat(0x80808080) : w;
}

// --- blocks of 32 ----------------------------------------------------------------------------------------

template <typename Format>
struct Engine32 {
    using Record = PackedQ8x32;
    static constexpr int kGroupBytes = Format::kBlockBytes;
    static constexpr int kGroupCols = 32 * kGroups<Format>;
    struct Tile {
        Group32 groups[8];
    };

    [[gnu::always_inline]] static void to_tiles(Group32 &g) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) g.w[i] = to_tile<Format>(g.w[i]);
    }

    // -kOffset * sum, from the packed -128 * sum
    [[gnu::always_inline]] static Ints offset_sum(const int32_t *packed) {
        return signed_right32(broadcast_int(packed), 7 - __builtin_ctz(Format::kOffset));
    }

    [[gnu::always_inline]] static void add_group(const Group32 &g, int j, const Record *a, int count,
                                                 Partials &sums) {
        Ints w[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) w[i] = g.w[i];
        const Floats d = g.d;
        for (int t = 0; t < count; ++t) {
            const Record &r = a[t];
            Floats p = sums.p[j][t];
            if constexpr (kHalves<Format>) {
                const Floats scale = _mm256_set1_ps(r.scale[j]);
                const Ints all = offset_sum(&r.start[j]), half = offset_sum(&r.half[j]);
                const Ints first = add32(scaled_dot<Format, 0, 4>(w, r.q + 32 * j, splat16(1)), half);
                const Ints second =
                    add32(scaled_dot<Format, 4, 8>(w, r.q + 32 * j, splat16(1)), sub32(all, half));
                p = _mm256_fmadd_ps(_mm256_mul_ps(d, scale), _mm256_cvtepi32_ps(first), p);
                sums.p[j][t] = _mm256_fmadd_ps(_mm256_mul_ps(g.m, scale), _mm256_cvtepi32_ps(second), p);
                continue;
            }
            Ints total = scaled_dot<Format, 0, 8>(w, r.q + 32 * j, splat16(1));
            if constexpr (!kHasMinimum<Format> && !kSigned<Format>)
                total = add32(total, offset_sum(&r.start[j]));
            p = _mm256_fmadd_ps(_mm256_mul_ps(d, _mm256_set1_ps(r.scale[j])), _mm256_cvtepi32_ps(total), p);
            if constexpr (kHasMinimum<Format>) p = _mm256_fmadd_ps(g.m, _mm256_set1_ps(r.scaled_sum[j]), p);
            sums.p[j][t] = p;
        }
    }

    static void unpack(Rows rows, int groups, Tile &tile, const std::byte *next) {
        for_groups32<Engine32, Format>(
            rows, groups, next, [&](int j, Group32 &g) __attribute__((always_inline)) {
                to_tiles(g);
                tile.groups[j] = g;
            });
    }

    static void add(const Tile &tile, int groups, int64_t, const Record *a, int count, Partials &sums) {
        for (int j = 0; j < groups * kGroups<Format>; ++j) add_group(tile.groups[j], j, a, count, sums);
    }

    template <int count>
    [[gnu::always_inline]] static void add_fused(Rows rows, int groups, int64_t, const Record *a,
                                                 Partials &sums, const std::byte *next) {
        for_groups32<Engine32, Format>(
            rows, groups, next, [&](int j, Group32 &g) __attribute__((always_inline)) {
                to_tiles(g);
                add_group(g, j, a, count, sums);
            });
    }
};

// --- blocks of 256 ---------------------------------------------------------------------------------------

template <typename Format>
struct Engine256 {
    using Record = PackedQ8x256;
    static constexpr int kGroupBytes = Format::kBlockBytes;
    static constexpr int kGroupCols = 256;
    static constexpr int kScales = 256 / Format::kStep;
    struct Tile {
        Ints w[8][8];
        Scales256 s;
    };

    // The scales as 16-bit numbers, each in both halves of its lane. If the format has an offset to subtract,
    // s.minimum holds the scales too, in pairs of adjacent groups: minimum_sum() then sums the offsets.
    [[gnu::always_inline]] static void scales(Rows rows, Scales256 &s) {
        Format::scales(rows, s);
        const Ints low = splat(0xffff);
        if constexpr (!kHasMinimum<Format> && !kSigned<Format>)
#pragma GCC unroll 8
            for (int i = 0; i < kScales / 2; ++i)
                s.minimum[i] = (s.scale[2 * i] & low) | left32(s.scale[2 * i + 1], 16);
#pragma GCC unroll 16
        for (int i = 0; i < kScales; ++i) s.scale[i] = (s.scale[i] & low) | left32(s.scale[i], 16);
    }

    [[gnu::always_inline]] static Ints group_total(const Ints (&w)[8], const Scales256 &s, int j,
                                                   const Record &r) {
        const int8_t *q = r.q + 32 * j;
        if constexpr (Format::kStep == 32) return scaled_dot<Format, 0, 8>(w, q, s.scale[j]);
        return add32(scaled_dot<Format, 0, 4>(w, q, s.scale[2 * j]),
                     scaled_dot<Format, 4, 8>(w, q, s.scale[2 * j + 1]));
    }

    [[gnu::always_inline]] static void add_group(const Ints (&group)[8], const Scales256 &s, int j,
                                                 const Record *a, int count, Ints *totals) {
        Ints w[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) w[i] = group[i];
        for (int t = 0; t < count; ++t) totals[t] = add32(totals[t], group_total(w, s, j, a[t]));
    }

    // sum of s.minimum times the activation sums
    [[gnu::always_inline]] static Ints minimum_sum(const Scales256 &s, const Record &r) {
        const int16_t *q = Format::kStep == 32 ? r.sum32 : r.sum16;
        Ints m = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int i = 0; i < kScales / 2; ++i)
            m = add32(m, _mm256_madd_epi16(s.minimum[i], broadcast_int(q + 2 * i)));
        return m;
    }

    [[gnu::always_inline]] static void finish(const Scales256 &s, const Record *a, int count,
                                              const Ints *totals, Floats *partial) {
        for (int t = 0; t < count; ++t) {
            const Floats scale = _mm256_set1_ps(a[t].scale);
            Ints total = totals[t];
            if constexpr (!kHasMinimum<Format> && !kSigned<Format>)
                total = sub32(total, left32(minimum_sum(s, a[t]), __builtin_ctz(Format::kOffset)));
            Floats p = _mm256_fmadd_ps(_mm256_mul_ps(s.d, scale), _mm256_cvtepi32_ps(total), partial[t]);
            if constexpr (kHasMinimum<Format>)
                p = _mm256_fnmadd_ps(_mm256_mul_ps(s.dmin, scale), _mm256_cvtepi32_ps(minimum_sum(s, a[t])),
                                     p);
            partial[t] = p;
        }
    }

    static void unpack(Rows rows, int, Tile &tile, const std::byte *next) {
        scales(rows, tile.s);
        Format::weights(
            rows, [&](int j, const Ints(&w)[8]) __attribute__((always_inline)) {
                prefetch_share<Engine256>(rows, j, next);
#pragma GCC unroll 8
                for (int i = 0; i < 8; ++i) tile.w[j][i] = to_tile<Format>(w[i]);
            });
    }

    static void add(const Tile &tile, int, int64_t block, const Record *a, int count, Partials &sums) {
        Ints totals[kTokens];
        clear(totals, count);
        for (int j = 0; j < 8; ++j) add_group(tile.w[j], tile.s, j, a, count, totals);
        finish(tile.s, a, count, totals, sums.p[block % 8]);
    }

    template <int count>
    [[gnu::always_inline]] static void add_fused(Rows rows, int, int64_t block, const Record *a,
                                                 Partials &sums, const std::byte *next) {
        Scales256 s;
        scales(rows, s);
        Ints totals[count];
        clear(totals, count);
        Format::weights(
            rows, [&](int j, const Ints(&group)[8]) __attribute__((always_inline)) {
                prefetch_share<Engine256>(rows, j, next);
                Ints w[8];
#pragma GCC unroll 8
                for (int i = 0; i < 8; ++i) w[i] = to_tile<Format>(group[i]);
                add_group(w, s, j, a, count, totals);
            });
        finish(s, a, count, totals, sums.p[block % 8]);
    }
};

}  // namespace

const LinearKernels kLinearAvx2{
    "avx2", pack<Pack256>, multiply<Engine32, Engine256>, scratch_bytes<Engine256>, dequantize, &kLookupAvx2};

}  // namespace runnel::kernels::cpu
