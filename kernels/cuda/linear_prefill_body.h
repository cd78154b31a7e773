// The kernels of linear_prefill.h, for linear_prefill.cu and linear_prefill_codebooks.cu: y = W x for many
// tokens; linear_prefill.h says what for and what it can reach, linear.h the order of every operation.
//
// A block of 8 warps computes 8 row tiles x 64 tokens: warp (i, j) the row tiles 2i and 2i + 1 and the tokens
// 32j
// .. 32j + 31, so that with a gate a lane holds gate and up of its outputs. Per 256 columns:
//   - the tiles' bytes, brought into shared memory by cp.async a block ahead, are decoded once, each warp one
//     tile, into int8 operands A (prefill_decode.h; offsets of codes are subtracted here, once);
//   - activations come in chunks of 64 columns (8 KB) by cp.async, three chunks in the ring: they lie in
//   memory in
//     the order of operand B already, columns 2j and 2j + 1 of it being hi and lo of token j;
//   - integer scales are applied to the mma's sums, with groups of 32 and minimums as two mma more per block:
//   the
//     sums of activations in two signed bytes, times the minimums.
// Shared memory is 81-98 KB and registers are above 200, so one block is resident per multiprocessor. Bytes
// from L2 per 128 x 64 outputs and column: 128 of activations and 72 (4 bits) of weights: at 180 TFLOP/s 2.2
// TB/s.
// On sm_75, which has 64 KB and no cp.async, weights are decoded from where they lie, and the ring has two
// chunks.
#pragma once

#include "kernels/cuda/linear_order.h"
#include "kernels/cuda/linear_prefill.h"
#include "kernels/cuda/prefill_decode.h"

namespace runnel::kernels::cuda {

namespace {

constexpr int kThreads = 32 * kPrefillTiles;
constexpr int kWarpColumns = 8;  // 8-column groups of a warp: 32 tokens
constexpr int kGroupTokens = 4;  // tokens of an 8-column group
constexpr int kChunkPieces = 8;  // 16-byte pieces of a token's chunk
constexpr int kTokenPasses = kPrefillTokens * kChunkPieces / kThreads;
constexpr int kSumBits = 6;  // of the lower of the two bytes that sums are cut into

// Sums of activations for minimums: of integer scales cut into bytes ([0] sum >> 6, [1] the rest; one byte
// per group), else hi and lo joined.
template <PrefillClass C>
struct TokenSums {
    uint32_t bytes[2][C.minimum && !C.group_floats ? kPrefillTokens : 1][2][4];
    float joined[C.minimum && C.group_floats ? 8 : 1][kPrefillTokens];
};

inline constexpr TileFormat kPrefillFormats[] = {
    TileFormat::Q4_0,    TileFormat::Q4_1,   TileFormat::Q5_0,  TileFormat::Q5_1,    TileFormat::Q8_0,
    TileFormat::IQ4_NL,  TileFormat::MXFP4,  TileFormat::NVFP4, TileFormat::Q2_K,    TileFormat::Q3_K,
    TileFormat::Q4_K,    TileFormat::Q5_K,   TileFormat::Q6_K,  TileFormat::IQ4_XS,  TileFormat::IQ1,
    TileFormat::IQ2_XXS, TileFormat::IQ2_XS, TileFormat::IQ2_S, TileFormat::IQ3_XXS, TileFormat::IQ3_S};

// The largest book, and the largest block, of the formats of a class.
constexpr int most_book_words(PrefillClass c) {
    int most = 0;
    for (const TileFormat f : kPrefillFormats)
        if (prefill_class(f) == c && book_words(f) > most) most = book_words(f);
    return most;
}
constexpr int64_t raw_bytes(PrefillClass c) {
    int64_t most = 0;
    for (const TileFormat f : kPrefillFormats)
        if (prefill_class(f) == c && block_bytes(f) > most) most = block_bytes(f);
    return most;
}

template <PrefillClass C, int kBlockBytes, bool kTuring>
struct PrefillShared {
    // Of the ring of activations. On sm_75 scales per 16 with books or minimums leave room for one.
    static constexpr int kStages = !kTuring ? 3 : C.groups_of_16 && (C.codebook || C.minimum) ? 1 : 2;
    DecodedWeights<C> weights;
    uint4 raw[kTuring ? 1 : kPrefillTiles][kTuring ? 1 : kBlockBytes / 16];
    uint4 x[kStages][kPrefillTokens][kChunkPieces];
    TokenSums<C> sums;
    float scale[kPrefillTokens];  // of the block's activations
    TileAt tiles[kPrefillTiles];  // of the unit: not in registers, which are short
    uint32_t book[C.codebook ? most_book_words(C) : 1];
};

// --- what a thread brings into shared memory ---------------------------------------------------------------

template <PrefillClass C>
struct Loader {
    static constexpr bool kSums = C.minimum;
    static constexpr int kSumLoads = C.groups_of_16 ? 2 : 1;  // of two groups of a token

