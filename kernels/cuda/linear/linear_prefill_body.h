// The kernels of linear_prefill.h, for linear_prefill.cu and linear_prefill_codebooks.cu: y = W x for many
// tokens. linear_prefill.h states their purpose and cost, linear.h the order of every operation.
//
// A block of 8 warps computes 16 row tiles x 48 tokens, warp i the row tiles 2i and 2i + 1, so that with a gate a lane holds
// gate and up of its outputs. Everything arrives by cp.async, a step ahead: each warp's own weights chunk by chunk of 64
// columns, their side planes block by block, and activations (6 KB per chunk), which are stored in the order of operand B.
// Weights become binary16 integers in registers (fragments.h), once for all tokens. A product over a group of 32 (or 16)
// columns is one exact number per output and costs one multiply-add with the group's scale, of integers or of float32
// (linear.h). Sums of the current block and range are in registers; those of finished ranges, which change every eighth of
// the columns, in shared memory (48 KB, each lane its own). More tokens would need more registers than there are.
//
// Bytes from L2 per 256 x 48 outputs and column: 96 of activations and 144 (4.5 bits) of weights.
//
// sm_75, with 64 KB of shared memory, computes 16 tokens at a time.
#pragma once

#include <algorithm>

#include "kernels/cuda/linear/block_scales.h"
#include "kernels/cuda/linear/fragments.h"
#include "kernels/cuda/linear/linear_order.h"
#include "kernels/cuda/linear/linear_prefill.h"

namespace runnel::kernels::cuda {

namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
static_assert(kPrefillTiles == 2 * kWarps);
constexpr int kChunkPieces = kActivationChunk / 8;  // 16-byte pieces of a token's chunk

template <TileFormat F, bool kTuring>
struct PrefillShared {
    static constexpr int kTokens = kTuring ? kPrefillTokens / 3 : kPrefillTokens;
    // Chunks per copy: formats with two chunks per load need both.
    static constexpr int kStep = has_pairs(F) ? 2 : 1, kStepBytes = kStep * tile_layout(F).chunk;
    static constexpr bool kMinimums = has_minimum(F), kIntegerMinimums = kMinimums && !has_group_floats(F);
    static constexpr int kSumPieces = has_groups_of_16(F) ? 4 : 2;  // 16-byte pieces of a token's sums
    static constexpr int kSumBlocks = kIntegerMinimums ? 2 : 1;
    uint4 x[2][2][kTokens][kChunkPieces / 2];  // [32 columns][token]
    uint4 main[2][kPrefillTiles][kStepBytes / 16];
    uint4 side[kPrefillTiles][tile_layout(F).side / 16];  // of the next block
    float4 all[kWarps][2][kTokens / 8][32];               // sums of the finished ranges
    // Sums of the current and the next block: in parts (activations.h), for float minimums also added up.
    uint4 sums[kSumBlocks][kMinimums ? kTokens : 1][kSumPieces];
    float group_sums[2][kMinimums && !kIntegerMinimums ? 8 : 1][kTokens];
    float4 scales[2][kTokens];    // of four blocks, and of the next four
    TileAt tiles[kPrefillTiles];  // of the unit; here because registers are short
    uint32_t book[std::max(book_words(F), 1)];
};

// --- what a thread copies into shared memory ---------------------------------------------------------------

template <TileFormat F, bool kTuring>
struct PrefillLoader {
    using Shared = PrefillShared<F, kTuring>;
    static constexpr int kTokens = Shared::kTokens,
                         kPasses = (kTokens * kChunkPieces + kThreads - 1) / kThreads;

    const LinearParams &p;
    const TokenGroup group;
    int32_t rows[kPasses];  // rows of activations that the thread copies; -1: none

    DEVICE PrefillLoader(const LinearParams &params, TokenGroup tokens) : p(params), group(tokens) {
#pragma unroll
        for (int i = 0; i < kPasses; ++i)
            rows[i] = row(thread_index() / kChunkPieces + i * (kThreads / kChunkPieces));
    }
    DEVICE int32_t row(int token) const {
        return token < group.count && token < kTokens ? source_row(p, group, token) : -1;
    }

