// The kernels of linear.h, for linear.cu and linear_codebooks.cu: y = W x for up to 16 tokens at a time;
// linear.h holds the order of every operation.
//
// Weights are operand A of the tensor cores (16 rows of a tile), activations operand B: columns 2t and 2t +
// 1 of an 8-column product are tokens t and t + 4 of eight. A lane's accumulators are then those of its own
// tokens 4 * group + t for rows g and g + 8, and with up to four tokens half of them are not used. Quantized
// weights become integers in binary16 (fragments.h): the sums of a group are exact.
//
// A block of 8 warps forms 8 / W teams of W = warps_per_tile warps. A team takes one tile of 16 rows at a
// time (assigned by block index, a persistent grid), each of its warps a range of blocks; partial sums meet
// in shared memory, and one thread per output adds them in order and writes the result. In each step, a warp
// loads the next block of weights (2-4 KB) while it multiplies the current one. Activations are read from
// L1: a warp's share of them is small, and all warps of the multiprocessor with the same range share it.
//
// The input of the next launch can be quantized here (LinearParams::prepare), by the block that happens to
// complete it. This saves a launch and the gap before it, about 1.3 us inside a graph on an H100. A block
// counts its tiles after it has done them all, so the loop is unaffected and no block waits for
// another.
//
// Bytes: each weight once, 16 bytes per lane and load; activations 2 n per column and multiprocessor;
// outputs 4 n per row.
//
// F16 and BF16 weights enter the tensor cores without conversion: 16 columns of 8 tokens are one
// instruction, and a warp loads 2 KB (64 columns) ahead. Activations are 2 n bytes per column. F32 weights
// are multiplied by plain fma in float32.
#pragma once

#include <type_traits>

#include "kernels/cuda/linear/fragments.h"
#include "kernels/cuda/linear/halves.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/linear_order.h"
#include "kernels/cuda/linear/quantize_row.h"
#include "kernels/cuda/runtime/math.h"
#include "kernels/cuda/runtime/parameters.h"
#include "kernels/cuda/steps/float_steps.h"

namespace runnel::kernels::cuda {

namespace {

constexpr int kWarps = kLinearThreads / 32;
constexpr int kGroupTokens = 4;                            // a product has 8 columns: two groups
constexpr int kGroupTiles = kActivationGroup / kTileRows;  // row tiles of a group of 256 outputs

// --- one block of weights times the activations of kGroups * 4 tokens --------------------------------------

// The rows of activations that a lane needs. column[m]: the row that it loads as column g of product m, which is
// that of token 8m + g / 2, or of 4 more if g is odd. own[j]: the row of the token that its sums j belong to.
// Columns without a token repeat token 0; their results are dropped.
template <int kGroups, bool kGrouped>
struct LaneTokens {
    static constexpr int kProducts = (kGroups + 1) / 2;
    int32_t column[kProducts], own[kGroups];  // rows of the activations

    DEVICE LaneTokens(const LinearParams &p, TokenGroup group) {
        const int g = lane_index() >> 2, t = lane_index() & 3;
        const auto source = [&](int row) {
            row = group.first + (row < group.count ? row : 0);
            return kGrouped && p.sources ? p.sources[row] : row;
        };
#pragma unroll
        for (int m = 0; m < kProducts; ++m) column[m] = source(8 * m + g % 2 * kGroupTokens + g / 2);
#pragma unroll
        for (int j = 0; j < kGroups; ++j) own[j] = source(kGroupTokens * j + t);
    }
};

template <int kGroups, bool kGrouped>
struct LaneActivations : LaneTokens<kGroups, kGrouped> {
    using LaneTokens<kGroups, kGrouped>::kProducts, LaneTokens<kGroups, kGrouped>::column,
        LaneTokens<kGroups, kGrouped>::own;
    const Activations &x;
    int32_t piece[kProducts];  // offset in x.codes, of the first 32 columns