    const LinearParams &p;
    const std::byte *tile;  // of this warp, or null
    TileLayout layout;
    const int8_t *from[kTokenPasses];  // the pieces of activations that this thread copies next, or null
    int32_t sum_source;  // the row of x whose sums (and, of every fourth thread, scale) it fetches, or -1
    float scale;         // of the next block
    uint4 sums[kSums ? kSumLoads : 1];

    DEVICE Loader(const LinearParams &params, TileFormat format, TokenGroup group, const std::byte *own_tile)
        : p(params), tile(own_tile), layout(tile_layout(format)) {
        const auto row = [&](int token) {
            if (token >= group.count) return -1;
            return p.sources ? p.sources[group.first + token] : group.first + token;
        };
#pragma unroll
        for (int i = 0; i < kTokenPasses; ++i) {
            const int64_t source = row(thread_index() / kChunkPieces + i * (kThreads / kChunkPieces));
            from[i] = source < 0
                          ? nullptr
                          : p.x.values + source * p.x.values_stride + 16 * (thread_index() % kChunkPieces);
        }
        sum_source = row(thread_index() / 4);
    }

    DEVICE const std::byte *weights_of(int32_t block) const {
        return tile + block * (int64_t{layout.side} + 4 * layout.chunk);
    }
    DEVICE void copy_weights(int32_t block, uint4 (&to)[kPrefillTiles][raw_bytes(C) / 16]) const {
        if (tile == nullptr) return;
        const int bytes = layout.side + chunks_at(p.cols, block) * layout.chunk;
        const std::byte *first = weights_of(block);
        for (int at = lane_index(); at < bytes / 16; at += 32)
            cp_async16(&to[warp_index()][at], first + 16 * at);
    }
    // The next 64 columns.
    DEVICE void copy_chunk(uint4 (&to)[kPrefillTokens][kChunkPieces]) {
        const int piece = thread_index() % kChunkPieces;
#pragma unroll
        for (int i = 0; i < kTokenPasses; ++i) {
            const bool there = from[i] != nullptr;
            cp_async16(&to[thread_index() / kChunkPieces + i * (kThreads / kChunkPieces)][piece],
                       there ? from[i] : p.x.values, there);
            if (there) from[i] += kActivationChunkBytes;
        }
    }
    // The scales and sums of a block, on their way to registers.
    DEVICE void fetch(int32_t block) {
        scale = 0;
        if (thread_index() % 4 == 0 && sum_source >= 0)
            scale = p.x.scales[sum_source * p.x.scales_stride + block];
        if constexpr (kSums) {
#pragma unroll
            for (int i = 0; i < kSumLoads; ++i) {
                sums[i] = {0, 0, 0, 0};
                const int pair = thread_index() % 4 * kSumLoads + i;  // groups 2 pair, 2 pair + 1
                if (sum_source < 0) continue;
                if constexpr (C.groups_of_16)
                    sums[i] = ld128(p.x.sums16 + sum_source * p.x.sums16_stride + 32 * block + 4 * pair);
                else if (2 * pair + 1 < groups_at(p.cols, block))
                    sums[i] = ld128(p.x.sums + sum_source * p.x.sums_stride + 16 * block + 4 * pair);
                else if (2 * pair < groups_at(p.cols, block))
                    sums[i] = first_of(ld64(p.x.sums + sum_source * p.x.sums_stride + 16 * block + 4 * pair));
            }
        }
    }
    static DEVICE uint4 first_of(uint2 v) {
        return {v.x, v.y, 0, 0};
    }

