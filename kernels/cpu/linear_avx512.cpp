// y = W x with AVX-512 VNNI: 16 rows in the lanes of a register, 4 columns per vpdpbusd.
//
// A group of 32 columns of 16 rows is eight registers of unsigned bytes (linear_tile_avx512.h). For each
// token eight vpdpbusd, their second operand four activation bytes broadcast from memory, give the group's
// integer in the row's lane: no horizontal sums, and the float steps of the contract (README.md) are one per
// lane too. Few tokens: a group is unpacked into registers and used at once. Many: all groups of the 16 rows
// are unpacked into `scratch` first (L2) and reused for blocks of 16 tokens, whose partial sums stay in L1.
//
// Peak here is one vpdpbusd per clock, 64 multiply-adds; each group also costs a product and an fma on the
// same pipes (8 of 10), K formats a multiply by the integer scale (8 of 9, and a few per block).

// GCC 12's own AVX-512 headers start results from undefined registers, and it warns where they are inlined.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include "kernels/cpu/linear_isa.h"
#include "kernels/cpu/linear_pack_simd.h"
#include "kernels/cpu/linear_packed.h"
#include "kernels/cpu/linear_plain_simd.h"
#include "kernels/cpu/linear_tile_avx512.h"

namespace runnel::kernels::cpu {
namespace {

using gguf::Type;

constexpr int kRows = 16;        // rows of a tile: lanes
constexpr int kTokens = 16;      // tokens whose partial sums stay in L1
constexpr int kFusedTokens = 4;  // up to here groups go straight from registers into the product

template <typename Format>
constexpr bool kHasMinimum = Format::kOffset == 0;

// Tiles hold signed weights as w + 128, and that is what the packed sums are for. Unpacking leaves them at
// w + kOffset: the difference is added on the way into a tile, or else the packed sum is scaled down.
template <typename Format>
[[gnu::always_inline]] inline __m512i to_tile(__m512i w) {
    if constexpr (kHasMinimum<Format> || Format::kOffset == 128)
        return w;
    else
        return _mm512_add_epi8(w, _mm512_set1_epi8(static_cast<char>(128 - Format::kOffset)));
}

// Where an accumulator starts, given the packed -128 * sum.
template <typename Format, bool tiled>
[[gnu::always_inline]] inline __m512i start_value(const int32_t *packed) {
    if constexpr (kHasMinimum<Format>) return _mm512_setzero_si512();
    const __m512i start = _mm512_set1_epi32(*packed);
    if constexpr (tiled || Format::kOffset == 0 || Format::kOffset == 128) return start;
    return _mm512_srai_epi32(start, 7 - __builtin_ctz(Format::kOffset | 256));  // / (128 / kOffset), exact
}

// The contract's partial sums: [number][token], lanes are rows.
struct alignas(64) Partials {
    __m512 p[8][kTokens];
};

[[gnu::always_inline]] inline __m512i broadcast_int(const void *p) {
    int32_t x;
    __builtin_memcpy(&x, p, sizeof x);
    return _mm512_set1_epi32(x);
}

// start + the dot products of groups w[first..last) of four columns with the bytes at q.
template <int first, int last>
[[gnu::always_inline]] inline __m512i dot(__m512i start, const __m512i (&w)[8], const int8_t *q) {
#pragma GCC unroll 8
    for (int i = first; i < last; ++i)
        // _mm512_dpbusd_epi32(start, w[i], broadcast): GCC 12 would spend an instruction on the broadcast.
        asm("vpdpbusd %2%{1to16%}, %1, %0"
            : "+v"(start)
            : "v"(w[i]), "m"(*reinterpret_cast<const int32_t(*)>(q + 4 * i)));
    return start;
}

// The same for `count` tokens side by side, so that each one's additions need not wait for themselves.
template <int first, int last, int count, typename Record>
[[gnu::always_inline]] inline void dots(__m512i (&sums)[count], const __m512i (&w)[8], const Record *a,
                                        int column) {
#pragma GCC unroll 8
    for (int i = first; i < last; ++i)
#pragma GCC unroll 8
        for (int t = 0; t < count; ++t)
            asm("vpdpbusd %2%{1to16%}, %1, %0"
                : "+v"(sums[t])
                : "v"(w[i]), "m"(*reinterpret_cast<const int32_t(*)>(a[t].q + column + 4 * i)));
}

// --- blocks of 32 ----------------------------------------------------------------------------------------

struct Group32 {
    __m512i w[8];
    __m512 d, m;
};

template <typename Format>
struct Engine32 {
    using Record = PackedQ8x32;
    static constexpr int kGroupBytes = Format::kBlockBytes;
    static constexpr int kGroupCols = 32;
    struct Tile {
        Group32 groups[8];
    };