    DEVICE LaneActivations(const LinearParams &p, TokenGroup group)
        : LaneTokens<kGroups, kGrouped>(p, group), x(p.x) {
#pragma unroll
        for (int m = 0; m < kProducts; ++m)
            piece[m] = column[m] * static_cast<int32_t>(x.codes_stride) + 8 * (lane_index() & 3);
    }
    // The operands B of 32 columns, for product m.
    DEVICE uint4 load(int m, int32_t group) const {
        return ld128(x.codes + piece[m] + 32 * group);
    }
    DEVICE float scale(int j, int32_t block) const {
        return x.scales[own[j] * static_cast<int32_t>(x.scales_stride) + block];
    }
    // The sums (activations.h) of a chunk's two groups of 32, of the lane's token: x has the first parts, y the second.
    DEVICE uint2 parts(int j, int32_t chunk) const {
        const uint16_t *first =
            x.sums + own[j] * static_cast<int32_t>(x.sums_stride) + chunk / 4 * kSumParts + chunk % 4 * 2;
        return {*reinterpret_cast<const uint32_t *>(first), *reinterpret_cast<const uint32_t *>(first + 8)};
    }
    // Operand B of minimum_sums() for a block: part kPart of the sums of groups k, k + 1, k = 8 kHalf + 2t.
    template <TileFormat F, int kPart, int kHalf>
    DEVICE uint32_t sums(int m, int32_t block) const {
        constexpr int kGroupsOfBlock = has_groups_of_16(F) ? 16 : 8;
        const uint16_t *first = has_groups_of_16(F)
                                    ? x.sums16 + column[m] * static_cast<int32_t>(x.sums16_stride)
                                    : x.sums + column[m] * static_cast<int32_t>(x.sums_stride);
        return *reinterpret_cast<const uint32_t *>(first + (2 * block + kPart) * kGroupsOfBlock + 8 * kHalf +
                                                   2 * (lane_index() & 3));
    }
};

// The block that a warp processes after the current one; 0 chunks: there is none.
struct NextBlock {
    const std::byte *block;
    int chunks;
};

// Calls f(chunk, sub), both Constants, for the first `groups` groups of 32 columns. As soon as a
// chunk's registers are free, loads the same chunk of the next block into them: a rolling prefetch of
// one block.
template <TileFormat F, class Function>
DEVICE void for_groups(int groups, MainRegisters<F> &w, NextBlock next, const Function &f) {
    const auto chunk = [&](auto c) {
        constexpr int kC = decltype(c)::value;
        if (2 * kC < groups) f(c, Constant<0>());
        if (2 * kC + 1 < groups) f(c, Constant<1>());
        if (kC < next.chunks) load_chunk<F, kC>(next.block, w);
    };
    chunk(Constant<0>());
    chunk(Constant<1>());
    chunk(Constant<2>());
    chunk(Constant<3>());
}

// Whether the side planes of the next block are loaded in the middle of a block, not at its start: formats
// that unpack their scales cannot spare the registers for longer. (Their blocks always have 8 groups.)
constexpr bool loads_sides_late(TileFormat f) {
    return !has_group_floats(f);
}

// The sums of activations that minimum_sums() multiplies, for one product.
template <TileFormat F>
struct MinimumOperands {
    static constexpr int kHalves = has_groups_of_16(F) ? 2 : 1;
    uint32_t of[2][kHalves];  // [part][half]

