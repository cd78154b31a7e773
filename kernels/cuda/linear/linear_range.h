// What one warp does with its range of a row tile, for linear_body.h: it multiplies blocks of weights with the
// activations of up to 16 tokens.
//
// Weights are operand A of the tensor cores (16 rows of a tile), activations operand B: columns 2t and 2t +
// 1 of an 8-column product are tokens t and t + 4 of eight, or the two digits of token t. A lane's accumulators are then those of
// its own tokens 4 * group + t for rows g and g + 8. Quantized weights become int8 (weight_bytes.h) for up to eight tokens and
// integers in binary16 (fragments.h) for more: the sums of a group are exact, and the same.
//
// In each step, a warp loads the next block of weights (2-4 KB) while it multiplies the current one. Activations come from
// shared memory where they fit (staged_activations.h), else through L1, where all warps of the multiprocessor with the
// same range share them.
//
// F16 and BF16 weights enter the tensor cores without conversion: 16 columns of 8 tokens are one
// instruction, and a warp loads 2 KB (64 columns) ahead. F32 weights are multiplied by plain fma in float32.
#pragma once

#include "kernels/cuda/linear/block_scales.h"
#include "kernels/cuda/linear/fragments.h"
#include "kernels/cuda/linear/halves.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/linear_order.h"
#include "kernels/cuda/linear/staged_activations.h"
#include "kernels/cuda/steps/float_steps.h"

namespace runnel::kernels::cuda {

namespace {

constexpr int kGroupTokens = kSmallGroupTokens;  // a product has 8 columns: two groups

// --- one block of weights times the activations of kGroups * 4 tokens --------------------------------------

// The activations that a lane needs, read through L1. column[m]: the row that it loads as column g of product m. own[j]: the row
// of the token that its sums j belong to. Columns without a token repeat token 0; their results are dropped.
template <TileFormat F, int kGroups, bool kGrouped>
struct LaneActivations {
    static constexpr bool kStaged = false, kBytes = multiplies_bytes(F, kGroups, kGrouped, false);
    static constexpr int kProducts = Columns<kBytes>::products(kGroups);
    const Activations &x;
    int32_t column[kProducts], own[kGroups];  // rows of the activations
    int32_t piece[kProducts];                 // offset in values() or digits, of the first 32 columns

    DEVICE LaneActivations(const LinearParams &p, TokenGroup group) : x(p.x) {
        const int g = lane_index() >> 2, t = lane_index() & 3;
        const auto source = [&](int row) {
            row = group.first + (row < group.count ? row : 0);
            return kGrouped && p.sources ? p.sources[row] : row;
        };
#pragma unroll
        for (int m = 0; m < kProducts; ++m) column[m] = source(Columns<kBytes>::token(m, g));
#pragma unroll
        for (int j = 0; j < kGroups; ++j) own[j] = source(kGroupTokens * j + t);
        const auto stride = static_cast<int32_t>(is_half(F) ? x.halves_stride : x.codes_stride);
#pragma unroll
        for (int m = 0; m < kProducts; ++m)
            piece[m] = kBytes ? 2 * column[m] * stride + 8 * t + 32 * (g % 2) : column[m] * stride + 8 * t;
    }
    DEVICE const uint16_t *values() const {
        return is_half(F) ? x.halves : x.codes;
    }
    // The operands B of 32 columns, for product m.
    DEVICE uint4 load(int m, int32_t block, int group) const {
        return ld128(values() + piece[m] + 32 * (8 * block + group));
    }
    // kBytes: the lane's digits of 32 columns, for product m.
    DEVICE uint2 digits(int m, int32_t block, int group) const {
        return ld64(x.digits + piece[m] + 64 * (8 * block + group));
    }
    // Of F16 and BF16: 32 columns of a chunk, and the scale of the row of sums j.
    DEVICE uint4 load_halves(int m, int32_t chunk, int half) const {
        return ld128(values() + piece[m] + kChunkCols * chunk + 32 * half);
    }
    DEVICE float half_scale(int j) const {
        return x.half_scales[own[j]];
    }
    DEVICE float scale(int j, int32_t block) const {
        constexpr float kUnit = kBytes ? 1.0f / sum_unit(F) : 1.0f;
        return x.scales[own[j] * static_cast<int32_t>(x.scales_stride) + block] * kUnit;
    }
    // The sums (activations.h) of a chunk's two groups of 32, of the lane's token: x has the first parts, y the second.
    DEVICE uint2 parts(int j, int32_t block, int32_t chunk) const {
        chunk += 4 * block;
        const uint16_t *first =
            x.sums + own[j] * static_cast<int32_t>(x.sums_stride) + chunk / 4 * kSumParts + chunk % 4 * 2;
        return {*reinterpret_cast<const uint32_t *>(first), *reinterpret_cast<const uint32_t *>(first + 8)};
    }
    // Operand B of minimum_sums() for a block: part kPart of the sums of groups k, k + 1, k = 8 kHalf + 2t.
    template <int kPart, int kHalf>
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

// chunks_at(); of formats with blocks of 256 weights, whose rows are whole blocks, a constant where registers allow it.
template <TileFormat F, bool kStaged>
DEVICE int chunks_of(int32_t cols, int32_t block) {
    return !kStaged || has_group_floats(F) || F == TileFormat::Q6_K ? chunks_at(cols, block)
                                                                    : kTileCols / kChunkCols;
}

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