    // Copies chunk kC of block `at` of the activations; with chunk 0 also scales (of 4 blocks) and sums.
    template <int kC>
    DEVICE void copy(Shared &shared, int32_t at) const {
        const int piece = thread_index() % kChunkPieces;
#pragma unroll
        for (int i = 0; i < kPasses; ++i) {
            const int token = thread_index() / kChunkPieces + i * (kThreads / kChunkPieces);
            if (token < kTokens)
                copy_piece(&shared.x[kC % 2][piece / 4][token][piece % 4], p.x.codes, rows[i],
                           p.x.codes_stride, kActivationGroup * at + kActivationChunk * kC + 8 * piece);
        }
        if constexpr (kC == 0) {
            if (at % 4 == 0 && thread_index() < kTokens)
                copy_piece(&shared.scales[at / 4 % 2][thread_index()], p.x.scales, row(thread_index()),
                           p.x.scales_stride, at);
            if constexpr (Shared::kIntegerMinimums) copy_sums(shared, at);
        }
    }
    // Copies the sums of a block's groups, in parts (activations.h).
    DEVICE void copy_sums(Shared &shared, int32_t block) const {
        constexpr int kPieces = Shared::kSumPieces;
        const int token = thread_index() / kPieces, piece = thread_index() % kPieces;
        if (token >= kTokens) return;
        const uint16_t *sums = has_groups_of_16(F) ? p.x.sums16 : p.x.sums;
        copy_piece(&shared.sums[block % Shared::kSumBlocks][token][piece], sums, row(token),
                   has_groups_of_16(F) ? p.x.sums16_stride : p.x.sums_stride, 8 * (kPieces * block + piece));
    }
    // For float minimums: adds up the copied parts to the sums that are multiplied.
    DEVICE void add_sums(Shared &shared, int32_t block) const {
        for (int i = thread_index(); i < 8 * kTokens; i += kThreads) {
            const int token = i / 8, index = i % 8;
            const auto *parts = reinterpret_cast<const uint16_t *>(shared.sums[0][token]);
            shared.group_sums[block % 2][index][token] =
                f16_to_f32(parts[index]) + f16_to_f32(parts[8 + index]);
        }
    }

  private:
    template <class T>
    static DEVICE void copy_piece(void *to, const T *from, int32_t row, int64_t stride, int32_t at) {
        cp_async16(to, row >= 0 ? from + row * stride + at : from, row >= 0);
    }
};

// --- what a warp multiplies --------------------------------------------------------------------------------

// Two row tiles times the tokens of the block. Sums: [tile][group of 8 tokens][C of mma_f16_k16].
template <TileFormat F, bool kTuring>
struct PrefillMultiplier {
    using Shared = PrefillShared<F, kTuring>;
    static constexpr int kColumns = Shared::kTokens / 8;  // 8-column groups
    using Sums = float[2][kColumns][4];
    using Half = HalfProducts<F>;

    Shared &shared;
    const Book<F> &book;
    const std::byte *tile[2];
    bool few;  // at most kTokens / 2 tokens exist
    MainRegisters<F> main[2];
    SideRegisters<F> side[2];
    BlockSum<F> block[2][kColumns][4];
    Sums range;