    template <int kGroups, bool kGrouped>
    DEVICE void load(const LaneActivations<kGroups, kGrouped> &x, int m, int32_t block) {
        of[0][0] = x.template sums<F, 0, 0>(m, block);
        of[1][0] = x.template sums<F, 1, 0>(m, block);
        if constexpr (kHalves == 2) {
            of[0][1] = x.template sums<F, 0, 1>(m, block);
            of[1][1] = x.template sums<F, 1, 1>(m, block);
        }
    }
};

// Multiplies a block of weights with the activations of its columns. Meanwhile loads `next` into w and side.
template <TileFormat F, int kGroups, bool kGrouped>
DEVICE void multiply_block(MainRegisters<F> &w, SideRegisters<F> &side, NextBlock next, const Book<F> &book,
                           const LaneActivations<kGroups, kGrouped> &x, int32_t block, int groups,
                           float (&p)[kGroups][2]) {
    constexpr int kProducts = LaneActivations<kGroups, kGrouped>::kProducts;
    constexpr bool kScalesEarly = F == TileFormat::Q4_K;  // other formats have no registers for it
    constexpr bool kMinimumSums = !has_group_floats(F) && has_minimum(F);
    const SideRegisters<F> own = side;
    const BlockScales<F> scales(own);
    constexpr int kSideGroup =
        loads_sides_late(F) ? 4 : 0;  // the group at which the next side planes are loaded
    float sum[kGroups][2] = {};
    uint32_t later[4] = {};
    uint2 parts[kGroups];  // float minimums: the sums of the chunk's two groups
    MinimumOperands<F> minimums[kProducts] = {};
    float scale[kGroups] = {};
    for_groups<F>(has_group_floats(F) ? groups : 8, w, next, [&](auto chunk, auto sub) {
        constexpr int kC = decltype(chunk)::value, kS = decltype(sub)::value, kGroup = 2 * kC + kS;
        constexpr int kParts = has_groups_of_16(F) ? 2 : 1;  // parts of the 32 columns that have a scale each
        if (kGroup == kSideGroup && next.chunks > 0) load_side<F>(next.block, side);
        if constexpr (kMinimumSums && kGroup == 6)
#pragma unroll
            for (int m = 0; m < kProducts; ++m) minimums[m].load(x, m, block);
        if constexpr (kScalesEarly && kGroup == 6)
#pragma unroll
            for (int j = 0; j < kGroups; ++j) scale[j] = x.scale(j, block);
        uint32_t a[2][4];
        weight_numbers<F, kC, kS>(w, own, book, a, later);
        float d[kParts][2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            d[0][r] = scales.template factor<kParts * kGroup>(r);
            if constexpr (kParts == 2) d[1][r] = scales.template factor<kParts * kGroup + 1>(r);
        }
#pragma unroll
        for (int m = 0; m < kProducts; ++m) {
            const uint4 b = x.load(m, 8 * block + kGroup);
            float c[kParts][4] = {};
            mma_f16_k16(c[0], a[0], {b.x, b.y});
            mma_f16_k16(c[kParts - 1], a[1], {b.z, b.w});
#pragma unroll
            for (int i = 0; i < 2 && i < kGroups; ++i)
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    float &to = sum[2 * m + i][r];
#pragma unroll
                    for (int part = 0; part < kParts; ++part) to = fma_rn(d[part][r], c[part][2 * r + i], to);
                }
        }
        if constexpr (has_group_floats(F) && has_minimum(F)) {
#pragma unroll
            for (int j = 0; j < kGroups; ++j) {
                if constexpr (kS == 0) parts[j] = x.parts(j, 4 * block + kC);
                const float s = half_of(parts[j].x, kS) + half_of(parts[j].y, kS);
#pragma unroll
                for (int r = 0; r < 2; ++r)
                    sum[j][r] = fma_rn(group_minimum<F, kGroup>(own, r), s, sum[j][r]);
            }
        }
    });
    if constexpr (kMinimumSums) {
#pragma unroll
        for (int m = 0; m < kProducts; ++m) {
            float c[4] = {};
            minimum_sums<F>(
                scales.rows,
                [&](auto part, auto half) {
                    return minimums[m].of[decltype(part)::value][decltype(half)::value];
                },
                c);
#pragma unroll
            for (int i = 0; i < 2 && i < kGroups; ++i)
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    float &to = sum[2 * m + i][r];
                    to = fma_rn(-scales.rows[r].dmin, c[2 * r + i], to);
                }
        }
    }
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
        if constexpr (!kScalesEarly) scale[j] = x.scale(j, block);
#pragma unroll
        for (int r = 0; r < 2; ++r) p[j][r] = fma_rn(scale[j], sum[j][r], p[j][r]);
    }
}

// True for kernels that recompute addresses for each tile (computed_anew()): they have too few registers
// to keep them, as the compiler otherwise would.
constexpr bool short_of_registers(TileFormat format, int groups, bool grouped) {
    switch (format) {
        case TileFormat::Q6_K:
            return groups == 1 && !grouped;
        case TileFormat::Q8_0:
            return groups == 4 || (groups == 2 && !grouped);
        case TileFormat::Q4_K:
            return groups < 4 && !grouped;
        case TileFormat::IQ4_XS:
            return groups == 1 && !grouped;
        case TileFormat::Q4_1:
        case TileFormat::IQ2_XXS:
        case TileFormat::IQ3_XXS:
        case TileFormat::IQ3_S:
            return groups == 2 && !grouped;
        case TileFormat::Q2_K:
        case TileFormat::Q3_K:
        case TileFormat::Q5_K:
            return groups < 4;
        default:
            return false;
    }
}

// --- a range of a row tile ---------------------------------------------------------------------------------

template <TileFormat F>
DEVICE void load_block(NextBlock first, MainRegisters<F> &w, SideRegisters<F> &side) {
    load_side<F>(first.block, side);
    load_chunk<F, 0>(first.block, w);
    if (first.chunks > 1) load_chunk<F, 1>(first.block, w);
    if (first.chunks > 2) load_chunk<F, 2>(first.block, w);
    if (first.chunks > 3) load_chunk<F, 3>(first.block, w);
}

