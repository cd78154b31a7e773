// y = W x with AMX, the matrix unit of Intel's server CPUs since 2023. It multiplies batches of kTiledTokens tokens or more by
// block formats; other products run on the AVX-512 kernels.
//
// A tile of sums holds 16 tokens (rows) x 16 matrix rows (lanes). Weights that linear_tile.h unpacks into the lanes of
// AVX-512 registers already have the layout of a weight tile. Packed activations are an activation tile with a stride of one
// record. Integer sums are exact, so all bits equal those of the other instruction sets.
//
// Blocks of 32: each product of 32 columns is stored, scaled and added to the partial sums of 16 tokens, which stay in
// registers. The limit is the store plus three vector instructions per token.
//
// Blocks of 256: each weight w is multiplied by its integer scale s when it is unpacked. w s fits 16 bits; the low and the
// high bytes are two tiles, and sum(w s q) = sum(low q) + 256 sum(high q). The sums of a block stay in tiles. The limit
// is the matrix unit.
//
// Partial sums are computed one number at a time for all rows of a group, so that few of them occupy the caches.
//
// The includer provides the tile instructions: kernels/cpu/amx_tiles.h, or the emulation in the tests.
#pragma once

#include "kernels/cpu/amx_shapes.h"
#include "kernels/cpu/linear_driver.h"
#include "kernels/cpu/linear_isa.h"
#include "kernels/cpu/linear_packed.h"
#include "kernels/cpu/linear_tile.h"

namespace runnel::kernels::cpu {
namespace {

constexpr int kTiledTokens = 16;                   // with fewer tokens, unpacking costs more than it saves
constexpr int64_t kAmxUnpackedBytes = 1024 << 10;  // of an L2 cache of 2 MB

// A stored tile: [token][matrix row].
struct alignas(64) TileSums {
    Ints token[kTokens];
};

// --- blocks of 32 ----------------------------------------------------------------------------------------

template <typename Format>
struct TileEngine32 {
    using Record = PackedQ8x32;
    static constexpr int kGroupBytes = Format::kBlockBytes;
    static constexpr int kGroupCols = 32 * kGroups<Format>;
    static constexpr int kParts = kHalves<Format> ? 2 : 1;  // of 32 columns, each with a scale
    static constexpr int kTokensAtOnce = kTokens;
    static constexpr int kChunk = 8;  // blocks of 256 columns whose activations fit the L1 cache
    struct Tile {
        Ints w[8][8];  // signed
        Floats d[8];
        Floats m[8];  // minimums, or the scales of second parts
    };

    static void unpack(Rows rows, int groups, Tile &tile, const std::byte *next) {
        for_groups32<TileEngine32, Format>(
            rows, groups, next, [&](int j, const Group32 &g) __attribute__((always_inline)) {
                const Ints offset = splat(Format::kOffset * 0x01010101u);
#pragma GCC unroll 8
                for (int i = 0; i < 8; ++i) tile.w[j][i] = _mm512_sub_epi8(g.w[i], offset);
                tile.d[j] = g.d;
                if constexpr (kHasMinimum<Format> || kHalves<Format>) tile.m[j] = g.m;
            });
    }

    static void shape_tiles(int count) {
        use_tiles(TileShapes(count, count, 32 / kParts));
    }

    template <int sums>
    [[gnu::always_inline]] static void product(const Tile &tile, int j, int part, const Record *a,
                                               TileSums &out) {
        constexpr int x = 4 + sums % 2, w = 6 + sums % 2;
        load_tile<x>(a->q + 32 * j + 16 * part, sizeof(Record));
        load_tile<w>(&tile.w[j][4 * part], sizeof(Ints));
        zero_tile<sums>();
        dot_tiles<sums, x, w>();
        store_tile<sums>(out.token, sizeof(Ints));
    }