    // Copies kPieces pieces of 16 bytes of both tiles, from byte `at` on.
    template <int kPieces>
    DEVICE void copy(uint4 (*to)[kPieces], int64_t at) const {
        for (int i = lane_index(); i < 2 * kPieces; i += 32) {
            const int second = i >= kPieces ? 1 : 0, piece = i - second * kPieces;
            cp_async16(&to[2 * warp_index() + second][piece],
                       (second == 0 ? tile[0] : tile[1]) + at + 16 * piece);
        }
    }
    // The main planes of chunk kC (for pairs, also the next): copied to shared memory, loaded to registers.
    template <int kC>
    DEVICE void copy_weights(int32_t at) const {
        constexpr TileLayout kLayout = tile_layout(F);
        if constexpr (kC % Shared::kStep == 0)
            copy(shared.main[kC / Shared::kStep % 2],
                 at * block_bytes(F) + kLayout.side + kC * kLayout.chunk);
    }
    template <int kC>
    DEVICE void load_weights() {
        constexpr int kStep = Shared::kStep, kBefore = tile_layout(F).side + kC * tile_layout(F).chunk;
        if constexpr (kC % kStep == 0) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint4 *own = shared.main[kC / kStep % 2][2 * warp_index() + i];
                // load_chunk() expects the start of a block: pass the address where it would be.
                load_chunk<F, kC + kStep - 1, CachedWeights>(
                    reinterpret_cast<const std::byte *>(own) - kBefore, main[i]);
            }
        }
    }

    // The side planes of a block: copied to shared memory, loaded to registers.
    DEVICE void copy_sides(int32_t at) const {
        copy(shared.side, at * block_bytes(F));
    }
    DEVICE void load_sides() {
#pragma unroll
        for (int i = 0; i < 2; ++i)
            load_side<F, CachedWeights>(
                reinterpret_cast<const std::byte *>(shared.side[2 * warp_index() + i]), side[i]);
    }

    // Multiplies the 32 columns of chunk kC, sub kS.
    template <int kC, int kS>
    DEVICE void multiply_group(const BlockScales<F> (&scales)[2], int buffer, uint32_t (&later)[2][4]) {
        constexpr int kGroup = 2 * kC + kS, kParts = has_groups_of_16(F) ? 2 : 1;
        constexpr bool kMinimum = Shared::kMinimums && !Shared::kIntegerMinimums;
        uint32_t a[2][2][4];
        typename BlockSum<F>::Number d[2][kParts][2];
        float minimum[2][2];
        BlockSum<F> start[2][2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            weight_numbers<F, kC, kS>(main[i], side[i], book, a[i], later[i]);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                d[i][0][r] = scales[i].template factor<kParts * kGroup>(r);
                if constexpr (kParts == 2) d[i][1][r] = scales[i].template factor<kParts * kGroup + 1>(r);
                if constexpr (kMinimum) minimum[i][r] = group_minimum<F, kGroup>(side[i], r);
                if constexpr (kGroup == 0) start[i][r] = Half::start(scales[i], r);
            }
        }
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
            // Keeps later columns from being loaded early: that would take too many registers.
            if (j % 3 == 0) warp_sync();
            if (j == kColumns / 2 && few) break;
            // Lane 4g + t reads piece t of token g: 512 adjacent bytes for the warp.
            const uint4 b = ld128(&shared.x[kC % 2][kS][8 * j][0] + lane_index());
            float2 sums{};
            if constexpr (kMinimum)
                sums = *reinterpret_cast<const float2 *>(
                    &shared.group_sums[buffer][kGroup][8 * j + 2 * (lane_index() & 3)]);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float c[kParts][4];
#pragma unroll
                for (int part = 0; part < kParts; ++part)
#pragma unroll
                    for (int k = 0; k < 4; ++k) c[part][k] = Half::kStart;
                mma_f16_k16(c[0], a[i][0], {b.x, b.y});
                mma_f16_k16(c[kParts - 1], a[i][1], {b.z, b.w});
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    BlockSum<F> &to = block[i][j][k];
                    if constexpr (kGroup == 0) to = start[i][k / 2];
#pragma unroll
                    for (int part = 0; part < kParts; ++part) to.add(d[i][part][k / 2], Half::of(c[part][k]));
                    if constexpr (kMinimum) to.add(minimum[i][k / 2], k % 2 == 0 ? sums.x : sums.y);
                }
            }
        }
    }

    DEVICE float scale_of(int32_t at, int token) const {
        return reinterpret_cast<const float *>(&shared.scales[at / 4 % 2][token])[at % 4];
    }

    // At the end of a block's columns: adds its sums to the range's.
    DEVICE void finish_block(const BlockScales<F> (&scales)[2], int32_t at) {
        const int buffer = at % 2, g = lane_index() >> 2, t = lane_index() & 3;
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
            if (j == kColumns / 2 && few) break;
            const float s[2] = {scale_of(at, 8 * j + 2 * t), scale_of(at, 8 * j + 2 * t + 1)};
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float c[4] = {};
                if constexpr (Shared::kIntegerMinimums) {
                    const auto *words = reinterpret_cast<const uint32_t *>(shared.sums[buffer][8 * j + g]);
                    minimum_sums<F>(
                        scales[i].rows,
                        [&](auto part, auto half) {
                            return words[2 * Shared::kSumPieces * decltype(part)::value +
                                         4 * decltype(half)::value + t];
                        },
                        c);
                }
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    float b = block[i][j][k].value(scales[i], k / 2);
                    if constexpr (Shared::kIntegerMinimums) b = fma_rn(-scales[i].rows[k / 2].dmin, c[k], b);
                    range[i][j][k] = fma_rn(s[k % 2], b, range[i][j][k]);
                }
            }
        }
    }

    // At the end of a range of blocks: adds `range` to shared.all and clears it.
    DEVICE void finish_range(bool first) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int j = 0; j < kColumns; ++j) {
                float4 &all = shared.all[warp_index()][i][j][lane_index()];
                float(&own)[4] = range[i][j];
                float4 sum = {own[0], own[1], own[2], own[3]};
                if (!first) {
                    const float4 before = all;
                    sum = {before.x + sum.x, before.y + sum.y, before.z + sum.z, before.w + sum.w};
                }
                all = sum;
                own[0] = own[1] = own[2] = own[3] = 0;
            }
    }

    // Writes the lane's own sums of shared.all. (Loops: 48 copies of write_output() would be most of the kernel.)
    static DEVICE void write_outputs(const Shared &shared, const LinearParams &p, TokenGroup group) {
        const int g = lane_index() >> 2, t = lane_index() & 3, tiles = p.gate != LinearGate::None ? 1 : 2;
#pragma unroll 1
        for (int i = 0; i < tiles; ++i) {
            const TileAt at = shared.tiles[2 * warp_index() + i];
            if (at.matrix < 0) continue;
#pragma unroll 1
            for (int j = 0; j < kColumns; ++j) {
                const float4 y = shared.all[warp_index()][i][j][lane_index()],
                             up = shared.all[warp_index()][1][j][lane_index()];
                const float ys[4] = {y.x, y.y, y.z, y.w}, ups[4] = {up.x, up.y, up.z, up.w};
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    const int token = 8 * j + 2 * t + k % 2;
                    const int32_t row = at.tile * kTileRows + g + k / 2 * 8;
                    if (token < group.count && row < p.matrix[at.matrix].rows)
                        write_output(p, at, group, token, row, ys[k], ups[k]);
                }
            }
        }
    }
};