// Formats whose blocks of weights come into L2 two blocks ahead, where the warp finds them when its registers are free.
// Measured on an H200: 11% more tokens per second with Q8_0, 1% fewer with Q4_K and Q6_K; other formats not.
constexpr bool prefetches(TileFormat format) {
    return format == TileFormat::Q8_0;
}

template <TileFormat F>
DEVICE void prefetch_block(const LinearParams &p, const std::byte *from, int32_t block) {
    const TileLayout layout = tile_layout(F);
    if (lane_index() == 0)
        prefetch_l2(from, static_cast<uint32_t>(layout.side + chunks_at(p.cols, block) * layout.chunk));
}

// On entry w and side hold the first block of the range, which is at `first`; on return they hold `after`, if it exists.
template <TileFormat F, int kGroups, bool kGrouped>
DEVICE void multiply_range(const LinearParams &p, const LaneActivations<kGroups, kGrouped> &x,
                           const std::byte *first, Range range, NextBlock after, const Book<F> &book,
                           MainRegisters<F> &w, SideRegisters<F> &side, float (&sums)[kGroups][2]) {
    const int32_t begin = short_of_registers(F, kGroups, kGrouped) ? computed_anew(range.begin) : range.begin;
    if (prefetches(F) && after.chunks > 0 && begin + 1 < range.end)
        prefetch_block<F>(p, after.block + block_bytes(F), begin + 1);
    for (int32_t block = begin; block < range.end; ++block) {
        const bool last = block + 1 == range.end;
        first += block_bytes(F);
        if (prefetches(F) && block + 2 < range.end) prefetch_block<F>(p, first + block_bytes(F), block + 2);
        const NextBlock next = last ? after : NextBlock{first, chunks_at(p.cols, block + 1)};
        multiply_block<F, kGroups, kGrouped>(w, side, next, book, x, block, groups_at(p.cols, block), sums);
    }
}

template <int kStep>
DEVICE void load_half_step(const std::byte *chunk, uint32_t (&w)[16]) {
    load_four<4 * kStep, GlobalWeights>(w, chunk + 512 * kStep + 16 * lane_index());
}
DEVICE void load_half_chunk(const std::byte *chunk, uint32_t (&w)[16]) {
    load_half_step<0>(chunk, w);
    load_half_step<1>(chunk, w);
    load_half_step<2>(chunk, w);
    load_half_step<3>(chunk, w);
}

// On entry w holds the first chunk of the range; on return it holds the chunk `after`, if not null.
template <TileFormat F, int kGroups, bool kGrouped>
DEVICE void multiply_half_range(const LinearParams &p, const LaneTokens<kGroups, kGrouped> &lane,
                                const std::byte *tile, Range range, const std::byte *after, uint32_t (&w)[16],
                                float (&sums)[kGroups][2]) {
    constexpr int kProducts = LaneTokens<kGroups, kGrouped>::kProducts;
    int32_t piece[kProducts];  // offset in the halves, of the first 32 columns
#pragma unroll
    for (int m = 0; m < kProducts; ++m)
        piece[m] = lane.column[m] * static_cast<int32_t>(p.x.halves_stride) + 8 * (lane_index() & 3);
    const uint32_t exponents = row_exponents<F>(tile);
    const auto chunks = static_cast<int32_t>(col_chunks(p.cols));
    const int32_t end = 4 * range.end < chunks ? 4 * range.end : chunks;
    float c[kProducts][4] = {};
    for (int32_t chunk = 4 * range.begin; chunk < end; ++chunk) {
        const std::byte *next = chunk + 1 < end ? half_chunk<F>(tile, chunk + 1) : after;
        const auto columns = [&](auto half) {  // 32 columns
            constexpr int kHalf = decltype(half)::value;
#pragma unroll
            for (int m = 0; m < kProducts; ++m) {
                const uint4 b = ld128(p.x.halves + piece[m] + kChunkCols * chunk + 32 * kHalf);
                mma_f16_k16(c[m], {w[8 * kHalf], w[8 * kHalf + 1], w[8 * kHalf + 2], w[8 * kHalf + 3]},
                            {b.x, b.y});
                mma_f16_k16(c[m], {w[8 * kHalf + 4], w[8 * kHalf + 5], w[8 * kHalf + 6], w[8 * kHalf + 7]},
                            {b.z, b.w});
            }
            if (next == nullptr) return;
            load_half_step<2 * kHalf>(next, w);
            load_half_step<2 * kHalf + 1>(next, w);
        };
        columns(Constant<0>());
        columns(Constant<1>());
    }
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
        const float scale = p.x.half_scales[lane.own[j]];
#pragma unroll
        for (int r = 0; r < 2; ++r) sums[j][r] = scaled_sum<F>(c[j / 2][2 * r + j % 2], exponents, r, scale);
    }
}

