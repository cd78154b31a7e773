// y = W x with AVX-512 VNNI: 16 rows in the lanes of a register, 4 columns per vpdpbusd.
//
// A group of 32 columns of 16 rows is eight registers of unsigned bytes (linear_tile.h). For each token eight
// vpdpbusd, whose second operand is four activation bytes broadcast from memory, compute the group's integer in
// the row's lane: no horizontal sums, and each float step of the contract (README.md) is one instruction per lane
// vector. With few tokens a group is unpacked into registers and used at once. With many, all groups of the 16
// rows are first unpacked into `scratch` (L2) and reused for blocks of 16 tokens, whose partial sums stay in L1.
//
// The peak is one vpdpbusd per cycle (Zen 4) or two (Xeons), of 64 multiply-adds each. A group of a token also costs a product and
// an fma on the same pipes, on Xeons a conversion too: 8 of 10 or of 11 slots are vpdpbusd. In K formats it costs a multiply by
// the integer scale, which takes two slots of Xeons, and an addition there (8 of 9 or of 11), and a block a few instructions more.

// GCC 12's AVX-512 headers start results from undefined registers and trigger this warning when inlined.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include "kernels/cpu/linear_driver.h"
#include "kernels/cpu/linear_grid_rows.h"
#include "kernels/cpu/linear_isa.h"
#include "kernels/cpu/linear_pack_avx512.h"
#include "kernels/cpu/linear_packed.h"
#include "kernels/cpu/linear_row256.h"
#include "kernels/cpu/linear_row32.h"
#include "kernels/cpu/linear_row_bits.h"
#include "kernels/cpu/linear_row_q2q3.h"
#include "kernels/cpu/linear_tile.h"