    // What fetch() brought, to shared memory.
    DEVICE void store(TokenSums<C> &to, float (&scales)[kPrefillTokens]) const {
        if (thread_index() % 4 == 0) scales[thread_index() / 4] = scale;
        if constexpr (kSums) {
            const int token = thread_index() / 4;
#pragma unroll
            for (int i = 0; i < kSumLoads; ++i) {
                const int pair = thread_index() % 4 * kSumLoads + i;
                const int32_t high[2] = {static_cast<int32_t>(sums[i].x), static_cast<int32_t>(sums[i].z)};
                const int32_t low[2] = {static_cast<int32_t>(sums[i].y), static_cast<int32_t>(sums[i].w)};
                if constexpr (C.group_floats) {
                    to.joined[2 * pair][token] = join(high[0], low[0]);
                    to.joined[2 * pair + 1][token] = join(high[1], low[1]);
                } else {
                    store_bytes(to, token, 0, pair, high);
                    store_bytes(to, token, 1, pair, low);
                }
            }
        }
    }
    // Two groups' sums of one part. With 8 groups the upper half of the 16 is zero.
    static DEVICE void store_bytes(TokenSums<C> &to, int token, int part, int pair, const int32_t (&v)[2]) {
        constexpr int32_t kMask = (1 << kSumBits) - 1;
        const auto put = [&](int which, int32_t a, int32_t b) {
            auto *pairs = reinterpret_cast<uint16_t *>(to.bytes[which][token][part]);
            pairs[pair] = static_cast<uint16_t>((static_cast<uint32_t>(a) & 0xffu) |
                                                (static_cast<uint32_t>(b) & 0xffu) << 8);
            if constexpr (!C.groups_of_16) pairs[4 + pair] = 0;
        };
        put(0, v[0] >> kSumBits, v[1] >> kSumBits);
        put(1, v[0] & kMask, v[1] & kMask);
    }
};

// --- what a warp computes ----------------------------------------------------------------------------------

template <PrefillClass C>
struct Sums {
    int32_t products[C.group_floats ? 1 : 2][C.group_floats ? 1 : kWarpColumns][4];  // of the block
    float block[C.group_floats ? 2 : 1][C.group_floats ? kWarpColumns : 1][2];       // likewise
    float range[2][kWarpColumns][2], all[2][kWarpColumns][2];  // [tile][column group][row]
};

// {row g, row g + 8} of a tile.
DEVICE uint2 of_rows(const uint32_t (&rows)[8][2]) {
    return ld64(rows[lane_index() >> 2]);
}
DEVICE float2 of_rows(const float (&rows)[8][2]) {
    const uint2 v = ld64(rows[lane_index() >> 2]);
    return {bits_float(v.x), bits_float(v.y)};
}

template <PrefillClass C, class Shared>
struct Multiplier {
    const Shared &shared;
    Sums<C> sums;
    int first_tile, first_token;  // of this warp