// Every lane sums its four columns of a step for all tokens; then the four lanes of a row are added,
// and each lane keeps the sums of its own tokens.
template <int kGroups, bool kGrouped>
DEVICE void multiply_float_range(const LinearParams &p, TokenGroup group, const std::byte *tile, Range range,
                                 float (&sums)[kGroups][2]) {
    constexpr int kTokens = kGroupTokens * kGroups;
    const int t = lane_index() & 3;
    const float *const first = kGrouped ? p.x_f32 + group.expert * p.x_skip : p.x_f32;
    float own[kTokens][2] = {};
    int32_t source[kTokens];
#pragma unroll
    for (int token = 0; token < kTokens; ++token) {
        source[token] = group.first + (token < group.count ? token : 0);
        if (kGrouped && p.sources) source[token] = p.sources[source[token]];
    }
    const int32_t steps = (p.cols + kChunkCols - 1) / kChunkCols * 4, last = 16 * range.end;
#pragma unroll(kGroups == 4 ? 1 : kGroups == 1 && !kGrouped ? 4 : 2)
    for (int32_t step = 16 * range.begin; step < (last < steps ? last : steps); ++step) {
        float4 w[2];
        load_step(tile, step, w);
#pragma unroll
        for (int token = 0; token < kTokens; ++token) {
            const float4 x = load_floats(first + source[token] * p.x_stride, 16 * step + 4 * t, p.cols);
            own[token][0] = multiply_add(w[0], x, own[token][0]);
            own[token][1] = multiply_add(w[1], x, own[token][1]);
        }
    }
#pragma unroll
    for (int token = 0; token < kTokens; ++token)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float sum = own[token][r] + shfl_xor(own[token][r], 1);
            sum = sum + shfl_xor(sum, 2);
            if (token % kGroupTokens == t) sums[token / kGroupTokens][r] = sum;
        }
}

// --- tiles, teams, epilogue --------------------------------------------------------------------------------

// The tiles of a team between two meetings of the block. With a meeting after each tile, warps of an H200 waited there a
// fifth of their time (Q4_K, gate and up of 8B). Four slots of up to four tokens take 16 KB.
constexpr int slots_of(int groups) {
    return 4 / groups;
}

template <int kGroups>
struct LinearShared {
    // Of a slot: [0]: the gate or the only matrix, [1]: up
    float partial[slots_of(kGroups)][2][kWarps][kGroupTokens * kGroups][kTileRows];
    // For LinearParams::prepare: the groups of 256 outputs that the team's tiles completed.
    int32_t complete[kWarps][32], complete_count[kWarps];
    QuantizeShared quantize;
};

template <int kGroups, int kWords>
struct LinearBookShared : LinearShared<kGroups> {
    uint32_t book[kWords];
};

// A tile of rows of one matrix, and its tokens.
struct Unit {
    int matrix;
    int32_t tile;
    TokenGroup group;
};

// Units that share weights are adjacent. groups: groups_of(), or 1 without groups.
template <int kTokens, bool kGrouped>
DEVICE Unit unit_of(const LinearParams &p, int32_t groups, int32_t unit) {
    int32_t tile = kGrouped ? unit / groups : unit;
    const TokenGroup group = kGrouped ? group_at(p, kTokens, unit % groups) : TokenGroup{0, 0, p.tokens};
    int matrix = 0;
    while (p.gate == LinearGate::None && tile >= row_tiles(p.matrix[matrix].rows))
        tile -= static_cast<int32_t>(row_tiles(p.matrix[matrix++].rows));
    return {matrix, tile, group};
}

// Two blocks of 256 threads leave 128 registers to each thread, too few to unpack scales while
// keeping several products.
constexpr int blocks_per_multiprocessor(TileFormat format, int groups, bool grouped) {
    if (is_half(format)) return 2;
    if (groups == 1) {
        const bool wide = format == TileFormat::IQ4_XS || format == TileFormat::Q6_K || has_pairs(format);
        return grouped && wide ? 1 : 2;
    }
    if (groups == 2 && has_codebook(format)) return format == TileFormat::IQ1 ? 1 : 2;
    if (!has_group_floats(format)) return groups == 2 && !grouped && format == TileFormat::Q4_K ? 2 : 1;
    const bool wide = format == TileFormat::NVFP4 || format == TileFormat::Q5_1;
    return wide || (groups == 4 && format == TileFormat::Q4_1) ? 1 : 2;
}