    // The integer sums of group j of up to four blocks: [block][part].
    static void products(const Tile *tiles, int64_t blocks, int j, const Record *a, int64_t tokens,
                         TileSums *out) {
        for (int part = 0; part < kParts; ++part) {
            product<0>(tiles[0], j, part, a, out[part]);
            if (blocks > 1) product<1>(tiles[1], j, part, a + tokens, out[kParts + part]);
            if (blocks > 2) product<2>(tiles[2], j, part, a + 2 * tokens, out[2 * kParts + part]);
            if (blocks > 3) product<3>(tiles[3], j, part, a + 3 * tokens, out[3 * kParts + part]);
        }
    }

    // Adds group j of `blocks` blocks to the partial sums of `count` tokens; the first time, they are 0.
    // full: count is kTokens.
    template <bool full>
    static void add_blocks(const Tile *tiles, int64_t blocks, int j, const Record *a, int64_t tokens,
                           int count, bool first, Floats *partial) {
        const int last = full ? kTokens : count;
        TileSums buffers[2][4 * kParts];
        Floats p[kTokens];
#pragma GCC unroll 16
        for (int t = 0; t < last; ++t) p[t] = first ? zero_floats() : partial[t];
        products(tiles, blocks, j, a, tokens, buffers[0]);
        for (int64_t b0 = 0; b0 < blocks; b0 += 4) {
            if (b0 + 4 < blocks)  // the matrix unit computes meanwhile
                products(tiles + b0 + 4, blocks - b0 - 4, j, a + (b0 + 4) * tokens, tokens,
                         buffers[(b0 / 4 + 1) % 2]);
            for (int64_t b = b0; b < blocks && b < b0 + 4; ++b) {
                const Record *records = a + b * tokens;
                for (int part = 0; part < kParts; ++part) {
                    const Ints *total = buffers[b0 / 4 % 2][(b - b0) * kParts + part].token;
                    const Floats d = part == 0 ? tiles[b].d[j] : tiles[b].m[j];
#pragma GCC unroll 16
                    for (int t = 0; t < last; ++t) {
                        const Floats scale = _mm512_mul_ps(d, _mm512_set1_ps(records[t].scale[j]));
                        p[t] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(total[t]), p[t]);
                        if constexpr (kHasMinimum<Format>) {
                            const Floats sum = _mm512_set1_ps(records[t].scaled_sum[j]);
                            p[t] = _mm512_fmadd_ps(tiles[b].m[j], sum, p[t]);
                        }
                    }
                }
            }
        }
#pragma GCC unroll 16
        for (int t = 0; t < last; ++t) partial[t] = p[t];
    }

    // Computes partial sum `number` of the contract for row tiles, unpacked as [tile][block], and tokens
    // [t0, t0 + count): sums[tile][token]. False if it has no columns.
    static bool partial_sum(int number, const Tile *unpacked, int tiles, const Task &task, int32_t t0,
                            int count, Floats (*sums)[kTokensAtOnce]) {
        const int64_t blocks = record_count(task.cols);
        const int last_groups = groups_in<TileEngine32>(task.cols, blocks - 1) * kGroups<Format>;
        const int64_t with_group = number < last_groups ? blocks : blocks - 1;
        for (int64_t b = 0; b < with_group; b += kChunk) {
            const Record *a = static_cast<const Record *>(task.packed) + b * task.tokens + t0;
            const int64_t chunk = with_group - b < kChunk ? with_group - b : kChunk;
            for (int r = 0; r < tiles; ++r) {
                const Tile *tile = unpacked + r * blocks + b;
                if (count == kTokens)
                    add_blocks<true>(tile, chunk, number, a, task.tokens, count, b == 0, sums[r]);
                else
                    add_blocks<false>(tile, chunk, number, a, task.tokens, count, b == 0, sums[r]);
            }
        }
        return with_group > 0;
    }
};

// --- blocks of 256 ---------------------------------------------------------------------------------------

// Whether w s fits a signed byte.
template <typename Format>
constexpr bool kOnePlane = false;
template <>
constexpr bool kOnePlane<FormatQ2_K> = true;
template <>
constexpr bool kOnePlane<FormatTQ1_0> = true;
template <>
constexpr bool kOnePlane<FormatTQ2_0> = true;

template <typename Format>
struct TileEngine256 {
    using Record = PackedQ8x256;
    static constexpr int kGroupBytes = Format::kBlockBytes;
    static constexpr int kGroupCols = 256;
    static constexpr int kPlanes = kOnePlane<Format> ? 1 : 2;
    static constexpr int kTokensAtOnce = 2 * kTokens;
    static constexpr int kMinimums = kHasMinimum<Format> ? 128 / Format::kStep : 1;
    struct Tile {
        Ints w[kPlanes][64];  // of w s: the low bytes (a single plane: signed), the high bytes (signed)
        Floats d, dmin;
        Ints minimum[kMinimums];
    };