    // Two groups of 32 columns: `chunk` of the block, which is in the ring at `stage`.
    DEVICE void multiply_chunk(int chunk, int stage) {
        uint32_t a[2][2][4];  // [tile][group]
        uint2 scale[2][2][C.groups_of_16 ? 2 : 1];
        float2 minimum[2][2];
#pragma unroll
        for (int tile = 0; tile < 2; ++tile)
#pragma unroll
            for (int sub = 0; sub < 2; ++sub) {
                const int group = 2 * chunk + sub;
                const uint4 v = ld128(&shared.weights.codes[first_tile + tile][group][lane_index()]);
                a[tile][sub][0] = v.x, a[tile][sub][1] = v.y, a[tile][sub][2] = v.z, a[tile][sub][3] = v.w;
                load_scales(group, first_tile + tile, scale[tile][sub]);
                if constexpr (C.group_floats && C.minimum)
                    minimum[tile][sub] = of_rows(shared.weights.group_minimum[group][first_tile + tile]);
            }
#pragma unroll
        for (int j = 0; j < kWarpColumns; ++j) {
            // No later column is loaded before: that takes more registers than there are.
            if (j == kWarpColumns / 2) warp_sync();
            // Lane 4g + t reads of column g the piece t: 512 bytes in a row for the warp.
            const uint4 v = ld128(&shared.x[stage][first_token + kGroupTokens * j][0] + lane_index());
            const uint32_t b[2][2] = {{v.x, v.y}, {v.z, v.w}};
            float joined[2] = {};
            if constexpr (C.group_floats && C.minimum)
#pragma unroll
                for (int sub = 0; sub < 2; ++sub)
                    joined[sub] =
                        shared.sums
                            .joined[2 * chunk + sub][first_token + kGroupTokens * j + (lane_index() & 3)];
#pragma unroll
            for (int tile = 0; tile < 2; ++tile)
#pragma unroll
                for (int sub = 0; sub < 2; ++sub) {
                    if constexpr (C.group_floats && C.groups_of_16)
                        add_float_groups_of_16(a[tile][sub], b[sub], scale[tile][sub], sums.block[tile][j]);
                    else if constexpr (C.group_floats)
                        add_float_group(a[tile][sub], b[sub], scale[tile][sub][0], minimum[tile][sub],
                                        joined[sub], sums.block[tile][j]);
                    else if constexpr (C.groups_of_16)
                        add_groups_of_16(a[tile][sub], b[sub], scale[tile][sub], sums.products[tile][j]);
                    else
                        add_group(a[tile][sub], b[sub], scale[tile][sub][0], sums.products[tile][j]);
                }
        }
    }

    DEVICE void load_scales(int group, int tile, uint2 (&to)[C.groups_of_16 ? 2 : 1]) const {
        if constexpr (C.groups_of_16) {
            to[0] = of_rows(shared.weights.scale[2 * group][tile]);
            to[1] = of_rows(shared.weights.scale[2 * group + 1][tile]);
        } else {
            to[0] = of_rows(shared.weights.scale[group][tile]);
        }
    }

    static DEVICE void add_float_group(const uint32_t (&a)[4], const uint32_t (&b)[2], uint2 scale,
                                       float2 minimum, float joined, float (&to)[2]) {
        int32_t c[4] = {kMagicBits, kMagicBits, kMagicBits, kMagicBits};
        mma_s8_k32(c, a, b);
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = bits_float(static_cast<uint32_t>(c[i])) - kMagic;
        to[0] = fma_rn(bits_float(scale.x), join(v[0], v[1]), to[0]);
        to[1] = fma_rn(bits_float(scale.y), join(v[2], v[3]), to[1]);
        if constexpr (C.minimum) {
            to[0] = fma_rn(minimum.x, joined, to[0]);
            to[1] = fma_rn(minimum.y, joined, to[1]);
        }
    }

    static DEVICE void add_float_groups_of_16(const uint32_t (&a)[4], const uint32_t (&b)[2],
                                              const uint2 (&scale)[C.groups_of_16 ? 2 : 1], float (&to)[2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int32_t c[4] = {kMagicBits, kMagicBits, kMagicBits, kMagicBits};
            mma_s8_k16(c, {a[2 * half], a[2 * half + 1]}, b[half]);
            float v[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) v[i] = bits_float(static_cast<uint32_t>(c[i])) - kMagic;
            const uint2 d = scale[C.groups_of_16 ? half : 0];
            to[0] = fma_rn(bits_float(d.x), join(v[0], v[1]), to[0]);
            to[1] = fma_rn(bits_float(d.y), join(v[2], v[3]), to[1]);
        }
    }

