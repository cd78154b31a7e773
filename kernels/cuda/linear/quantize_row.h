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

// Stores the sums of 32 columns, number of_32 of a group of 256 whose sums begin at `to`: of groups of 16, or of 32.
template <bool kOf16>
DEVICE void store_sums(uint16_t *to, int of_32, const ActivationPiece &piece) {
    if constexpr (kOf16) {
        uint16_t *own = to + 2 * of_32;
        const SumParts first = parts_of(piece.sum[0]), second = parts_of(piece.sum[1]);
        *reinterpret_cast<uint32_t *>(own) = pack_f16(first.high, second.high);
        *reinterpret_cast<uint32_t *>(own + 16) = pack_f16(first.low, second.low);
    } else {
        uint16_t *own = to + of_32;
        const SumParts all = parts_of(piece.sum[0] + piece.sum[1]);
        own[0] = f32_to_f16(all.high);
        own[8] = f32_to_f16(all.low);
    }
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
    if (columns / kActivationChunk * kActivationChunk < width) {
        st128(out.codes + row * out.codes_stride + columns + 8 * t, piece.codes());
        if (row < kDigitRows) {
            int8_t *const to = out.digits + 2 * (row * out.codes_stride + columns) + 8 * t;
            const ActivationDigits digits(piece.q);
            st64(to, digits.high);
            st64(to + 32, digits.low);
        }
    }
    if (t != 0) return;
    // Missing groups have sums of 0.
    const int of_32 = columns % kActivationGroup / 32;
    store_sums<false>(out.sums + row * out.sums_stride + group * kSumParts, of_32, piece);
    store_sums<true>(out.sums16 + row * out.sums16_stride + group * kSum16Parts, of_32, piece);
}

DEVICE void store_normed(const QuantizeParams &p, int64_t row, int group, const float (&v)[8]) {
    const int k = group * kActivationGroup + activation_first(lane_index());
#pragma unroll
    for (int h = 0; h < 2; ++h)
        if (k + 16 * h < p.width)  // rows are padded to whole float4
            *reinterpret_cast<float4 *>(p.normed + row * p.x_stride + k + 16 * h) =
                float4{v[4 * h], v[4 * h + 1], v[4 * h + 2], v[4 * h + 3]};
}

// Block collective: the largest of the lanes' magnitudes, as bits.
DEVICE uint32_t largest_of_block(uint32_t own, uint32_t (&largest)[kNormWarps]) {
    own = largest_magnitude(own);
    if (lane_index() == 0) largest[warp_index()] = own;
    block_sync();
    own = largest[0];
#pragma unroll
    for (int w = 1; w < kNormWarps; ++w) own = largest[w] > own ? largest[w] : own;
    return own;
}

// Warp collective: stores the finished values v of one group of a row, in the forms that p.out has.
DEVICE void store_group(const QuantizeParams &p, int64_t row, int group, const float (&v)[8],
                        HalfScale halves) {
    if (p.normed) store_normed(p, row, group, v);
    if (p.out.codes) store_integers(p.out, p.width, row, group, quantize_group(v));
    if (p.out.halves) store_halves(p.out, p.width, row, group, v, halves);
}

// Groups of a row that a warp holds in registers: a round. Rows of up to 4096 values are one round.
constexpr int kHeldGroups = 2;
using HeldGroups = float[kHeldGroups][8];

DEVICE void load_round(const float *x, int32_t width, int round, HeldGroups &v) {
#pragma unroll
    for (int i = 0; i < kHeldGroups; ++i)
        load_group(x, width, warp_index() + kNormWarps * (kHeldGroups * round + i), v[i]);
}

// Block collective of 8 warps: normalizes one row and hands its groups to store(group, values, halves), one per warp at a time.
// The loads of a round are made at once, and the last round stays in registers: this is often the work of one block that all
// others wait for. has_halves: whether `halves` is needed.
template <class Store>
DEVICE void prepare_row(const QuantizeParams &p, int64_t row, QuantizeShared &shared, bool has_halves,
                        const Store &store) {
    const float *x = p.x + row * p.x_stride;
    const int groups = groups_of(p.width), last = (groups - 1) / (kNormWarps * kHeldGroups);
    HeldGroups v;
    float sum = 0, norm = 1;
#pragma unroll 1
    for (int round = 0; round <= last; ++round) {
        load_round(x, p.width, round, v);
#pragma unroll
        for (int i = 0; i < kHeldGroups; ++i)  // values beyond the row are 0 and change nothing
#pragma unroll
            for (int k = 0; k < 8; ++k) sum = fma_rn(v[i][k], v[i][k], sum);
    }
    const auto normalize = [&](int round, HeldGroups &values) {
        HeldGroups weight;
        load_round(p.weight, p.width, round, weight);
#pragma unroll
        for (int i = 0; i < kHeldGroups; ++i)
#pragma unroll
            for (int k = 0; k < 8; ++k) values[i][k] = values[i][k] * norm * weight[i][k];
    };
    if (p.weight) {
        norm = inverse_rms_of(sum, p.width, p.eps, shared.partial);
        normalize(last, v);
    }
    const auto load_earlier = [&](int round, HeldGroups &to) {
        load_round(x, p.width, round, to);
        if (p.weight) normalize(round, to);
    };
    HalfScale halves{};
    if (has_halves) {
        uint32_t own = 0;
#pragma unroll
        for (int i = 0; i < kHeldGroups; ++i) own = largest_of(v[i], own);
#pragma unroll 1
        for (int round = 0; round < last; ++round) {
            HeldGroups other;
            load_earlier(round, other);
#pragma unroll
            for (int i = 0; i < kHeldGroups; ++i) own = largest_of(other[i], own);
        }
        halves = half_scale(largest_of_block(own, shared.largest));
    }
#pragma unroll 1
    for (int round = last; round >= 0; --round) {
        if (round < last) load_earlier(round, v);
#pragma unroll
        for (int i = 0; i < kHeldGroups; ++i) {
            const int group = warp_index() + kNormWarps * (kHeldGroups * round + i);
            if (group < groups) store(group, v[i], halves);
        }
    }
}

// Block collective of 8 warps: quantizes one row.
DEVICE void quantize_row(const QuantizeParams &p, int64_t row, QuantizeShared &shared) {
    prepare_row(
        p, row, shared, p.out.halves != nullptr,
        [&](int group, const float(&v)[8], HalfScale halves) { store_group(p, row, group, v, halves); });
}

// Called by a block of 8 warps: fetches the weight of the norm into L2, for the block that will need it.
DEVICE void fetch_norm(const QuantizeParams &p) {
    constexpr uint32_t kBytes = 128;
    const auto bytes = static_cast<uint32_t>(p.width) * 4;
    if (p.weight == nullptr) return;
#pragma unroll 1
    for (uint32_t at = kBytes * static_cast<uint32_t>(thread_index()); at < bytes;
         at += kBytes * 32 * kNormWarps)
        prefetch_l2(reinterpret_cast<const std::byte *>(p.weight) + at,
                    bytes - at < kBytes ? bytes - at : kBytes);
}

// Warp collective: quantizes one group of a row to integers. Precondition: !needs_whole_rows(p).
DEVICE void quantize_group_of(const QuantizeParams &p, int64_t row, int group) {
    float v[8];
    load_group(p.x + row * p.x_stride, p.width, group, v);
    store_integers(p.out, p.width, row, group, quantize_group(v));
}

}  // namespace runnel::kernels::cuda