    // Multiplies the weights in a register by their scales, and splits the products into planes.
    [[gnu::always_inline]] static void scale_weights(Ints w, Ints scale, Tile &tile, int at) {
        const Ints s = scale & splat(0xffff), both = s | left32(s, 16), bytes = splat(0x00ff00ff);
        Ints even = multiply16(w & bytes, both), odd = multiply16(right16(w, 8), both);
        if constexpr (Format::kOffset != 0) {
            const Ints excess = multiply16(both, splat16(Format::kOffset));
            even = _mm512_sub_epi16(even, excess);
            odd = _mm512_sub_epi16(odd, excess);
        }
        tile.w[0][at] = (even & bytes) | left16(odd, 8);
        if constexpr (kPlanes == 2) tile.w[1][at] = right16(even, 8) | (odd & splat(0xff00ff00));
    }

    static void unpack(Rows rows, int, Tile &tile, const std::byte *next) {
        Scales256 s;
        Format::scales(rows, s);
        tile.d = s.d;
        if constexpr (kHasMinimum<Format>) {
            tile.dmin = s.dmin;
#pragma GCC unroll 8
            for (int i = 0; i < kMinimums; ++i) tile.minimum[i] = s.minimum[i];
        }
        Format::weights(
            rows, [&](int j, const Ints(&w)[8]) __attribute__((always_inline)) {
                prefetch_share<TileEngine256>(rows, j, next);
#pragma GCC unroll 8
                for (int i = 0; i < 8; ++i)
                    scale_weights(w[i], s.scale[Format::kStep == 32 ? j : 2 * j + i / 4], tile, 8 * j + i);
            });
    }

    static void shape_tiles(int count) {
        use_tiles(TileShapes(count < kTokens ? count : kTokens, count > kTokens ? count - kTokens : 0, 64));
    }

    // The integer sums of a block: tokens 0-15 times each plane, then tokens 16-31 (second) likewise.
    [[gnu::always_inline]] static void products(const Tile &tile, const Record *a, bool second,
                                                TileSums (&out)[4]) {
        constexpr bool two = kPlanes == 2;
        zero_tile<0>();
        if (two) zero_tile<1>();
        if (second) zero_tile<2>();
        if (two && second) zero_tile<3>();
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) {
            load_tile<4>(a->q + 64 * k, sizeof(Record));
            load_tile<6>(&tile.w[0][16 * k], sizeof(Ints));
            if (second) load_tile<5>(a[kTokens].q + 64 * k, sizeof(Record));
            if constexpr (!two) {
                dot_tiles<0, 4, 6>();
                if (second) dot_tiles<2, 5, 6>();
            } else {
                dot_tiles_unsigned<0, 4, 6>();
                load_tile<7>(&tile.w[1][16 * k], sizeof(Ints));
                if (second) dot_tiles_unsigned<2, 5, 6>();
                dot_tiles<1, 4, 7>();
                if (second) dot_tiles<3, 5, 7>();
            }
        }
        store_tile<0>(out[0].token, sizeof(Ints));
        if (two) store_tile<1>(out[1].token, sizeof(Ints));
        if (second) store_tile<2>(out[2].token, sizeof(Ints));
        if (two && second) store_tile<3>(out[3].token, sizeof(Ints));
    }