    [[gnu::always_inline]] static void unpack_group(Rows rows, Group32 &g) {
        Format::weights(rows, g.w);
        g.d = Format::scale(rows);
        if constexpr (kHasMinimum<Format>) g.m = Format::minimum(rows);
    }

    template <bool tiled>
    [[gnu::always_inline]] static void add_group(const Group32 &g, int j, const Record *a, int count,
                                                 Partials &sums) {
        __m512i w[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) w[i] = g.w[i];
        const __m512 d = g.d;
        for (int t = 0; t < count; ++t) {
            const Record &r = a[t];
            __m512 p = sums.p[j][t];
            const __m512i total = dot<0, 8>(start_value<Format, tiled>(&r.start[j]), w, r.q + 32 * j);
            p = _mm512_fmadd_ps(_mm512_mul_ps(d, _mm512_set1_ps(r.scale[j])), _mm512_cvtepi32_ps(total), p);
            if constexpr (kHasMinimum<Format>) p = _mm512_fmadd_ps(g.m, _mm512_set1_ps(r.scaled_sum[j]), p);
            sums.p[j][t] = p;
        }
    }

    static void unpack(Rows rows, int groups, Tile &tile) {
        for (int j = 0; j < groups; ++j) {
            Group32 g;
            unpack_group(rows + j * kGroupBytes, g);
#pragma GCC unroll 8
            for (int i = 0; i < 8; ++i) tile.groups[j].w[i] = to_tile<Format>(g.w[i]);
            tile.groups[j].d = g.d;
            if constexpr (kHasMinimum<Format>) tile.groups[j].m = g.m;
        }
    }

    static void add(const Tile &tile, int groups, int64_t, const Record *a, int count, Partials &sums) {
        for (int j = 0; j < groups; ++j) add_group<true>(tile.groups[j], j, a, count, sums);
    }

    static void add_fused(Rows rows, int groups, int64_t, const Record *a, int count, Partials &sums) {
        for (int j = 0; j < groups; ++j) {
            Group32 g;
            unpack_group(rows + j * kGroupBytes, g);
            add_group<false>(g, j, a, count, sums);
        }
    }
};

// --- blocks of 256 ---------------------------------------------------------------------------------------

template <typename Format>
struct Engine256 {
    using Record = PackedQ8x256;
    static constexpr int kGroupBytes = Format::kBlockBytes;
    static constexpr int kGroupCols = 256;
    struct Tile {
        __m512i w[8][8];
        Scales256 s;
    };

    // Adds the scaled integers of group j of 32 columns to the totals of `count` tokens.
    template <int count, bool tiled>
    [[gnu::always_inline]] static void add_scaled(const __m512i (&w)[8], const Scales256 &s, int j,
                                                  const Record *a, __m512i *totals) {
        __m512i sums[count];
        const auto start = [&](auto get) __attribute__((always_inline)) {
#pragma GCC unroll 8
            for (int t = 0; t < count; ++t) sums[t] = start_value<Format, tiled>(get(a[t]));
        };
        const auto finish_sums = [&](__m512i scale) __attribute__((always_inline)) {
#pragma GCC unroll 8
            for (int t = 0; t < count; ++t)
                totals[t] = _mm512_add_epi32(totals[t], _mm512_mullo_epi32(sums[t], scale));
        };
        if constexpr (Format::kStep == 32) {
            start([&](const Record &r) { return &r.start32[j]; });
            dots<0, 8, count>(sums, w, a, 32 * j);
            finish_sums(s.scale[j]);
        } else {
            const int at = start16_index(2 * j);  // the next subgroup is four on
            start([&](const Record &r) { return &r.start16[at]; });
            dots<0, 4, count>(sums, w, a, 32 * j);
            finish_sums(s.scale[2 * j]);
            start([&](const Record &r) { return &r.start16[at + 4]; });
            dots<4, 8, count>(sums, w, a, 32 * j);
            finish_sums(s.scale[2 * j + 1]);
        }
    }