// kGrouped: several groups of tokens (experts, heads or slices of a batch); otherwise the
// launch's tokens are one group.
template <TileFormat F, int kGroups, bool kGrouped>
struct Linear {
    using Params = LinearParams;
    static constexpr const char *kName = "linear";
    static constexpr int kThreads = kLinearThreads, kBlocks = blocks_per_multiprocessor(F, kGroups, kGrouped);
    using Shared =
        std::conditional_t<has_codebook(F), LinearBookShared<kGroups, book_words(F)>, LinearShared<kGroups>>;
    static constexpr int kTokens = kGroupTokens * kGroups;
    // (IQ4_XS has no register for the number of a slot.)
    static constexpr int kSlots = F == TileFormat::IQ4_XS && kGroups == 1 ? 1 : slots_of(kGroups);
    static constexpr bool kShort = short_of_registers(F, kGroups, kGrouped);

    static DEVICE Unit unit_at(const Params &p, int32_t groups, int32_t unit) {
        return unit_of<kTokens, kGrouped>(p, groups, unit);
    }
    static DEVICE const std::byte *tile_of(const Params &p, int matrix, const Unit &unit) {
        return tile_bytes(p, F, matrix, unit.tile, kGrouped ? unit.group.expert : 0);
    }

    // A warp's state between tiles: its range of blocks, and the registers into which the next tile's
    // first block is being loaded.
    struct Warp {
        Range range;
        MainRegisters<F> main;
        SideRegisters<F> side;
        Book<F> book;

        // What is kept of a tile: of a quantized one the address of the warp's first block, else that of the tile.
        DEVICE const std::byte *start_of(const std::byte *tile) const {
            return tile + (is_half(F) || is_float(F) ? 0 : range.begin * block_bytes(F));
        }
        DEVICE const std::byte *first_chunk(const std::byte *tile) const {
            return tile == nullptr ? nullptr : half_chunk<F>(tile, 4 * range.begin);
        }
        DEVICE NextBlock first_block(const Params &p, const std::byte *start) const {
            const int32_t begin = kShort && kGroups == 1 ? computed_anew(range.begin) : range.begin;
            return {start, start == nullptr ? 0 : chunks_at(p.cols, begin)};
        }
        // Starts the load of the warp's first block.
        DEVICE void begin(const Params &p, const std::byte *start) {
            if constexpr (is_half(F))
                load_half_chunk(first_chunk(start), main.main);
            else if constexpr (!is_float(F))
                load_block<F>(first_block(p, start), main, side);
        }
    };

    // A lane's input for a group of tokens.
    static DEVICE auto input_of(const Params &p, TokenGroup group) {
        if constexpr (is_float(F))
            return group;
        else if constexpr (is_half(F))
            return LaneTokens<kGroups, kGrouped>(p, group);
        else
            return LaneActivations<kGroups, kGrouped>(p, group);
    }

    // Multiplies the warp's range of one row tile. input: input_of(); start: start_of(); after: that of the tile
    // after this one, or null.
    template <class Input>
    static DEVICE void multiply(const Params &p, const Input &input, const std::byte *start,
                                const std::byte *after, Warp &warp, float (&sums)[kGroups][2]) {
        if constexpr (is_float(F))
            multiply_float_range<kGroups, kGrouped>(p, input, start, warp.range, sums);
        else if constexpr (is_half(F))
            multiply_half_range<F, kGroups, kGrouped>(p, input, start, warp.range, warp.first_chunk(after),
                                                      warp.main.main, sums);
        else
            multiply_range<F, kGroups, kGrouped>(p, input, start, warp.range, warp.first_block(p, after),
                                                 warp.book, warp.main, warp.side, sums);
    }

    // Stores the lane's sums of a range for the other warps of the team.
    static DEVICE void store_partial(const float (&sums)[kGroups][2], Shared &shared, int slot, int matrix) {
        const int lane = kShort ? computed_anew(lane_index()) : lane_index();
        const int g = lane >> 2, t = lane & 3;
        auto &to = shared.partial[slot][matrix][warp_index()];
#pragma unroll
        for (int j = 0; j < kGroups; ++j) {
            to[kGroupTokens * j + t][g] = sums[j][0];
            to[kGroupTokens * j + t][g + 8] = sums[j][1];
        }
    }