    [[gnu::always_inline]] static Ints minimum_sum(const Tile &tile, const Record &r) {
        const int16_t *q = Format::kStep == 32 ? r.sum32 : r.sum16;
        Ints m = splat(0);
#pragma GCC unroll 8
        for (int i = 0; i < kMinimums; ++i) {
            int32_t pair;
            __builtin_memcpy(&pair, q + 2 * i, sizeof pair);
            m = _mm512_dpwssd_epi32(m, tile.minimum[i], _mm512_set1_epi32(pair));
        }
        return m;
    }

    template <bool full>
    [[gnu::always_inline]] static void add_tokens(const Tile &tile, const Record *a, int count,
                                                  const TileSums *out, bool first, Floats *partial) {
#pragma GCC unroll 4
        for (int t = 0; t < (full ? kTokens : count); ++t) {
            Ints total = out[0].token[t];
            if constexpr (kPlanes == 2) total = add32(total, left32(out[1].token[t], 8));
            const Floats scale = _mm512_set1_ps(a[t].scale), before = first ? zero_floats() : partial[t];
            Floats p = _mm512_fmadd_ps(_mm512_mul_ps(tile.d, scale), _mm512_cvtepi32_ps(total), before);
            if constexpr (kHasMinimum<Format>)
                p = _mm512_fnmadd_ps(_mm512_mul_ps(tile.dmin, scale),
                                     _mm512_cvtepi32_ps(minimum_sum(tile, a[t])), p);
            partial[t] = p;
        }
    }

    // As TileEngine32::partial_sum(), of up to 32 tokens.
    static bool partial_sum(int number, const Tile *unpacked, int tiles, const Task &task, int32_t t0,
                            int count, Floats (*sums)[kTokensAtOnce]) {
        const int64_t blocks = record_count(task.cols);
        const int lower = count < kTokens ? count : kTokens;  // tokens in the first tile
        TileSums buffers[2][4];
        for (int64_t b = number; b < blocks; b += 8) {
            const bool first = b == number;
            const Record *a = static_cast<const Record *>(task.packed) + b * task.tokens + t0;
            products(unpacked[b], a, count > kTokens, buffers[0]);
            for (int r = 0; r < tiles; ++r) {
                const Tile &tile = unpacked[r * blocks + b];
                const TileSums *out = buffers[r % 2];
                if (r + 1 < tiles)  // the matrix unit computes meanwhile
                    products(unpacked[(r + 1) * blocks + b], a, count > kTokens, buffers[(r + 1) % 2]);
                if (count == kTokensAtOnce) {
                    add_tokens<true>(tile, a, kTokens, out, first, sums[r]);
                    add_tokens<true>(tile, a + kTokens, kTokens, out + 2, first, sums[r] + kTokens);
                } else {
                    add_tokens<false>(tile, a, lower, out, first, sums[r]);
                    add_tokens<false>(tile, a + kTokens, count - lower, out + 2, first, sums[r] + kTokens);
                }
            }
        }
        return number < blocks;
    }
};

// --- groups of rows --------------------------------------------------------------------------------------

template <typename Engine>
using GroupSums = Floats[kMaxTiles][Engine::kTokensAtOnce];

// total: the sums of all columns; the others: of parts of them.
template <typename Engine>
struct Folding {
    GroupSums<Engine> total, half, pair, partial;
};

template <typename Engine>
[[gnu::always_inline]] inline void add_sums(GroupSums<Engine> &to, const GroupSums<Engine> &from, int tiles,
                                            int count) {
    for (int r = 0; r < tiles; ++r)
        for (int t = 0; t < count; ++t) to[r][t] = to[r][t] + from[r][t];
}