    template <class Lane>
    DEVICE void load(const Lane &x, int m, int32_t block) {
        of[0][0] = x.template sums<0, 0>(m, block);
        of[1][0] = x.template sums<1, 0>(m, block);
        if constexpr (kHalves == 2) {
            of[0][1] = x.template sums<0, 1>(m, block);
            of[1][1] = x.template sums<1, 1>(m, block);
        }
    }
};

// Multiplies a block of weights with the activations of its columns. Meanwhile loads `next` into w and side.
template <TileFormat F, int kGroups, bool kGrouped, class Lane>
DEVICE void multiply_block(MainRegisters<F> &w, SideRegisters<F> &side, NextBlock next, const Book<F> &book,
                           const Lane &x, int32_t block, int groups, float (&p)[kGroups][2]) {
    constexpr int kProducts = Lane::kProducts;
    // Loads that are made before their use, at the seventh group; other formats have no registers for it.
    constexpr bool kScalesEarly = F == TileFormat::Q4_K && !kGrouped, kMinimumsEarly = F == TileFormat::Q4_K;
    constexpr bool kMinimumSums = !has_group_floats(F) && has_minimum(F);
    const SideRegisters<F> own = side;
    const BlockScales<F> scales(own);
    // The group at which the next side planes are loaded. (Later in kernels that would spill a register.)
    constexpr int kSideGroup = !loads_sides_late(F) ? 0
                               : Lane::kBytes && F == (Lane::kStaged ? TileFormat::Q4_K : TileFormat::Q6_K)
                                   ? 6
                                   : 4;
    using Half = HalfProducts<F>;
    BlockSum<F> sum[kGroups][2], shifted[kGroups][2];  // shifted: shifts_back()
    if constexpr (!Lane::kBytes) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const BlockSum<F> start = Half::start(scales, r);
#pragma unroll
            for (int j = 0; j < kGroups; ++j) sum[j][r] = start;
        }
    }
    uint32_t later[4] = {};
    uint2 parts[kGroups];  // float minimums: the sums of the chunk's two groups
    MinimumOperands<F> minimums[kProducts] = {};
    float scale[kGroups] = {};
    for_groups<F>(has_group_floats(F) ? groups : 8, w, next, [&](auto chunk, auto sub) {
        constexpr int kC = decltype(chunk)::value, kS = decltype(sub)::value, kGroup = 2 * kC + kS;
        constexpr int kParts = has_groups_of_16(F) ? 2 : 1;  // parts of the 32 columns that have a scale each
        if (kGroup == kSideGroup && next.chunks > 0) load_side<F>(next.block, side);
        if constexpr (kMinimumSums && kMinimumsEarly && kGroup == 6)
#pragma unroll
            for (int m = 0; m < kProducts; ++m) minimums[m].load(x, m, block);
        if constexpr (kScalesEarly && kGroup == 6)
#pragma unroll
            for (int j = 0; j < kGroups; ++j) scale[j] = x.scale(j, block);
        typename BlockSum<F>::Number d[kParts][2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            d[0][r] = scales.template factor<kParts * kGroup>(r);
            if constexpr (kParts == 2) d[1][r] = scales.template factor<kParts * kGroup + 1>(r);
        }
        if constexpr (Lane::kBytes) {
            uint32_t a[4];
            weight_bytes<F, kC, kS>(w, own, book, a, later);
#pragma unroll
            for (int m = 0; m < kProducts; ++m) {
                ByteProducts<F> c[kParts];
                multiply_bytes<kS>(a, x.digits(m, block, kGroup), c);
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    BlockSum<F> &to = shifts_back(F, kS) ? shifted[m][r] : sum[m][r];
#pragma unroll
                    for (int part = 0; part < kParts; ++part) to.add(d[part][r], c[part].of(r));
                    if constexpr (kS == 1 && shifts_back_after_chunk(F, kC))
                        to.template shift_back<byte_shift(F, kS)>(sum[m][r]);
                }
            }
        } else {
            uint32_t a[2][4];
            weight_numbers<F, kC, kS>(w, own, book, a, later);
#pragma unroll
            for (int m = 0; m < kProducts; ++m) {
                const uint4 b = x.load(m, block, kGroup);
                float c[kParts][4];
#pragma unroll
                for (int part = 0; part < kParts; ++part)
#pragma unroll
                    for (int k = 0; k < 4; ++k) c[part][k] = Half::kStart;
                mma_f16_k16(c[0], a[0], {b.x, b.y});
                mma_f16_k16(c[kParts - 1], a[1], {b.z, b.w});
#pragma unroll
                for (int i = 0; i < 2 && i < kGroups; ++i)
#pragma unroll
                    for (int r = 0; r < 2; ++r)
#pragma unroll
                        for (int part = 0; part < kParts; ++part)
                            sum[2 * m + i][r].add(d[part][r], Half::of(c[part][2 * r + i]));
            }
        }
        if constexpr (has_group_floats(F) && has_minimum(F)) {
#pragma unroll
            for (int j = 0; j < kGroups; ++j) {
                if constexpr (kS == 0) parts[j] = x.parts(j, block, kC);
                const float s = half_of(parts[j].x, kS) + half_of(parts[j].y, kS);
#pragma unroll
                for (int r = 0; r < 2; ++r) sum[j][r].add(group_minimum<F, kGroup>(own, r), s);
            }
        }
    });
    float c[kProducts][4] = {};
    if constexpr (kMinimumSums) {
#pragma unroll
        for (int m = 0; m < kProducts; ++m) {
            if constexpr (!kMinimumsEarly) minimums[m].load(x, m, block);
            minimum_sums<F>(
                scales.rows,
                [&](auto part, auto half) {
                    return minimums[m].of[decltype(part)::value][decltype(half)::value];
                },
                c[m]);
        }
    }
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
        if constexpr (!kScalesEarly) scale[j] = x.scale(j, block);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float b = sum[j][r].value(scales, r);
            if constexpr (kMinimumSums)
                b = fma_rn(-scales.rows[r].dmin, Lane::kBytes ? c[j][2 * r] : c[j / 2][2 * r + j % 2], b);
            p[j][r] = fma_rn(scale[j], b, p[j][r]);
        }
    }
}