namespace runnel::kernels::cpu {
namespace {

// Tiles hold signed weights as w + 128, which the packed sums compensate. Unpacking yields w + kOffset:
// either the difference is added when the tile is stored, or the packed sum is scaled down.
template <typename Format>
[[gnu::always_inline]] inline Ints to_tile(Ints w) {
    if constexpr (kHasMinimum<Format> || Format::kOffset == 128)
        return w;
    else
        return _mm512_add_epi8(w, _mm512_set1_epi8(static_cast<char>(128 - Format::kOffset)));
}

// The accumulator's start value, given the packed -128 * sum.
template <typename Format, bool tiled>
[[gnu::always_inline]] inline Ints start_value(const int32_t *packed) {
    if constexpr (kHasMinimum<Format>) return _mm512_setzero_si512();
    const Ints start = _mm512_set1_epi32(*packed);
    if constexpr (tiled || Format::kOffset == 0 || Format::kOffset == 128) return start;
    return _mm512_srai_epi32(start, 7 - __builtin_ctz(Format::kOffset | 256));  // / (128 / kOffset), exact
}

[[gnu::always_inline]] inline Ints broadcast_int(const void *p) {
    int32_t x;
    __builtin_memcpy(&x, p, sizeof x);
    return _mm512_set1_epi32(x);
}

// Adds the dot products of groups w[first..last) of four columns with `count` tokens, side by side: an addition takes five
// cycles, and a core starts up to two per cycle.
template <int first, int last, int count, typename Record>
[[gnu::always_inline]] inline void dots(Ints (&sums)[count], const Ints (&w)[8], const Record *a,
                                        int column) {
#pragma GCC unroll 8
    for (int i = first; i < last; ++i)
#pragma GCC unroll 8
        for (int t = 0; t < count; ++t)
            // _mm512_dpbusd_epi32(sums[t], w[i], broadcast), without the extra broadcast that GCC 12 emits for it.
            asm("vpdpbusd %2%{1to16%}, %1, %0"
                : "+v"(sums[t])
                : "v"(w[i]), "m"(*reinterpret_cast<const int32_t(*)>(a[t].q + column + 4 * i)));
}

// Calls f<n>(t) for tokens t to t + n, as many at once as fit, until `count` tokens are done.
template <int most = 8, typename Function>
[[gnu::always_inline]] inline void for_tokens(int count, Function f, int t = 0) {
    for (; t + most <= count; t += most) f.template operator()<most>(t);
    if constexpr (most > 1) for_tokens<most / 2>(count, f, t);
}

// What a token's partial sums begin with.
alignas(64) constexpr float kZeros[kTokens][kRows] = {};
[[gnu::always_inline]] inline const __m512 *zero_sums() {
    return reinterpret_cast<const __m512 *>(kZeros);
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

    // A row's first record writes the partial sums of its groups.
    static int64_t sums_begun(int64_t cols) { return cols < kRecordCols ? cols / 32 : 8; }

    // Adds the products of group j for `count` tokens to `before`. p: their partial sums.
    template <bool tiled, int count>
    [[gnu::always_inline]] static void add_tokens(const Ints (&w)[8], const Group32 &g, int j,
                                                  const Record *a, const __m512 *before, __m512 *p) {
        Ints sums[count], last[count];
#pragma GCC unroll 8
        for (int t = 0; t < count; ++t) sums[t] = start_value<Format, tiled>(&a[t].start[j]);
        if constexpr (kHalves<Format>) {
#pragma GCC unroll 8
            for (int t = 0; t < count; ++t) {
                const Ints half = start_value<Format, tiled>(&a[t].half[j]);
                last[t] = _mm512_sub_epi32(sums[t], half);
                sums[t] = half;
            }
            dots<0, 4, count>(sums, w, a, 32 * j);
            dots<4, 8, count>(last, w, a, 32 * j);
        } else {
            dots<0, 8, count>(sums, w, a, 32 * j);
        }
#pragma GCC unroll 8
        for (int t = 0; t < count; ++t) {
            const __m512 scale = _mm512_set1_ps(a[t].scale[j]);
            __m512 sum = _mm512_fmadd_ps(_mm512_mul_ps(g.d, scale), _mm512_cvtepi32_ps(sums[t]), before[t]);
            if constexpr (kHalves<Format>)
                sum = _mm512_fmadd_ps(_mm512_mul_ps(g.m, scale), _mm512_cvtepi32_ps(last[t]), sum);
            if constexpr (kHasMinimum<Format>)
                sum = _mm512_fmadd_ps(g.m, _mm512_set1_ps(a[t].scaled_sum[j]), sum);
            p[t] = sum;
        }
    }

    // first: the record is the row's first one.
    template <bool tiled>
    [[gnu::always_inline]] static void add_group(const Group32 &g, int j, bool first, const Record *a,
                                                 int count, Partials &sums) {
        Ints w[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) w[i] = g.w[i];
        const __m512 *before = first ? zero_sums() : sums.p[j];
        for_tokens(
            count, [&]<int n>(int t) __attribute__((always_inline)) {
                add_tokens<tiled, n>(w, g, j, a + t, before + t, sums.p[j] + t);
            });
    }

    static void unpack(Rows rows, int groups, Tile &tile, const std::byte *next) {
        for_groups32<Engine32, Format>(
            rows, groups, next, [&](int j, const Group32 &g) __attribute__((always_inline)) {
#pragma GCC unroll 8
                for (int i = 0; i < 8; ++i) tile.groups[j].w[i] = to_tile<Format>(g.w[i]);
                tile.groups[j].d = g.d;
                if constexpr (kHasMinimum<Format> || kHalves<Format>) tile.groups[j].m = g.m;
            });
    }

    static void add(const Tile &tile, int groups, int64_t block, const Record *a, int count, Partials &sums) {
        for (int j = 0; j < groups * kGroups<Format>; ++j)
            add_group<true>(tile.groups[j], j, block == 0, a, count, sums);
    }

    template <int count>
    [[gnu::always_inline]] static void add_fused(Rows rows, int groups, int64_t block, const Record *a,
                                                 Partials &sums, const std::byte *next) {
        for_groups32<Engine32, Format>(
            rows, groups, next, [&](int j, const Group32 &g) __attribute__((always_inline)) {
                add_group<false>(g, j, block == 0, a, count, sums);
            });
    }

    static constexpr int kRowTokens = kTokensByRows<Format>;
    template <int count>
    static void multiply_rows(const RowRange &rows, const Task &task) {
        if constexpr (kWeightBits < Format >> 0)
            multiply_rows_bits<Format>(rows, task);
        else
            multiply_rows32<Format, count>(rows, task);
    }
};

// Up to this many tokens, blocks of codebook entries are multiplied row by row.
constexpr int kGridRowTokens = 4;

// --- blocks of 256 ---------------------------------------------------------------------------------------

template <typename Format>
struct Engine256 {
    using Record = PackedQ8x256;
    static constexpr int kGroupBytes = Format::kBlockBytes;
    static constexpr int kGroupCols = 256;
    struct Tile {
        Ints w[8][8];
        Scales256 s;
    };

    // Adds the scaled integers of group j of 32 columns to the totals of `count` tokens.
    template <int count, bool tiled>
    [[gnu::always_inline]] static void add_scaled(const Ints (&w)[8], const Scales256 &s, int j,
                                                  const Record *a, Ints *totals) {
        Ints sums[count];
        const auto start = [&](auto get) __attribute__((always_inline)) {
#pragma GCC unroll 8
            for (int t = 0; t < count; ++t) sums[t] = start_value<Format, tiled>(get(a[t]));
        };
        const auto finish_sums = [&](Ints scale) __attribute__((always_inline)) {
#pragma GCC unroll 8
            for (int t = 0; t < count; ++t)
                totals[t] = _mm512_add_epi32(totals[t], _mm512_mullo_epi32(sums[t], scale));
        };
        if constexpr (Format::kStep == 32) {
            start([&](const Record &r) { return &r.start32[j]; });
            dots<0, 8, count>(sums, w, a, 32 * j);
            finish_sums(s.scale[j]);
        } else {
            const int at = start16_index(2 * j);  // the next subgroup is at `at` + 4
            start([&](const Record &r) { return &r.start16[at]; });
            dots<0, 4, count>(sums, w, a, 32 * j);
            finish_sums(s.scale[2 * j]);
            start([&](const Record &r) { return &r.start16[at + 4]; });
            dots<4, 8, count>(sums, w, a, 32 * j);
            finish_sums(s.scale[2 * j + 1]);
        }
    }