    [[gnu::always_inline]] static void add_group(const __m512i (&group)[8], const Scales256 &s, int j,
                                                 const Record *a, int count, __m512i *totals) {
        __m512i w[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) w[i] = group[i];
        for (int t = 0; t < count; ++t) add_scaled<1, false>(w, s, j, a + t, totals + t);
    }

    [[gnu::always_inline]] static __m512i minimum_sum(const Scales256 &s, const Record &r) {
        constexpr int pairs = 128 / Format::kStep;
        const int16_t *q = Format::kStep == 32 ? r.sum32 : r.sum16;
        __m512i m = _mm512_setzero_si512();
#pragma GCC unroll 8
        for (int i = 0; i < pairs; ++i) m = _mm512_dpwssd_epi32(m, s.minimum[i], broadcast_int(q + 2 * i));
        return m;
    }

    [[gnu::always_inline]] static void finish(const Scales256 &s, const Record *a, int count,
                                              const __m512i *totals, __m512 *partial) {
        for (int t = 0; t < count; ++t) {
            const __m512 scale = _mm512_set1_ps(a[t].scale);
            __m512 p = _mm512_fmadd_ps(_mm512_mul_ps(s.d, scale), _mm512_cvtepi32_ps(totals[t]), partial[t]);
            if constexpr (kHasMinimum<Format>)
                p = _mm512_fnmadd_ps(_mm512_mul_ps(s.dmin, scale), _mm512_cvtepi32_ps(minimum_sum(s, a[t])),
                                     p);
            partial[t] = p;
        }
    }

    static void unpack(Rows rows, int, Tile &tile) {
        Format::scales(rows, tile.s);
        Format::weights(
            rows, [&](int j, const __m512i(&w)[8]) __attribute__((always_inline)) {
#pragma GCC unroll 8
                for (int i = 0; i < 8; ++i) tile.w[j][i] = to_tile<Format>(w[i]);
            });
    }

    // A fixed number of tokens, their totals in registers.
    template <int count>
    static void add_tokens(const Tile &tile, const Record *a, __m512 *partial) {
        __m512i totals[count];
#pragma GCC unroll 8
        for (int t = 0; t < count; ++t) totals[t] = _mm512_setzero_si512();
        for (int j = 0; j < 8; ++j) {
            __m512i w[8];
#pragma GCC unroll 8
            for (int i = 0; i < 8; ++i) w[i] = tile.w[j][i];
            constexpr int side_by_side = count < 4 ? count : 4;
#pragma GCC unroll 2
            for (int t = 0; t < count; t += side_by_side)
                add_scaled<side_by_side, true>(w, tile.s, j, a + t, totals + t);
        }
        finish(tile.s, a, count, totals, partial);
    }

    static void add(const Tile &tile, int, int64_t block, const Record *a, int count, Partials &sums) {
        __m512 *partial = sums.p[block % 8];
        int t = 0;
        for (; t + 8 <= count; t += 8) add_tokens<8>(tile, a + t, partial + t);
        if (count - t >= 4) {
            add_tokens<4>(tile, a + t, partial + t);
            t += 4;
        }
        for (; t < count; ++t) add_tokens<1>(tile, a + t, partial + t);
    }