// --- the kernel --------------------------------------------------------------------------------------------

template <TileFormat F, bool kTuring>
struct LinearPrefillBody {
    using Params = PrefillParams;
    using Shared = PrefillShared<F, kTuring>;
    using Loader = PrefillLoader<F, kTuring>;
    using Multiplier = PrefillMultiplier<F, kTuring>;
    static_assert(sizeof(Shared) <= (kTuring ? 64 : 99) << 10);
    static constexpr bool kFloatMinimums = Shared::kMinimums && !Shared::kIntegerMinimums;

    // The position of the loop over the columns.
    struct Position {
        int32_t blocks, cols;  // of the matrix
        int32_t block;

        DEVICE bool more() const { return block + 1 < blocks; }
        DEVICE bool has(int chunk) const { return 256 * block + 64 * chunk < cols; }
    };

    // Called by all threads: waits for chunk kC of a block and issues the copies of the next chunk.
    template <int kC>
    static DEVICE void start_chunk(Shared &shared, const Loader &loader, const Multiplier &m, bool busy,
                                   const Position &at) {
        cp_async_wait<0>();
        block_sync();  // all copies have arrived, and the previous chunk is no longer read
        if (at.has(kC + 1)) {
            const int32_t block = at.block + (kC + 1) / 4;
            loader.template copy<(kC + 1) % 4>(shared, block);
            if (busy) m.template copy_weights<(kC + 1) % 4>(block);
        }
        // Side planes of the next block: chunk 0 was the last to read those of this one.
        if (kC == 1 && at.more()) {
            if (busy) m.copy_sides(at.block + 1);
            if constexpr (kFloatMinimums) loader.copy_sums(shared, at.block + 1);
        }
        cp_async_commit();
        if (kFloatMinimums && kC == 3 && at.more()) loader.add_sums(shared, at.block + 1);
    }

    // Multiplies chunk kC of a block, for which start_chunk() has waited.
    template <int kC>
    static DEVICE void multiply_chunk(const Loader &loader, Multiplier &m, const BlockScales<F> (&scales)[2],
                                      const Position &at) {
        m.template load_weights<kC>();
        uint32_t later[2][4] = {};
        const int buffer = at.block % 2;
        m.template multiply_group<kC, 0>(scales, buffer, later);
        if (2 * kC + 1 < groups_at(loader.p.cols, at.block))
            m.template multiply_group<kC, 1>(scales, buffer, later);
    }

    template <int kC>
    static DEVICE void next_chunk(Shared &shared, const Loader &loader, Multiplier &m,
                                  const BlockScales<F> (&scales)[2], const Position &at) {
        if (!at.has(kC)) return;
        start_chunk<kC>(shared, loader, m, true, at);
        multiply_chunk<kC>(loader, m, scales, at);
    }

    // Multiplies the warp's two row tiles by the tokens.
    static DEVICE void multiply_tiles(Shared &shared, const Loader &loader, Multiplier &m, Position &at) {
        const int ranges = column_ranges(loader.p.range_blocks);
        int finished = 0;  // ranges
        for (; at.block < at.blocks; ++at.block) {
            start_chunk<0>(shared, loader, m, true, at);
            m.load_sides();
            const BlockScales<F> scales[2] = {BlockScales<F>(m.side[0]), BlockScales<F>(m.side[1])};
            multiply_chunk<0>(loader, m, scales, at);
            next_chunk<1>(shared, loader, m, scales, at);
            next_chunk<2>(shared, loader, m, scales, at);
            next_chunk<3>(shared, loader, m, scales, at);
            m.finish_block(scales, at.block);
            if (at.block + 1 == range_of(at.blocks, ranges, finished).end) m.finish_range(finished++ == 0);
        }
    }