    [[gnu::always_inline]] static Ints minimum_sum(const Scales256 &s, const Record &r) {
        constexpr int pairs = 128 / Format::kStep;
        const int16_t *q = Format::kStep == 32 ? r.sum32 : r.sum16;
        Ints m = _mm512_setzero_si512();
#pragma GCC unroll 8
        for (int i = 0; i < pairs; ++i) m = _mm512_dpwssd_epi32(m, s.minimum[i], broadcast_int(q + 2 * i));
        return m;
    }

    // Each of a row's first eight blocks writes a partial sum.
    static int64_t sums_begun(int64_t cols) {
        return cols < 8 * 256 ? cols / 256 : 8;
    }
    [[gnu::always_inline]] static const __m512 *sums_before(int64_t block, const Partials &sums) {
        return block < 8 ? zero_sums() : sums.p[block % 8];
    }

    [[gnu::always_inline]] static void finish(const Scales256 &s, const Record *a, int count,
                                              const Ints *totals, const __m512 *before, __m512 *partial) {
        for (int t = 0; t < count; ++t) {
            const __m512 scale = _mm512_set1_ps(a[t].scale);
            __m512 p = _mm512_fmadd_ps(_mm512_mul_ps(s.d, scale), _mm512_cvtepi32_ps(totals[t]), before[t]);
            if constexpr (kHasMinimum<Format>)
                p = _mm512_fnmadd_ps(_mm512_mul_ps(s.dmin, scale), _mm512_cvtepi32_ps(minimum_sum(s, a[t])),
                                     p);
            partial[t] = p;
        }
    }

    static void unpack(Rows rows, int, Tile &tile, const std::byte *next) {
        Format::scales(rows, tile.s);
        Format::weights(
            rows, [&](int j, const Ints(&w)[8]) __attribute__((always_inline)) {
                prefetch_share<Engine256>(rows, j, next);
#pragma GCC unroll 8
                for (int i = 0; i < 8; ++i) tile.w[j][i] = to_tile<Format>(w[i]);
            });
    }

    // Adds a tile's products for a fixed number of tokens, whose totals stay in registers.
    template <int count>
    static void add_tokens(const Tile &tile, const Record *a, const __m512 *before, __m512 *partial) {
        Ints totals[count];
#pragma GCC unroll 8
        for (int t = 0; t < count; ++t) totals[t] = _mm512_setzero_si512();
        for (int j = 0; j < 8; ++j) {
            Ints w[8];
#pragma GCC unroll 8
            for (int i = 0; i < 8; ++i) w[i] = tile.w[j][i];
            add_scaled<count, true>(w, tile.s, j, a, totals);
        }
        finish(tile.s, a, count, totals, before, partial);
    }

    static void add(const Tile &tile, int, int64_t block, const Record *a, int count, Partials &sums) {
        const __m512 *from = sums_before(block, sums);
        for_tokens(
            count, [&]<int n>(int t) __attribute__((always_inline)) {
                add_tokens<n>(tile, a + t, from + t, sums.p[block % 8] + t);
            });
    }

    template <int count>
    [[gnu::always_inline]] static void add_fused(Rows rows, int, int64_t block, const Record *a,
                                                 Partials &sums, const std::byte *next) {
        Scales256 s;
        if constexpr (count <= kGridRowTokens && requires { typename Format::Grid; }) {
            Ints sums_of_rows[count];
            grid_totals<typename Format::Block, count>(
                rows, a, sums_of_rows, [&](int j) __attribute__((always_inline)) {
                    prefetch_share<Engine256>(rows, j, next);
                });
            s.d = Format::factors(rows);
            return finish(s, a, count, sums_of_rows, sums_before(block, sums), sums.p[block % 8]);
        }
        Format::scales(rows, s);
        Ints totals[count];
#pragma GCC unroll 4
        for (int t = 0; t < count; ++t) totals[t] = _mm512_setzero_si512();
        Format::weights(
            rows, [&](int j, const Ints(&w)[8]) __attribute__((always_inline)) {
                prefetch_share<Engine256>(rows, j, next);
                add_scaled<count, false>(w, s, j, a, totals);
            });
        finish(s, a, count, totals, sums_before(block, sums), sums.p[block % 8]);
    }

    static constexpr int kRowTokens = kTokensByRows<Format>;
    static constexpr int64_t kRowCols = kColsByRows<Format>;
    template <int count>
    static void multiply_rows(const RowRange &rows, const Task &task) {
        if constexpr (kTwoLowBits<Format>)
            multiply_rows_q2q3<Format, count>(rows, task);
        else
            multiply_rows256<Format, count>(rows, task);
    }
};

}  // namespace

const LinearKernels kLinearAvx512{
    "avx512",   pack<Pack512>, multiply<Engine32, Engine256>, scratch_bytes<Engine256>,
    dequantize, &kLookupAvx512};

}  // namespace runnel::kernels::cpu