    static DEVICE void add_scaled(const int32_t (&c)[4], uint2 scale, int32_t (&to)[4]) {
        const auto first = static_cast<int32_t>(scale.x), second = static_cast<int32_t>(scale.y);
        to[0] += c[0] * first;
        to[1] += c[1] * first;
        to[2] += c[2] * second;
        to[3] += c[3] * second;
    }
    static DEVICE void add_group(const uint32_t (&a)[4], const uint32_t (&b)[2], uint2 scale,
                                 int32_t (&to)[4]) {
        int32_t c[4] = {};
        mma_s8_k32(c, a, b);
        add_scaled(c, scale, to);
    }
    static DEVICE void add_groups_of_16(const uint32_t (&a)[4], const uint32_t (&b)[2],
                                        const uint2 (&scale)[C.groups_of_16 ? 2 : 1], int32_t (&to)[4]) {
        int32_t c[4] = {};
        mma_s8_k16(c, {a[0], a[1]}, b[0]);
        add_scaled(c, scale[0], to);
        int32_t d[4] = {};
        mma_s8_k16(d, {a[2], a[3]}, b[1]);
        add_scaled(d, scale[C.groups_of_16 ? 1 : 0], to);
    }

    // The block's sums go into the range's, and start again.
    DEVICE void finish_block() {
        const int t = lane_index() & 3;
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
            float2 d{}, dmin{};
            if constexpr (!C.group_floats) {
                d = of_rows(shared.weights.d[first_tile + tile]);
                if constexpr (C.minimum) dmin = of_rows(shared.weights.dmin[first_tile + tile]);
            }
#pragma unroll
            for (int j = 0; j < kWarpColumns; ++j) {
                const float s = shared.scale[first_token + kGroupTokens * j + t];
                float(&to)[2] = sums.range[tile][j];
                if constexpr (C.group_floats) {
                    to[0] = fma_rn(s, sums.block[tile][j][0], to[0]);
                    to[1] = fma_rn(s, sums.block[tile][j][1], to[1]);
                    sums.block[tile][j][0] = sums.block[tile][j][1] = 0;
                } else {
                    int32_t(&i)[4] = sums.products[tile][j];
                    to[0] = fma_rn(d.x * s, join(i[0], i[1]), to[0]);
                    to[1] = fma_rn(d.y * s, join(i[2], i[3]), to[1]);
                    i[0] = i[1] = i[2] = i[3] = 0;
                    if constexpr (C.minimum) subtract_minimums(tile, j, {dmin.x * s, dmin.y * s}, to);
                }
            }
        }
    }

    DEVICE void subtract_minimums(int tile, int j, float2 factor, float (&to)[2]) const {
        const int g = lane_index() >> 2, t = lane_index() & 3;
        const int token = first_token + kGroupTokens * j + g / 2;
        const uint32_t(&words)[2][8][4] = shared.weights.minimum[first_tile + tile];
        int32_t c[4] = {};
        mma_s8_k16(c, {words[0][g][t], words[1][g][t]}, shared.sums.bytes[0][token][g % 2][t]);
#pragma unroll
        for (int i = 0; i < 4; ++i) c[i] = c[i] * (1 << kSumBits) + kMagicBits;  // |sum| < 2^22
        mma_s8_k16(c, {words[0][g][t], words[1][g][t]}, shared.sums.bytes[1][token][g % 2][t]);
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = bits_float(static_cast<uint32_t>(c[i])) - kMagic;
        to[0] = fma_rn(-factor.x, join(v[0], v[1]), to[0]);
        to[1] = fma_rn(-factor.y, join(v[2], v[3]), to[1]);
    }

