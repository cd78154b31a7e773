// One head of one token: norm, RoPE, rounding to 16 bits; and the two 16-bit types of the cache. For kernels.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/math.h"

namespace runnel::kernels::cuda {

struct F16 {
    static DEVICE uint16_t round(float x) { return f32_to_f16(x); }
    static DEVICE uint32_t pack(float lo, float hi) { return pack_f16(lo, hi); }
    static DEVICE void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
        mma_f16_k16(c, a, b);
    }
    static constexpr uint32_t kOnes = 0x3c003c00u;
};

struct BF16 {
    static DEVICE uint16_t round(float x) { return f32_to_bf16(x); }
    static DEVICE uint32_t pack(float lo, float hi) { return pack_bf16(lo, hi); }
    static DEVICE void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
        mma_bf16_k16(c, a, b);
    }
    static constexpr uint32_t kOnes = 0x3f803f80u;
};

// How the warps of a launch treat heads.
struct HeadRecipe {
    const float *norm;  // [dim] or null
    int dim;
    float eps;
    bool norm_after_rope;
    RopeParams rope;
    int32_t position;
    float factor;
};

// x[d] of the lane's dimensions d = lane, lane + 32, ... scaled to unit RMS and by the norm's weight.
DEVICE void norm_head(const HeadRecipe &head, float *x) {
    float sum = 0;
    for (int d = lane_index(); d < head.dim; d += 32) sum = fma_rn(x[d], x[d], sum);
    const float scale = 1.0f / sqrt_rn(warp_sum(sum) / static_cast<float>(head.dim) + head.eps);
    for (int d = lane_index(); d < head.dim; d += 32) x[d] = x[d] * scale * head.norm[d];
}

// Dimension d of the rotated head x.
DEVICE float rotated(const HeadRecipe &head, const float *x, int d) {
    const RopeParams &rope = head.rope;
    const int e = d - rope.first;
    if (rope.pairs == RopePairs::None || e < 0 || e >= rope.rotated) return x[d];
    const int half = rope.rotated / 2;
    const bool adjacent = rope.pairs == RopePairs::Adjacent;
    const int pair = adjacent ? e >> 1 : (e < half ? e : e - half);
    const bool second = adjacent ? (e & 1) != 0 : e >= half;
    const uint64_t angle = rope.turns[pair] * static_cast<uint64_t>(static_cast<int64_t>(head.position));
    const SinCos turn = sincos_p(static_cast<uint32_t>(angle >> 32));
    const float cosine = turn.cos * rope.magnitude, sine = turn.sin * rope.magnitude;
    const float *from = x + rope.first + (adjacent ? 2 * pair : pair);
    const float a = from[0], b = from[adjacent ? 1 : half];
    return second ? fma_rn(a, sine, b * cosine) : fma_rn(a, cosine, -(b * sine));
}

// Warp collective: hands store(d, value) every dimension of the finished head once. from: global, any
// alignment; x: shared memory of the warp's own, [dim].
template <class Store>
DEVICE void make_head(const HeadRecipe &head, const float *from, float *x, Store store) {
    for (int d = lane_index(); d < head.dim; d += 32) x[d] = from[d];
    if (head.norm && !head.norm_after_rope) norm_head(head, x);
    warp_sync();
    if (head.norm && head.norm_after_rope) {
        float turned[kMaxHeadDim / 32];
#pragma unroll
        for (int i = 0; i < kMaxHeadDim / 32; ++i) {
            const int d = lane_index() + 32 * i;
            turned[i] = d < head.dim ? rotated(head, x, d) : 0.0f;
        }
        warp_sync();
#pragma unroll
        for (int i = 0; i < kMaxHeadDim / 32; ++i)
            if (lane_index() + 32 * i < head.dim) x[lane_index() + 32 * i] = turned[i];
        norm_head(head, x);
#pragma unroll 1
        for (int d = lane_index(); d < head.dim; d += 32) store(d, x[d] * head.factor);
    } else {
#pragma unroll 1
        for (int d = lane_index(); d < head.dim; d += 32) store(d, rotated(head, x, d) * head.factor);
    }
    warp_sync();
}

DEVICE HeadRecipe query_recipe(const AttentionParams &p, int32_t token) {
    return {p.q_norm,
            p.dim_k,
            p.norm_eps,
            p.norm_after_rope != 0,
            p.rope,
            p.positions[token],
            p.q_factors ? p.q_factors[token] : 1.0f};
}

DEVICE HeadRecipe key_recipe(const AttentionParams &p, int32_t token) {
    return {p.k_norm, p.dim_k, p.norm_eps, p.norm_after_rope != 0, p.rope, p.positions[token], 1.0f};
}

// Elements from the cache's start to a cell of a head.
DEVICE int64_t cache_offset(const AttentionParams &p, const int32_t *table, int kv_head, int cell, int dim) {
    const int64_t block = table[cell / kPageCells];
    return ((block * p.kv_heads + kv_head) * kPageCells + cell % kPageCells) * dim;
}

}  // namespace runnel::kernels::cuda
