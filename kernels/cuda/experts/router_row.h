// A row of a router, multiplied by one warp, for experts.cu. In the order of linear.h a row in F32 has up to 8 ranges of columns
// with four sums each: every lane computes one of these. linear.h gives a warp 16 rows instead, too many where a whole matrix
// has 128 of them: 8 blocks of threads would read it all.
//
// Bytes: the row once, in 16 loads of 16 bytes per lane and round. Rows of 2048 columns are one round, 8 KB under way per warp.
#pragma once

#include "kernels/column_cut.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/linear/linear_order.h"
#include "kernels/cuda/steps/float_steps.h"

namespace runnel::kernels::cuda {

struct RouterRow {
    static constexpr int kHeld = 16;  // steps (of 16 columns) whose weights a lane holds

    int32_t begin, end;        // steps of the lane's range
    int32_t end_x;             // of those with activations of the lane; behind them weights are 0
    const std::byte *weights;  // of the lane, in step 0
    float4 held[kHeld] = {};

    DEVICE RouterRow(const RouterMatrix &m, int32_t row) {
        const int32_t blocks = col_blocks32(m.cols), steps = 4 * divided_up(m.cols, kChunkCols);
        const int lane = lane_index(), ranges = column_ranges(blocks);
        const Range range = lane / 4 < ranges ? shifted_range_of(blocks, ranges, lane / 4) : Range{0, 0};
        begin = 16 * range.begin;
        end = 16 * range.end < steps ? 16 * range.end : steps;
        const int32_t with_x = (m.cols + 12 - 4 * (lane % 4)) / 16;
        end_x = end < with_x ? end : with_x;
        const int in = row % kTileRows;
        weights = m.tiles + row / kTileRows * row_tile_bytes(TileFormat::F32, m.cols) + 512 * (in / 8) +
                  64 * (in % 8) + 16 * (lane % 4);
        load(begin);
    }

    // (Without the branch, the compiler moves grid_dep_wait() before these loads.)
    DEVICE void load(int32_t first) {
        if (first >= end) return;
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
            uint4 v = {0, 0, 0, 0};
            if (first + i < end) v = ldg128_stream(weights + int64_t{1024} * first + 1024 * i);
            held[i] = {bits_float(v.x), bits_float(v.y), bits_float(v.z), bits_float(v.w)};
        }
    }

    // Adds the products of the steps that are held to the lane's sum for a token.
    DEVICE float add_held(const float *x, int32_t first, float sum) const {
        float4 values[kHeld];
        const float *const from = x + 16 * first + 4 * (lane_index() % 4);
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
            values[i] = {0, 0, 0, 0};
            if (first + i < end_x) values[i] = *reinterpret_cast<const float4 *>(from + 16 * i);
        }
#pragma unroll
        for (int i = 0; i < kHeld; ++i)
            if (first + i < end) sum = multiply_add(held[i], values[i], sum);
        return sum;
    }

    // Warp collective: writes the logits of an expert, if there is such a one, for all tokens. x: [tokens][x_stride]; sums: shared
    // memory of the warp, for as many numbers as it has lanes times tokens.
    DEVICE void multiply(const RouterMatrix &m, const RouteParams &route, int32_t expert, const float *x,
                         float *sums) {
        float *const own = sums + lane_index();
#pragma unroll 1
        for (int32_t first = begin;;) {
#pragma unroll 1
            for (int token = 0; token < route.tokens; ++token)
                own[32 * token] =
                    add_held(x + token * m.x_stride, first, first == begin ? 0.0f : own[32 * token]);
            first += kHeld;
            if (first >= end) break;
            load(first);
        }
        const int ranges = column_ranges(col_blocks32(m.cols));
        const bool is_there = expert < route.experts;
#pragma unroll 1
        for (int token = 0; token < route.tokens; ++token) {
            const float sum = own[32 * token];
            float of_range = sum + shfl_xor(sum, 1);
            of_range = of_range + shfl_xor(of_range, 2);
            float y = shfl(of_range, 0);
            for (int range = 1; range < ranges; ++range) y = y + shfl(of_range, 4 * range);
            if (m.bias && is_there) y = y + m.bias[expert];
            if (lane_index() == 0 && is_there) m.logits[token * route.stride + expert] = y * m.scale;
        }
    }
};

}  // namespace runnel::kernels::cuda