    static void add_fused(Rows rows, int, int64_t block, const Record *a, int count, Partials &sums) {
        Scales256 s;
        Format::scales(rows, s);
        __m512i totals[kTokens];
        for (int t = 0; t < count; ++t) totals[t] = _mm512_setzero_si512();
        Format::weights(
            rows, [&](int j, const __m512i(&w)[8])
                      __attribute__((always_inline)) { add_group(w, s, j, a, count, totals); });
        finish(s, a, count, totals, sums.p[block % 8]);
    }
};

// --- driving ---------------------------------------------------------------------------------------------

[[gnu::always_inline]] inline void clear(Partials &sums, int count) {
    for (int i = 0; i < 8; ++i)
        for (int t = 0; t < count; ++t) sums.p[i][t] = _mm512_setzero_ps();
}

[[gnu::always_inline]] inline void store_folded(const Partials &sums, int count, int rows, float *out,
                                                int64_t out_stride) {
    const __mmask16 mask = static_cast<__mmask16>((1u << rows) - 1);
    for (int t = 0; t < count; ++t) {
        const auto p = [&](int i) { return sums.p[i][t]; };
        const __m512 even = _mm512_add_ps(_mm512_add_ps(p(0), p(4)), _mm512_add_ps(p(2), p(6)));
        const __m512 odd = _mm512_add_ps(_mm512_add_ps(p(1), p(5)), _mm512_add_ps(p(3), p(7)));
        _mm512_mask_storeu_ps(out + t * out_stride, mask, _mm512_add_ps(even, odd));
    }
}

// Asks for a stretch of what is read next; one call per unpacked block spreads the requests evenly.
[[gnu::always_inline]] inline void prefetch(const std::byte *p, int64_t bytes) {
    if (p == nullptr) return;
    for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch(reinterpret_cast<const char *>(p + i), _MM_HINT_T1);
}

// What a tile of 16 rows is multiplied with, and where it goes.
struct Task {
    int64_t cols;
    const void *packed;
    int32_t tokens;
    float *out;  // of the tile's first row
    int64_t out_stride;
    int rows;  // rows of the tile that are stored
    void *scratch;
    const std::byte *next;  // where the bytes of the next tile begin, or null
};

template <typename Engine>
void multiply_tile(Rows rows, const Task &task) {
    using Record = typename Engine::Record;
    const Record *records = static_cast<const Record *>(task.packed);
    typename Engine::Tile *tiles = static_cast<typename Engine::Tile *>(task.scratch);
    constexpr int64_t kBytes = int64_t{kRecordCols} / Engine::kGroupCols * Engine::kGroupBytes;
    const int64_t blocks = record_count(task.cols);
    const auto groups = [&](int64_t b) {
        const int64_t left = (task.cols - b * kRecordCols) / Engine::kGroupCols;
        constexpr int64_t full = kRecordCols / Engine::kGroupCols;
        return static_cast<int>(left < full ? left : full);
    };
    const auto ahead = [&](int64_t b) {
        prefetch(task.next == nullptr ? nullptr : task.next + b * kRows * kBytes, kRows * kBytes);
    };
    Partials sums;
    if (task.tokens <= kFusedTokens) {
        clear(sums, task.tokens);
        for (int64_t b = 0; b < blocks; ++b) {
            ahead(b);
            Engine::add_fused(rows + b * kBytes, groups(b), b, records + b * task.tokens, task.tokens, sums);
        }
        return store_folded(sums, task.tokens, task.rows, task.out, task.out_stride);
    }
    for (int64_t b = 0; b < blocks; ++b) {
        ahead(b);
        Engine::unpack(rows + b * kBytes, groups(b), tiles[b]);
    }
    for (int32_t t0 = 0; t0 < task.tokens; t0 += kTokens) {
        const int count = task.tokens - t0 < kTokens ? task.tokens - t0 : kTokens;
        clear(sums, count);
        for (int64_t b = 0; b < blocks; ++b)
            Engine::add(tiles[b], groups(b), b, records + b * task.tokens + t0, count, sums);
        store_folded(sums, count, task.rows, task.out + t0 * task.out_stride, task.out_stride);
    }
}

// Bytes of scratch for the unpacked tile: the largest Tile per 256 columns.
constexpr int64_t kTileBytes = sizeof(Engine256<FormatQ4_K>::Tile);
static_assert(kTileBytes >= int64_t{sizeof(Engine32<FormatQ4_0>::Tile)});

template <typename Engine>
void multiply_rows(const std::byte *weights, int64_t row0, int64_t row1, Task task, const std::byte *next) {
    const int64_t stride = task.cols / Engine::kGroupCols * Engine::kGroupBytes;
    float *out = task.out;
    if (row1 - row0 < kRows) {  // a tile of its own, filled up with copies of the last row
        std::byte *copies = static_cast<std::byte *>(task.scratch) + record_count(task.cols) * kTileBytes;
        for (int64_t r = 0; r < kRows; ++r) {
            const int64_t from = row0 + r < row1 ? row0 + r : row1 - 1;
            __builtin_memcpy(copies + r * stride, weights + from * stride, static_cast<size_t>(stride));
        }
        task.out = out + row0;
        task.rows = static_cast<int>(row1 - row0);
        task.next = nullptr;
        return multiply_tile<Engine>({copies, stride}, task);
    }
    task.rows = kRows;
    for (int64_t r = row0; r < row1; r += kRows) {
        const int64_t first =
            r + kRows <= row1 ? r : row1 - kRows;  // the last tile may overlap the one before
        task.out = out + first;
        task.next = r + kRows < row1 ? weights + (r + kRows) * stride : next;
        multiply_tile<Engine>({weights + first * stride, stride}, task);
    }
}

void multiply(Type type, const std::byte *weights, int64_t cols, int64_t row0, int64_t row1,
              const void *packed, int32_t tokens, float *out, int64_t out_stride, void *scratch,
              const std::byte *next) {
    if (row0 >= row1) return;
    const Task task{cols, packed, tokens, out, out_stride, kRows, scratch, nullptr};
    switch (type) {
        case Type::F32:
            return multiply_plain<PlainF32>(weights, cols, row0, row1, packed, tokens, out, out_stride);
        case Type::F16:
            return multiply_plain<PlainF16>(weights, cols, row0, row1, packed, tokens, out, out_stride);
        case Type::BF16:
            return multiply_plain<PlainBF16>(weights, cols, row0, row1, packed, tokens, out, out_stride);
        case Type::Q4_0:
            return multiply_rows<Engine32<FormatQ4_0>>(weights, row0, row1, task, next);
        case Type::Q4_1:
            return multiply_rows<Engine32<FormatQ4_1>>(weights, row0, row1, task, next);
        case Type::Q5_0:
            return multiply_rows<Engine32<FormatQ5_0>>(weights, row0, row1, task, next);
        case Type::Q5_1:
            return multiply_rows<Engine32<FormatQ5_1>>(weights, row0, row1, task, next);
        case Type::Q8_0:
            return multiply_rows<Engine32<FormatQ8_0>>(weights, row0, row1, task, next);
        case Type::IQ4_NL:
            return multiply_rows<Engine32<FormatIQ4_NL>>(weights, row0, row1, task, next);
        case Type::MXFP4:
            return multiply_rows<Engine32<FormatMXFP4>>(weights, row0, row1, task, next);
        case Type::Q2_K:
            return multiply_rows<Engine256<FormatQ2_K>>(weights, row0, row1, task, next);
        case Type::Q3_K:
            return multiply_rows<Engine256<FormatQ3_K>>(weights, row0, row1, task, next);
        case Type::Q4_K:
            return multiply_rows<Engine256<FormatQ4_K>>(weights, row0, row1, task, next);
        case Type::Q5_K:
            return multiply_rows<Engine256<FormatQ5_K>>(weights, row0, row1, task, next);
        case Type::Q6_K:
            return multiply_rows<Engine256<FormatQ6_K>>(weights, row0, row1, task, next);
        case Type::IQ4_XS:
            return multiply_rows<Engine256<FormatIQ4_XS>>(weights, row0, row1, task, next);
        case Type::TQ1_0:
            return multiply_rows<Engine256<FormatTQ1_0>>(weights, row0, row1, task, next);
        case Type::TQ2_0:
            return multiply_rows<Engine256<FormatTQ2_0>>(weights, row0, row1, task, next);
        default:
            return;
    }
}

// The unpacked tile, and room for copies of 16 rows of the widest format (Q8_0, 34 bytes per 32 columns).
size_t scratch_bytes(int64_t cols) {
    const int64_t records = record_count(cols);
    return static_cast<size_t>(records * (kTileBytes + kRows * 8 * FormatQ8_0::kBlockBytes));
}

void dequantize(Type type, const std::byte *row, int64_t cols, float *out) {
    kLinearScalar.dequantize(type, row, cols, out);
}

}  // namespace

const LinearKernels kLinearAvx512{"avx512", pack, multiply, scratch_bytes, dequantize};

}  // namespace runnel::kernels::cpu
