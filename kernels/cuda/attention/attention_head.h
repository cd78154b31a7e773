// Norm, RoPE, Hadamard rotation and storing of one head of one token. For kernels.
#pragma once

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/cache_values.h"
#include "kernels/cuda/runtime/device.h"
#include "kernels/cuda/runtime/math.h"

namespace runnel::kernels::cuda {

// What a warp does with a head: norm, RoPE, factor, Hadamard rotation.
struct HeadRecipe {
    const float *norm;  // [dim] or null
    int dim;
    float eps;
    bool norm_after_rope;
    RopeParams rope;
    int32_t position;
    float factor;
    bool rotated;  // multiply by the Hadamard matrix
};

// Scales x[d] of the lane's dimensions d = lane, lane + 32, ... to unit RMS and by the norm's weight.
DEVICE void norm_head(const HeadRecipe &head, float *x) {
    float sum = 0;
    for (int d = lane_index(); d < head.dim; d += 32) sum = fma_rn(x[d], x[d], sum);
    const float scale = 1.0f / sqrt_rn(warp_sum(sum) / static_cast<float>(head.dim) + head.eps);
    for (int d = lane_index(); d < head.dim; d += 32) x[d] = x[d] * scale * head.norm[d];
}

DEVICE void turn_head(const HeadRecipe &head, float *x) {
    const RopeParams &rope = head.rope;
    const int half = rope.rotated / 2;
    const bool adjacent = rope.pairs == RopePairs::Adjacent;
    constexpr int kAtOnce = 2;  // pairs of a lane, whose loads do not wait for each other
#pragma unroll 1
    for (int start = lane_index(); start < half; start += 32 * kAtOnce) {
        uint64_t turns[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) turns[i] = start + 32 * i < half ? rope.turns[start + 32 * i] : 0;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int pair = start + 32 * i;
            if (pair >= half) break;
            const uint64_t angle = turns[i] * static_cast<uint64_t>(static_cast<int64_t>(head.position));
            const SinCos turn = sincos_p(static_cast<uint32_t>(angle >> 32));
            const float cosine = turn.cos * rope.magnitude, sine = turn.sin * rope.magnitude;
            float *first = x + rope.first + (adjacent ? 2 * pair : pair),
                  *second = first + (adjacent ? 1 : half);
            const float a = *first, b = *second;
            *first = fma_rn(a, cosine, -(b * sine));
            *second = fma_rn(a, sine, b * cosine);
        }
    }
}

// Warp collective: multiplies x[dim] in shared memory by the Hadamard matrix of the largest power of two in dim.
DEVICE void rotate_head(float *x, int dim) {
    const int size = dim & -dim;
#pragma unroll 1
    for (int apart = 1; apart < size; apart *= 2) {
#pragma unroll 1
        for (int i = lane_index(); i < dim / 2; i += 32) {
            float *at = x + 2 * i - (i & (apart - 1));
            const float a = at[0], b = at[apart];
            at[0] = a + b;
            at[apart] = a - b;
        }
        warp_sync();
    }
    const float scale = 1.0f / sqrt_rn(static_cast<float>(size));
    for (int d = lane_index(); d < dim; d += 32) x[d] *= scale;
    warp_sync();
}

// Warp collective: computes the finished head in x. from: global memory, any alignment. x: [dim], shared memory
// of this warp alone; no lane may still be reading its old content.
DEVICE void make_head(const HeadRecipe &head, const float *from, float *x) {
    constexpr int kAtOnce = 4;  // values of a lane, whose loads do not wait for each other
#pragma unroll 1
    for (int start = lane_index(); start < head.dim; start += 32 * kAtOnce) {
        float values[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) values[i] = start + 32 * i < head.dim ? from[start + 32 * i] : 0.0f;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (start + 32 * i < head.dim) x[start + 32 * i] = values[i];
    }
    if (head.norm && !head.norm_after_rope) norm_head(head, x);
    if (head.rope.pairs != RopePairs::None) {
        warp_sync();
        turn_head(head, x);
    }
    warp_sync();
    if (head.norm && head.norm_after_rope) norm_head(head, x);
    if (head.factor != 1.0f)
        for (int d = lane_index(); d < head.dim; d += 32) x[d] *= head.factor;
    warp_sync();
    if (head.rotated) rotate_head(x, head.dim);
}

DEVICE HeadRecipe query_recipe(const AttentionParams &p, int32_t token, bool for_sink_cells) {
    const int32_t position = p.positions[token];
    return {p.q_norm,
            p.dim_k,
            p.norm_eps,
            p.norm_after_rope != 0,
            p.rope,
            for_sink_cells && position > p.sink_position ? p.sink_position : position,
            p.q_factors ? p.q_factors[token] : 1.0f,
            p.k_cache.rotated != 0};
}

DEVICE HeadRecipe key_recipe(const AttentionParams &p, int32_t token) {
    return {p.k_norm,   p.dim_k,
            p.norm_eps, p.norm_after_rope != 0,
            p.rope,     p.positions[token],
            1.0f,       p.k_cache.rotated != 0};
}

DEVICE HeadRecipe value_recipe(const AttentionParams &p) {
    return {nullptr, p.dim_v, 0, false, {nullptr, 1, RopePairs::None, 0, 0}, 0, 1.0f, p.v_cache.rotated != 0};
}

// The page of a K/V head that holds a cell.
DEVICE unsigned char *page_of(const CachePages &pages, int kv_heads, const int32_t *table, int kv_head,
                              int cell) {
    const int64_t block = table[cell / kPageCells];
    return pages.bytes + (block * kv_heads + kv_head) * pages.page_bytes();
}

}  // namespace runnel::kernels::cuda