// True for kernels that recompute addresses for each tile (computed_anew()): they have too few registers
// to keep them, as the compiler otherwise would.
constexpr bool short_of_registers(TileFormat format, int groups, bool grouped) {
    switch (format) {
        case TileFormat::Q6_K:
        case TileFormat::IQ4_XS:
            return groups <= 2 && !grouped;
        case TileFormat::Q8_0:
            return groups == 4 || (groups == 2 && !grouped);
        case TileFormat::Q4_K:
            return groups < 4 && !grouped;
        case TileFormat::Q5_1:
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

// Kernels whose blocks of weights come into L2 two blocks ahead, where the warp finds them when its registers are free.
// Measured on an H200 with one token: 11% more tokens per second with Q8_0, 1% fewer with Q4_K and Q6_K; others were not.
constexpr bool prefetches(TileFormat format, int groups) {
    return format == TileFormat::Q8_0 && groups == 1;
}

template <TileFormat F>
DEVICE void prefetch_block(const LinearParams &p, const std::byte *from, int32_t block) {
    const TileLayout layout = tile_layout(F);
    prefetch_l2_by_warp(from, static_cast<uint32_t>(layout.side + chunks_at(p.cols, block) * layout.chunk));
}

// On entry w and side hold the first block of the range, which is at `first`; on return they hold `after`, if it exists.
template <TileFormat F, int kGroups, bool kGrouped, class Lane>
DEVICE void multiply_range(const LinearParams &p, const Lane &x, const std::byte *first, Range range,
                           NextBlock after, const Book<F> &book, MainRegisters<F> &w, SideRegisters<F> &side,
                           float (&sums)[kGroups][2]) {
    const int32_t begin = short_of_registers(F, kGroups, kGrouped) ? computed_anew(range.begin) : range.begin;
    if (prefetches(F, kGroups) && after.chunks > 0 && begin + 1 < range.end)
        prefetch_block<F>(p, after.block + block_bytes(F), begin + 1);
    for (int32_t block = begin; block < range.end; ++block) {
        const bool last = block + 1 == range.end;
        first += block_bytes(F);
        if (prefetches(F, kGroups) && block + 2 < range.end)
            prefetch_block<F>(p, first + block_bytes(F), block + 2);
        const NextBlock next =
            last ? after : NextBlock{first, chunks_of<F, Lane::kStaged>(p.cols, block + 1)};
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
template <TileFormat F, int kGroups, class Lane>
DEVICE void multiply_half_range(const LinearParams &p, const Lane &x, const std::byte *tile, Range range,
                                const std::byte *after, uint32_t (&w)[16], float (&sums)[kGroups][2]) {
    constexpr int kProducts = Lane::kProducts;
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
                const uint4 b = x.load_halves(m, chunk, kHalf);
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
        const float scale = x.half_scale(j);
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
#pragma unroll(kGroups == 4 ? 1 : 2)
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

}  // namespace

}  // namespace runnel::kernels::cuda
