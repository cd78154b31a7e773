// y = W x for many tokens with weights in F32: see linear_prefill.h.
//
// These weights are multiplied in float32, as for few tokens, so the multiply-adds are the limit (67 TFLOP/s
// on an H100); such matrices are small (mostly routers). A block of 8 warps computes 4 row tiles x 64 tokens,
// each warp all 64 rows for 8 tokens: per 16 columns a lane loads 16 pieces of 16 bytes (weights, which all
// warps share through L1, and activations) for 256 multiply-adds. A lane holds one of the four sums of each
// of its 64 outputs (linear.h, order of floats); its neighbors hold the other three until a range ends.
#include "kernels/cuda/linear/linear_order.h"
#include "kernels/cuda/linear/linear_prefill.h"
#include "kernels/cuda/steps/float_steps.h"

namespace runnel::kernels::cuda {

namespace {

constexpr int kTiles = kPrefillFloatTiles, kWarps = 8, kWarpTokens = kPrefillFloatTokens / kWarps;

struct LinearPrefillFloats {
    using Params = PrefillParams;
    static constexpr const char *kName = "linear_prefill_floats";
    static constexpr int kThreads = 32 * kWarps, kBlocks = 1;

    // The operands of a warp: rows of x, and row tiles. Slots without a tile repeat the first.
    struct Operands {
        const std::byte *tile[kTiles];
        const float *x;  // row 0
        int32_t source[kWarpTokens];
    };

    static DEVICE Operands operands_of(const LinearParams &p, int32_t unit, TokenGroup group,
                                       int first_token) {
        Operands o;
        o.x = p.x_f32 + group.expert * p.x_skip;
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
            TileAt at = tile_at<kTiles>(p, unit, i);
            if (at.matrix < 0) at = tile_at<kTiles>(p, unit, 0);
            const LinearMatrix &m = p.matrix[at.matrix];
            o.tile[i] = m.tiles + (group.expert * row_tiles(m.rows) + at.tile) *
                                      row_tile_bytes(TileFormat::F32, p.cols);
        }
#pragma unroll
        for (int i = 0; i < kWarpTokens; ++i) {
            const int token = first_token + i < group.count ? first_token + i : first_token;
            o.source[i] = p.sources ? p.sources[group.first + token] : group.first + token;
        }
        return o;
    }

    static DEVICE void multiply_step(const LinearParams &p, const Operands &o, int64_t step,
                                     float (&sums)[kTiles][2][kWarpTokens]) {
        float4 x[kWarpTokens];
#pragma unroll
        for (int i = 0; i < kWarpTokens; ++i)
            x[i] = load_floats(o.x + o.source[i] * p.x_stride, 16 * step + 4 * (lane_index() & 3), p.cols);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            float4 w[2];
            load_step<CachedWeights>(o.tile[tile], step, w);
#pragma unroll
            for (int r = 0; r < 2; ++r)
#pragma unroll
                for (int i = 0; i < kWarpTokens; ++i)
                    sums[tile][r][i] = multiply_add(w[r], x[i], sums[tile][r][i]);
        }
    }

    // Adds the sums of the four lanes of a row; each lane keeps tokens t and t + 4.
    static DEVICE void fold(bool first, float (&sums)[kTiles][2][kWarpTokens], float (&all)[kTiles][2][2]) {
        const int t = lane_index() & 3;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
            for (int r = 0; r < 2; ++r)
#pragma unroll
                for (int i = 0; i < kWarpTokens; ++i) {
                    float sum = sums[tile][r][i] + shfl_xor(sums[tile][r][i], 1);
                    sum = sum + shfl_xor(sum, 2);
                    sums[tile][r][i] = 0;
                    float &own = all[tile][r][i / 4];
                    if (i % 4 == t) own = first ? sum : own + sum;
                }
    }

    // Computes all 64 rows for tokens first_token .. first_token + 7 of the group.
    static DEVICE void multiply(const LinearParams &p, int32_t unit, TokenGroup group, int first_token) {
        const Operands o = operands_of(p, unit, group, first_token);
        const auto blocks = static_cast<int32_t>(col_blocks(p.cols));
        const int32_t steps = (p.cols + kChunkCols - 1) / kChunkCols * 4;
        const int ranges = column_ranges(blocks);
        float sums[kTiles][2][kWarpTokens] = {}, all[kTiles][2][2] = {};
        for (int range = 0; range < ranges; ++range) {
            const Range at = range_of(blocks, ranges, range);
            const int32_t end = 16 * at.end < steps ? 16 * at.end : steps;
            for (int32_t step = 16 * at.begin; step < end; ++step) multiply_step(p, o, step, sums);
            fold(range == 0, sums, all);
        }
        write_outputs(p, unit, group, first_token, all);
    }

    static DEVICE void write_outputs(const LinearParams &p, int32_t unit, TokenGroup group, int first_token,
                                     const float (&all)[kTiles][2][2]) {
        const int g = lane_index() >> 2, t = lane_index() & 3;
        const bool gate = p.gate != LinearGate::None;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            const TileAt at = tile_at<kTiles>(p, unit, tile);
            if (at.matrix < 0 || (gate && tile % 2 == 1)) continue;
#pragma unroll
            for (int r = 0; r < 2; ++r)
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const int token = first_token + 4 * j + t;
                    const int32_t row = at.tile * kTileRows + g + 8 * r;
                    if (token < group.count && row < p.matrix[at.matrix].rows)
                        write_output(p, at, group, token, row, all[tile][r][j], all[tile / 2 * 2 + 1][r][j]);
                }
        }
    }

    static DEVICE void run(const Params &params) {
        const LinearParams &p = params.linear;
        grid_dep_wait();
        const int32_t groups = groups_of(p, kPrefillFloatTokens), tiles = tiles_of_unit<kTiles>(p);
        const int32_t units = (tiles_of(p) + tiles - 1) / tiles * groups;
        for (int32_t unit = block_index(); unit < units; unit += block_count()) {
            const TokenGroup group = group_at(p, kPrefillFloatTokens, unit % groups);
            const int first_token = warp_index() * kWarpTokens;
            if (first_token < group.count) multiply(p, unit / groups, group, first_token);
        }
        grid_dep_trigger();
    }
};

}  // namespace

Kernel<PrefillParams> linear_prefill_floats_kernel() {
    return kernel_of<LinearPrefillFloats>();
}

}  // namespace runnel::kernels::cuda