    // The partial sums of a slot.
    using Partial = float[2][kWarps][kTokens][kTileRows];

    static DEVICE float folded(const Partial &partial, int matrix, int first_warp, int warps, int token, int row) {
        float y = partial[matrix][first_warp][token][row];
        for (int w = 1; w < warps; ++w) y = y + partial[matrix][first_warp + w][token][row];
        return y;
    }

    // Writes the outputs of a unit. Called by `threads` threads, of which this is number `thread`.
    static DEVICE void finish(const Params &p, const Partial &partial, const Unit &unit, int first_warp, int warps,
                              int thread, int threads) {
        for (int i = thread; i < kTileRows * unit.group.count; i += threads) {
            const int in = i % kTileRows, token = i / kTileRows;
            const int32_t row = unit.tile * kTileRows + in;
            if (row >= p.matrix[unit.matrix].rows) continue;
            const float y = folded(partial, 0, first_warp, warps, token, in);
            const float up =
                p.gate != LinearGate::None ? folded(partial, 1, first_warp, warps, token, in) : 0.0f;
            write_output(p, {unit.matrix, unit.tile}, unit.group, token, row, y, up);
        }
    }

    // Writes the outputs of the team's units `unit`, `unit` + `step`, ..., one per slot. The team's warps share the
    // slots, or a slot its warps.
    static DEVICE void finish_slots(const Params &p, const Shared &shared, int warps, int32_t groups, int slots,
                                    int32_t unit, int32_t step, int32_t units) {
        const int in_block = kShort && kGroups == 4 ? computed_anew(warp_index()) : warp_index();
        const int warp = in_block % warps, sharing = warps > kSlots ? warps / kSlots : 1;
#pragma unroll 1
        for (int slot = warp / sharing; slot < slots; slot += warps / sharing) {
            const int32_t at = unit + slot * step;
            if (at < units)
                finish(p, shared.partial[slot], unit_at(p, groups, at), in_block - warp, warps,
                       warp % sharing * 32 + lane_index(), 32 * sharing);
        }
    }

    // --- LinearParams::prepare ---

    // Lists the groups of outputs that the team's units `unit`, `unit` + `step`, ... (one per lane) complete.
    // Called by the team's first warp, after all outputs of the block are written.
    static DEVICE void arrive(const Params &p, Shared &shared, int team, int32_t units, int32_t unit,
                              int32_t step) {
        const auto tiles = static_cast<int32_t>(row_tiles(p.matrix[0].rows));
        const bool whole = needs_whole_rows(p.prepare);
        const int32_t mine = unit + lane_index() * step, group = whole ? 0 : mine / kGroupTiles;
        bool last = false;
        if (mine < units) {
            const int32_t left = tiles - kGroupTiles * group;
            const int32_t others = (whole || left < kGroupTiles ? left : kGroupTiles) - 1;
            fence_gpu();
            last = atomic_inc_wrap_u32(p.arrivals + group, static_cast<uint32_t>(others)) ==
                   static_cast<uint32_t>(others);
            if (last) fence_gpu();  // all threads see other blocks' writes after the next barrier
        }
        const uint32_t all = ballot(last);
        if (last) shared.complete[team][popc(all & ((1u << lane_index()) - 1u))] = group;
        if (lane_index() == 0) shared.complete_count[team] = popc(all);
    }

    // Quantizes the listed groups. Called by all threads, a block_sync() after arrive().
    static DEVICE void prepare_complete(const Params &p, Shared &shared, int teams) {
        for (int team = 0; team < teams; ++team) {
            const int32_t count = shared.complete_count[team];
            if (count == 0) continue;
            if (needs_whole_rows(p.prepare)) {  // then there is one token
                quantize_row(p.prepare, 0, shared.quantize);
                continue;
            }
            for (int32_t i = warp_index(); i < count * p.tokens; i += kWarps)
                quantize_group_of(p.prepare, i % p.tokens, shared.complete[team][i / p.tokens]);
        }
    }

    // Fetches the weight of the norm into L2, for the block that will need it.
    static DEVICE void fetch_norm(const QuantizeParams &p) {
        constexpr uint32_t kBytes = 128;
        const auto bytes = static_cast<uint32_t>(p.width) * 4;
        if (p.weight == nullptr) return;
        for (uint32_t at = kBytes * static_cast<uint32_t>(thread_index()); at < bytes; at += kBytes * kLinearThreads)
            prefetch_l2(reinterpret_cast<const std::byte *>(p.weight) + at, bytes - at < kBytes ? bytes - at : kBytes);
    }