// sums.total = ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)), the fold of the partial sums, which are computed in that order.
// The last ones may have no columns: they are +0, which would change nothing, because no sum is -0.
template <typename Engine>
void fold_partials(const typename Engine::Tile *unpacked, int tiles, const Task &task, int32_t t0, int count,
                   Folding<Engine> &sums) {
    const auto compute = [&](int number, GroupSums<Engine> &to) {
        return Engine::partial_sum(number, unpacked, tiles, task, t0, count, to);
    };
    const auto compute_pair = [&](int number, GroupSums<Engine> &to) {
        if (!compute(number, to)) return false;
        if (compute(number + 4, sums.partial)) add_sums<Engine>(to, sums.partial, tiles, count);
        return true;
    };
    compute_pair(0, sums.total);
    if (compute_pair(2, sums.half)) add_sums<Engine>(sums.total, sums.half, tiles, count);
    if (!compute_pair(1, sums.half)) return;
    if (compute_pair(3, sums.pair)) add_sums<Engine>(sums.half, sums.pair, tiles, count);
    add_sums<Engine>(sums.total, sums.half, tiles, count);
}

// Scratch: copies of rows, sums, then unpacked tiles.
template <typename Engine>
void multiply_groups(const std::byte *weights, int64_t row0, int64_t row1, Task task, const std::byte *next) {
    std::byte *copies = static_cast<std::byte *>(task.scratch);
    const RowTiles rows = row_tiles<Engine>(weights, row0, row1, task.cols, copies);
    auto *sums = reinterpret_cast<Folding<Engine> *>(copies + record_count(task.cols) * kCopyBytes);
    const auto stored = static_cast<__mmask16>((1u << rows.rows()) - 1);
    int shape = 0;
    for_unpacked_groups<Engine>(
        rows, task, kAmxUnpackedBytes, reinterpret_cast<std::byte *>(sums + 1), next,
        [&](const typename Engine::Tile *unpacked, int64_t first, int tiles) {
            for (int32_t t0 = 0; t0 < task.tokens; t0 += Engine::kTokensAtOnce) {
                const int32_t left = task.tokens - t0;
                const int count = left < Engine::kTokensAtOnce ? left : Engine::kTokensAtOnce;
                if (count != shape) Engine::shape_tiles(shape = count);
                fold_partials<Engine>(unpacked, tiles, task, t0, count, *sums);
                for (int r = 0; r < tiles; ++r) {
                    float *out = task.out + t0 * task.out_stride + rows.first_row(first + r);
                    for (int t = 0; t < count; ++t)
                        _mm512_mask_storeu_ps(out + t * task.out_stride, stored, sums->total[r][t]);
                }
            }
        });
    release_tiles();
}

void multiply_amx(gguf::Type type, const std::byte *weights, int64_t cols, int64_t row0, int64_t row1,
                  const void *packed, int32_t tokens, float *out, int64_t out_stride, void *scratch,
                  const std::byte *next) {
    if (tokens < kTiledTokens || act_format(type) == ActFormat::F32 || row0 >= row1)
        return kLinearAvx512.multiply(type, weights, cols, row0, row1, packed, tokens, out, out_stride,
                                      scratch, next);
    const Task task{cols, packed, tokens, out, out_stride, kRows, scratch, nullptr};
    with_engine<TileEngine32, TileEngine256>(
        type, [&](auto engine) { multiply_groups<decltype(engine)>(weights, row0, row1, task, next); });
}

size_t scratch_bytes_amx(int64_t cols) {
    using Largest = TileEngine256<FormatQ4_K>;  // (Q2_K has more minimums and one plane)
    const size_t tiled = sizeof(Folding<Largest>) + scratch_bytes<TileEngine256>(cols, kAmxUnpackedBytes);
    const size_t other = kLinearAvx512.scratch_bytes(cols);
    return tiled > other ? tiled : other;
}

void pack_avx512(ActFormat format, const float *x, int64_t x_stride, int64_t cols, int32_t tokens, int32_t t0,
                 int32_t t1, int64_t col0, int64_t col1, void *packed) {
    kLinearAvx512.pack(format, x, x_stride, cols, tokens, t0, t1, col0, col1, packed);
}

}  // namespace
}  // namespace runnel::kernels::cpu