    // A range of blocks is done; the first one starts the sum.
    DEVICE void finish_range(bool first) {
#pragma unroll
        for (int tile = 0; tile < 2; ++tile)
#pragma unroll
            for (int j = 0; j < kWarpColumns; ++j)
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    float &range = sums.range[tile][j][r], &all = sums.all[tile][j][r];
                    all = first ? range : all + range;
                    range = 0;
                }
    }
};

// --- results -----------------------------------------------------------------------------------------------

template <PrefillClass C>
DEVICE void write_outputs(const LinearParams &p, const TileAt *tiles, TokenGroup group, int first_token,
                          const Sums<C> &sums) {
    const int g = lane_index() >> 2, t = lane_index() & 3;
    const bool gate = p.gate != LinearGate::None;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
        if (tiles[tile].matrix < 0 || (gate && tile == 1)) continue;
#pragma unroll
        for (int j = 0; j < kWarpColumns; ++j)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int token = first_token + kGroupTokens * j + t;
                const int32_t row = tiles[tile].tile * kTileRows + g + 8 * r;
                if (token < group.count && row < p.matrix[tiles[tile].matrix].rows)
                    write_output(p, tiles[tile], group, token, row, sums.all[tile][j][r], sums.all[1][j][r]);
            }
    }
}

// --- the kernel --------------------------------------------------------------------------------------------

// This warp's tile, in the launch's format: one of the class.
template <PrefillClass C>
DEVICE void decode(TileFormat format, const std::byte *block, int chunks, const uint32_t *book,
                   DecodedWeights<C> &to) {
    with_format(format, [&](auto f) {
        constexpr TileFormat kFormat = decltype(f)::value;
        if constexpr (prefill_class(kFormat) == C && !is_float(kFormat) && !is_half(kFormat))
            decode_tile<kFormat, C>(block, chunks, warp_index(), book, to);
    });
}

template <PrefillClass C, bool kTuring>
struct LinearPrefillBody {
    using Params = PrefillParams;
    using Shared = PrefillShared<C, raw_bytes(C), kTuring>;
    static_assert(sizeof(Shared) <= (kTuring ? 64 : 99) << 10);
    static constexpr int kStages = Shared::kStages, kAhead = kStages - 1;

    static DEVICE const std::byte *bytes_of(const Params &params, TileAt tile, int32_t expert) {
        if (tile.matrix < 0) return nullptr;
        const LinearMatrix &m = params.linear.matrix[tile.matrix];
        const TileLayout layout = tile_layout(params.format);
        const int64_t tile_bytes =
            col_blocks(params.linear.cols) * layout.side + col_chunks(params.linear.cols) * layout.chunk;
        return m.tiles + (expert * row_tiles(m.rows) + tile.tile) * tile_bytes;
    }

    // The bytes of this warp's block of weights.
    static DEVICE const std::byte *raw(const Loader<C> &loader, const Shared &shared, int32_t block) {
        if constexpr (kTuring)
            return loader.weights_of(block);
        else
            return reinterpret_cast<const std::byte *>(shared.raw[warp_index()]);
    }