    static DEVICE void prepare_outputs(const Params &p, Shared &shared, int warps, int32_t units) {
        // Recomputed here, so that nothing is kept in registers across the loop.
        const int warp = kShort ? computed_anew(warp_index()) : warp_index();
        const int teams = kWarps / warps, team = warp / warps;
        const int32_t step = block_count() * teams, rounds = (units + 32 * step - 1) / (32 * step);
        for (int32_t round = 0; round < rounds; ++round) {
            block_sync();
            if (warp % warps == 0)
                arrive(p, shared, team, units, block_index() * teams + team + 32 * round * step, step);
            block_sync();
            prepare_complete(p, shared, teams);
        }
    }

    static DEVICE void run(const Params &p) {
        fetch_parameters(p);
        auto &shared = shared_memory<Shared>();
        const auto blocks = static_cast<int32_t>(col_blocks(p.cols));
        const int warps = warps_per_tile(blocks), teams = kWarps / warps;  // powers of two
        if (kGrouped && p.groups != nullptr) grid_dep_wait();  // a previous kernel writes the groups
        const int32_t groups = kGrouped ? groups_of(p, kTokens) : 1, units = tiles_of(p) * groups;
        Warp warp;
        warp.range = range_of(blocks, warps, warp_index() % warps);
        const auto tile_at = [&](int32_t index) -> const std::byte * {
            if (index >= units) return nullptr;
            const Unit u = unit_at(p, groups, index);
            return warp.start_of(tile_of(p, u.matrix, u));
        };
        int32_t unit = block_index() * teams + warp_index() / warps;
        const std::byte *tile = tile_at(unit);
        if (tile != nullptr) warp.begin(p, tile);
        if constexpr (has_codebook(F)) {
            fill_book(F, shared.book);
            block_sync();
            warp.book = Book<F>(shared.book);
        }
        if (!kGrouped && block_index() == 0) fetch_norm(p.prepare);
        grid_dep_wait();
        if (!p.late_trigger) grid_dep_trigger();
        const auto step = [&] { return block_count() * (kShort ? computed_anew(teams) : teams); };
        while ((unit & -teams) < units) {  // the same for all warps of the block
            int slot = 0;
#pragma unroll 1
            do {
                const std::byte *next = tile_at(unit + step());
                if (tile != nullptr) {
                    const auto input = input_of(p, unit_at(p, groups, unit).group);
                    // With a gate, the tile of `up` comes in between. It lies in its matrix where the gate's does.
                    const bool gate = p.gate != LinearGate::None;
                    const std::byte *after = gate ? p.matrix[1].tiles + (tile - p.matrix[0].tiles) : next;
                    // A loop, so that the products are in the code once.
#pragma unroll 1
                    for (;;) {
                        const int matrix = gate && after == next ? 1 : 0;
                        float sums[kGroups][2] = {};
                        multiply(p, input, tile, after, warp, sums);
                        store_partial(sums, shared, slot, matrix);
                        if (after == next) break;
                        tile = after;
                        after = next;
                    }
                }
                tile = next;
                unit += step();
            } while (++slot < kSlots && (unit & -teams) < units);
            block_sync();
            finish_slots(p, shared, warps, groups, slot, unit - slot * step(), step(), units);
            block_sync();
        }
        if constexpr (!kGrouped && kTokens <= kPreparedTokens)
            if (p.prepare.x != nullptr) prepare_outputs(p, shared, warps, units);
        if (p.late_trigger) grid_dep_trigger();
    }
};

template <TileFormat F>
Kernel<LinearParams> for_tokens(int tokens) {
    if (tokens <= kGroupTokens) return kernel_of<Linear<F, 1, false>>();
    if (tokens <= 2 * kGroupTokens) return kernel_of<Linear<F, 2, false>>();
    return kernel_of<Linear<F, 4, false>>();
}
template <TileFormat F>
Kernel<LinearParams> for_groups_of(int tokens) {
    if (tokens <= kGroupTokens) return kernel_of<Linear<F, 1, true>>();
    return kernel_of<Linear<F, kLinearGroupTokens / kGroupTokens, true>>();
}
template <TileFormat F>
Kernel<LinearParams> for_format(int tokens, bool grouped) {
    return grouped ? for_groups_of<F>(tokens) : for_tokens<F>(tokens);
}

}  // namespace

}  // namespace runnel::kernels::cuda