    // For a warp without row tiles: it only takes part in the copies.
    static DEVICE void copy_only(Shared &shared, const Loader &loader, const Multiplier &m, Position &at) {
        for (; at.block < at.blocks; ++at.block) {
            start_chunk<0>(shared, loader, m, false, at);
            if (at.has(1)) start_chunk<1>(shared, loader, m, false, at);
            if (at.has(2)) start_chunk<2>(shared, loader, m, false, at);
            if (at.has(3)) start_chunk<3>(shared, loader, m, false, at);
        }
    }

    // Multiplies the sixteen row tiles of a unit by the tokens of a group.
    static DEVICE void multiply(const LinearParams &p, Shared &shared, const Book<F> &book, int32_t unit,
                                TokenGroup group) {
        const int slot = 2 * warp_index();
        const TileAt first = tile_at<kPrefillTiles>(p, unit, slot);
        const bool busy = first.matrix >= 0;
        if (lane_index() < 2)
            shared.tiles[slot + lane_index()] = tile_at<kPrefillTiles>(p, unit, slot + lane_index());
        Multiplier m{shared, book, {nullptr, nullptr}, group.count <= Shared::kTokens / 2, {}, {}, {}, {}};
        const Loader loader(p, group);
        Position at{static_cast<int32_t>(col_blocks(p.cols)), p.cols, 0};
        if (busy) {
            // A missing second tile is replaced by the first; its results are dropped.
            TileAt second = tile_at<kPrefillTiles>(p, unit, slot + 1);
            if (second.matrix < 0) second = first;
            m.tile[0] = tile_bytes(p, F, first.matrix, first.tile, group.expert);
            m.tile[1] = tile_bytes(p, F, second.matrix, second.tile, group.expert);
            m.copy_sides(0);
            m.template copy_weights<0>(0);
        }
        loader.template copy<0>(shared, 0);
        if constexpr (kFloatMinimums) loader.copy_sums(shared, 0);
        cp_async_commit();
        if constexpr (kFloatMinimums) {
            cp_async_wait<0>();
            block_sync();
            loader.add_sums(shared, 0);
        }
        if (busy)
            multiply_tiles(shared, loader, m, at);
        else
            copy_only(shared, loader, m, at);
        cp_async_wait<0>();
        if (busy) Multiplier::write_outputs(shared, p, group);
        block_sync();  // shared memory is free for the next unit
    }

    static DEVICE void run(const Params &params) {
        auto &shared = shared_memory<Shared>();
        const LinearParams &p = params.linear;
        Book<F> book;
        if constexpr (has_codebook(F)) {
            fill_book(F, shared.book);  // a block_sync() follows before it is read
            book = Book<F>(shared.book);
        }
        grid_dep_wait();
        const int32_t groups = groups_of(p, params.slice), tiles = tiles_of_unit<kPrefillTiles>(p),
                      units = (tiles_of(p) + tiles - 1) / tiles * groups;
        // Units that share weights are adjacent.
        for (int32_t unit = block_index(); unit < units; unit += block_count()) {
            const TokenGroup group = group_at(p, params.slice, unit % groups);
            if constexpr (kTuring) {
                for (int32_t done = 0; done < group.count; done += Shared::kTokens) {
                    const int32_t left = group.count - done;
                    multiply(
                        p, shared, book, unit / groups,
                        {group.expert, group.first + done, left < Shared::kTokens ? left : Shared::kTokens});
                }
            } else {
                multiply(p, shared, book, unit / groups, group);
            }
        }
        grid_dep_trigger();
    }
};

template <TileFormat F>
struct LinearPrefill {
    using Params = PrefillParams;
    static constexpr const char *kName = "linear_prefill";
    static constexpr int kThreads = cuda::kThreads, kBlocks = 1;
    static constexpr SharedBytes kShared = {sizeof(PrefillShared<F, false>), sizeof(PrefillShared<F, true>)};

    static DEVICE void run(const Params &params) {
        run_for_device<LinearPrefillBody<F, false>, LinearPrefillBody<F, true>>(params);
    }
};

}  // namespace

}  // namespace runnel::kernels::cuda