    // Eight row tiles times the tokens of a group.
    static DEVICE void multiply(const Params &params, Shared &shared, int32_t unit, TokenGroup group) {
        const LinearParams &p = params.linear;
        const int warp = warp_index();
        // A pair's second tile that is not there is read as the first once more; its results go nowhere.
        TileAt own = tile_at<kPrefillTiles>(p, unit, warp);
        if (own.matrix < 0 && warp % 2 == 1) own = tile_at<kPrefillTiles>(p, unit, warp - 1);
        Loader<C> loader(p, params.format, group, bytes_of(params, own, group.expert));
        Multiplier<C, Shared> multiplier{shared, {}, warp / 2 * 2, warp % 2 * (kPrefillTokens / 2)};
        if (lane_index() == 0) shared.tiles[warp] = tile_at<kPrefillTiles>(p, unit, warp);
        const bool busy = multiplier.first_token < group.count &&
                          tile_at<kPrefillTiles>(p, unit, multiplier.first_tile).matrix >= 0;
        const auto blocks = static_cast<int32_t>(col_blocks(p.cols)),
                   chunks = static_cast<int32_t>(col_chunks(p.cols));
        const int ranges = warps_per_tile(blocks);
        if constexpr (!kTuring) loader.copy_weights(0, shared.raw);
        if constexpr (kAhead > 0) loader.copy_chunk(shared.x[0]);
        cp_async_commit();
        if constexpr (kAhead > 1)
            if (chunks > 1) loader.copy_chunk(shared.x[1]);
        cp_async_commit();
        loader.fetch(0);
        int range = 0, stage = 0;
        for (int32_t chunk = 0; chunk < chunks; ++chunk) {
            const int32_t block = chunk / 4;
            cp_async_wait<1>();  // all but the chunk after this one
            block_sync();  // everybody's copies have come, and nobody reads the chunk before, or its weights
            if (chunk % 4 == 0) {
                if (loader.tile != nullptr)
                    decode<C>(params.format, raw(loader, shared, block), chunks_at(p.cols, block),
                              shared.book, shared.weights);
                loader.store(shared.sums, shared.scale);
                block_sync();
                if constexpr (!kTuring)
                    if (block + 1 < blocks) loader.copy_weights(block + 1, shared.raw);
            }
            const int next = stage + kAhead < kStages ? stage + kAhead : stage + kAhead - kStages;
            if (chunk + kAhead < chunks) loader.copy_chunk(shared.x[next]);
            cp_async_commit();
            if constexpr (kAhead == 0) block_sync();
            if (busy) multiplier.multiply_chunk(chunk % 4, stage);
            if (chunk % 4 == 3 || chunk + 1 == chunks) {
                // Not before: while it multiplies, a thread has no registers to spare.
                if (block + 1 < blocks) loader.fetch(block + 1);
                if (busy) {
                    multiplier.finish_block();
                    if (block + 1 == range_of(blocks, ranges, range).end)
                        multiplier.finish_range(range++ == 0);
                }
            }
            stage = stage + 1 < kStages ? stage + 1 : 0;
        }
        cp_async_wait<0>();
        if (busy)
            write_outputs<C>(p, &shared.tiles[multiplier.first_tile], group, multiplier.first_token,
                             multiplier.sums);
        block_sync();  // shared memory is free for the next unit
    }

    static DEVICE void run(const Params &params) {
        auto &shared = shared_memory<Shared>();
        const LinearParams &p = params.linear;
        if constexpr (C.codebook) fill_book(params.format, shared.book);  // the first block_sync() is far off
        grid_dep_wait();
        const int32_t groups = groups_of<kPrefillTokens>(p);
        const int32_t tiles = tiles_of_unit<kPrefillTiles>(p),
                      units = (tiles_of(p) + tiles - 1) / tiles * groups;
        // Units that share weights follow one another.
        for (int32_t unit = block_index(); unit < units; unit += block_count())
            multiply(params, shared, unit / groups, group_at<kPrefillTokens>(p, unit % groups));
        grid_dep_trigger();
    }
};

template <PrefillClass C>
struct LinearPrefill {
    using Params = PrefillParams;
    static constexpr const char *kName = "linear_prefill";
    static constexpr int kThreads = cuda::kThreads, kBlocks = 1;
    static constexpr SharedBytes kShared = {sizeof(typename LinearPrefillBody<C, false>::Shared),
                                            sizeof(typename LinearPrefillBody<C, true>::Shared)};

    static DEVICE void run(const Params &params) {
        run_for_device<LinearPrefillBody<C, false>, LinearPrefillBody<C, true>>(params);
    }
};

template <PrefillClass C>
struct OfClass {
    static constexpr PrefillClass value = C;
};

}  // namespace

}  // namespace runnel::kernels::cuda
