// Rows of float32 -> quantized activations (quantize.h defines the result and its order), for kernels that
// only quantize and for those that quantize their own output.
#pragma once

#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/steps/norm.h"

namespace runnel::kernels::cuda {

struct QuantizeShared {
    float partial[kNormWarps];
    uint32_t largest[kNormWarps];
};
static_assert(sizeof(QuantizeShared) == kQuantizeShared);

constexpr int groups_of(int32_t width) {
    return static_cast<int>(activation_groups(width));
}

// Stores the lane's values v of group `group` of a row of `width` values as halves.
DEVICE void store_halves(const Activations &out, int32_t width, int64_t row, int group, const float (&v)[8],
                         HalfScale scale) {
    const int lane = lane_index(), t = lane >> 1 & 3;
    // The first of the 32 columns to which the lane's values belong.
    const int columns = group * kActivationGroup + activation_first(lane) - 4 * t;
    if (lane == 0 && group == 0) out.half_scales[row] = scale.scale;
    if (columns / kActivationChunk * kActivationChunk >= width) return;
    st128(out.halves + row * out.halves_stride + columns + 8 * t, halves_of(v, scale.inverse));
}

// Stores a group as integers, with its scale and sums.
DEVICE void store_integers(const Activations &out, int32_t width, int64_t row, int group,
                           const ActivationPiece &piece) {
    const int lane = lane_index(), t = lane >> 1 & 3;
    // columns: the first of the 32 columns to which the lane's values belong.
    const int k = group * kActivationGroup + activation_first(lane), columns = k - 4 * t;
    // Scales are read four at a time: those after the last are 0.
    const int last = groups_of(width) - 1, padded = group + (lane & 3);
    if (lane == 0 || (lane < 4 && group == last && padded < out.scales_stride))
        out.scales[row * out.scales_stride + padded] = lane == 0 ? piece.scale : 0.0f;
    if (columns / kActivationChunk * kActivationChunk < width)
        st128(out.codes + row * out.codes_stride + columns + 8 * t, piece.codes);
    if (t != 0) return;
    // Missing groups have sums of 0.
    const int of_32 = columns % kActivationGroup / 32;
    uint16_t *sums = out.sums + row * out.sums_stride + group * kSumParts + of_32;
    const SumParts all = parts_of(piece.sum[0] + piece.sum[1]);
    sums[0] = f32_to_f16(all.high);
    sums[8] = f32_to_f16(all.low);
    uint16_t *sums16 = out.sums16 + row * out.sums16_stride + group * kSum16Parts + 2 * of_32;
    const SumParts first = parts_of(piece.sum[0]), second = parts_of(piece.sum[1]);
    *reinterpret_cast<uint32_t *>(sums16) = pack_f16(first.high, second.high);
    *reinterpret_cast<uint32_t *>(sums16 + 16) = pack_f16(first.low, second.low);
}

// The group's values, normalized with `scale` if there is a norm.
DEVICE void load_normed(const QuantizeParams &p, const float *x, int group, float scale, float (&v)[8]) {
    load_group(x, p.width, group, v);
    if (p.weight == nullptr) return;
    float weight[8];
    load_group(p.weight, p.width, group, weight);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = v[i] * scale * weight[i];
}

DEVICE void store_normed(const QuantizeParams &p, int64_t row, int group, const float (&v)[8]) {
    const int k = group * kActivationGroup + activation_first(lane_index());
#pragma unroll
    for (int h = 0; h < 2; ++h)
        if (k + 16 * h < p.width)  // rows are padded to whole float4
            *reinterpret_cast<float4 *>(p.normed + row * p.x_stride + k + 16 * h) =
                float4{v[4 * h], v[4 * h + 1], v[4 * h + 2], v[4 * h + 3]};
}

// Block collective: the largest magnitude of the row, as bits.
DEVICE uint32_t largest_of_row(const QuantizeParams &p, const float *x, int groups, float scale,
                               uint32_t (&largest)[kNormWarps]) {
    uint32_t own = 0;
    for (int group = warp_index(); group < groups; group += kNormWarps) {
        float v[8];
        load_normed(p, x, group, scale, v);
        own = largest_of(v, own);
    }
    own = largest_magnitude(own);
    if (lane_index() == 0) largest[warp_index()] = own;
    block_sync();
    own = largest[0];
#pragma unroll
    for (int w = 1; w < kNormWarps; ++w) own = largest[w] > own ? largest[w] : own;
    return own;
}

// What the groups of a row share: its norm (1 without) and the scale of its halves.
struct RowScales {
    float norm = 1;
    HalfScale halves{};
};

// Block collective of 8 warps.
DEVICE RowScales row_scales(const QuantizeParams &p, int64_t row, QuantizeShared &shared) {
    const float *x = p.x + row * p.x_stride;
    RowScales scales;
    if (p.weight) scales.norm = inverse_rms(x, p.width, p.eps, shared.partial);
    if (p.out.halves)
        scales.halves = half_scale(largest_of_row(p, x, groups_of(p.width), scales.norm, shared.largest));
    return scales;
}

// Warp collective: quantizes one group of a row, in the forms that p.out has.
DEVICE void quantize_group_of(const QuantizeParams &p, int64_t row, int group, const RowScales &scales) {
    float v[8];
    load_normed(p, p.x + row * p.x_stride, group, scales.norm, v);
    if (p.normed) store_normed(p, row, group, v);
    if (p.out.codes) store_integers(p.out, p.width, row, group, quantize_group(v));
    if (p.out.halves) store_halves(p.out, p.width, row, group, v, scales.halves);
}

// Block collective of 8 warps: quantizes one row.
DEVICE void quantize_row(const QuantizeParams &p, int64_t row, QuantizeShared &shared) {
    const RowScales scales = row_scales(p, row, shared);
    for (int group = warp_index(); group < groups_of(p.width); group += kNormWarps)
        quantize_group_of(p, row, group, scales);
}

// Warp collective: quantizes one group of a row to integers. Precondition: !needs_whole_rows(p).
DEVICE void quantize_group_of(const QuantizeParams &p, int64_t row, int group) {
    float v[8];
    load_group(p.x + row * p.x_stride, p.width, group, v);
    store_integers(p.out, p.width, row, group, quantize_group(v));
}

}  // namespace runnel::kernels::cuda
