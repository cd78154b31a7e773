// y = norm(x) * weight, then hi/lo int8 per group of 256 values, binary16 numbers, or both; see quantise.h
// for the formula.
//
// A block of 8 warps takes one row; a warp takes the groups w, w + 8, ... Each lane loads two float4 per
// group (the warp a contiguous KB), keeps nothing between the passes: all but the first read the row from L1.
// With a norm there is one for its sum, with halves one for the largest value.
// Bytes against the floor: 4 per value read (and 4 of the norm weight per block), 2 + 24/32 written of
// integers, 2 of halves.
#include "kernels/cuda/quantise.h"

#include "kernels/cuda/norm.h"

namespace runnel::kernels::cuda {

namespace {

struct QuantiseShared {
    float partial[kNormWarps];
    uint32_t largest[kNormWarps];
};
static_assert(sizeof(QuantiseShared) == kQuantiseShared);

constexpr int groups_of(int32_t width) {
    return (width + kActivationGroup - 1) / kActivationGroup;
}

// Group `group` of a row of `width` values.
DEVICE void store_halves(const Activations &out, int32_t width, int64_t row, int group, const float (&v)[8],
                         HalfScale scale) {
    const int lane = lane_index(), t = lane >> 1 & 3;
    const int columns = group * kActivationGroup + activation_first(lane) - 4 * t;  // the first of these 32
    if (lane == 0 && group == 0) out.half_scales[row] = scale.scale;
    if (columns / kActivationChunk * kActivationChunk >= width) return;
    st128(out.halves + row * out.halves_stride + columns + 8 * t, halves_of(v, scale.inverse));
}

// Likewise.
DEVICE void store_integers(const Activations &out, int32_t width, int64_t row, int group,
                           const ActivationPiece &piece) {
    const int lane = lane_index(), k = group * kActivationGroup + activation_first(lane);
    if (lane == 0) out.scales[row * out.scales_stride + group] = piece.scale;
    const int chunk = k / kActivationChunk, t = lane >> 1 & 3, sub = lane & 1;
    if (chunk * kActivationChunk >= width) return;
    int8_t *to =
        out.values + row * out.values_stride + int64_t{chunk} * kActivationChunkBytes + 16 * t + 8 * sub;
    st64(to, piece.hi);
    st64(to + 64, piece.lo);
    if (t != 0 || k >= width) return;
    int32_t *sums16 = out.sums16 + row * out.sums16_stride + k / 16 * 2;
    st128(sums16, uint4{static_cast<uint32_t>(piece.sum_hi[0]), static_cast<uint32_t>(piece.sum_lo[0]),
                        static_cast<uint32_t>(piece.sum_hi[1]), static_cast<uint32_t>(piece.sum_lo[1])});
    int32_t *sums = out.sums + row * out.sums_stride + k / 32 * 2;
    st64(sums, uint2{static_cast<uint32_t>(piece.sum_hi[0] + piece.sum_hi[1]),
                     static_cast<uint32_t>(piece.sum_lo[0] + piece.sum_lo[1])});
}

struct Quantise {
    using Params = QuantiseParams;
    static constexpr const char *kName = "quantise";
    static constexpr int kThreads = 256, kBlocks = 4;

    // The group's values, normalised with `scale` if there is a norm.
    static DEVICE void load(const Params &p, const float *x, int group, float scale, float (&v)[8]) {
        load_group(x, p.width, group, v);
        if (p.weight == nullptr) return;
        float weight[8];
        load_group(p.weight, p.width, group, weight);
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = v[i] * scale * weight[i];
    }

    static DEVICE void store_normed(const Params &p, int64_t row, int group, const float (&v)[8]) {
        const int k = group * kActivationGroup + activation_first(lane_index());
#pragma unroll
        for (int h = 0; h < 2; ++h)
            if (k + 16 * h < p.width)  // rows are padded to whole float4
                *reinterpret_cast<float4 *>(p.normed + row * p.x_stride + k + 16 * h) =
                    float4{v[4 * h], v[4 * h + 1], v[4 * h + 2], v[4 * h + 3]};
    }

    // Block: the largest magnitude of the row, as bits.
    static DEVICE uint32_t largest(const Params &p, const float *x, int groups, float scale,
                                   uint32_t (&largest)[kNormWarps]) {
        uint32_t own = 0;
        for (int group = warp_index(); group < groups; group += kNormWarps) {
            float v[8];
            load(p, x, group, scale, v);
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

    static DEVICE void run(const Params &p) {
        auto &shared = shared_memory<QuantiseShared>();
        grid_dep_wait();
        const int64_t row = block_index();
        const float *x = p.x + row * p.x_stride;
        const float scale = p.weight ? inverse_rms(x, p.width, p.eps, shared.partial) : 1.0f;
        const int groups = groups_of(p.width);
        HalfScale halves{};
        if (p.out.halves) halves = half_scale(largest(p, x, groups, scale, shared.largest));
        for (int group = warp_index(); group < groups; group += kNormWarps) {
            float v[8];
            load(p, x, group, scale, v);
            if (p.normed) store_normed(p, row, group, v);
            if (p.out.values) store_integers(p.out, p.width, row, group, quantise_group(v));
            if (p.out.halves) store_halves(p.out, p.width, row, group, v, halves);
        }
        grid_dep_trigger();
    }
};

struct QuantisePieces {
    using Params = QuantisePiecesParams;
    static constexpr const char *kName = "quantise_pieces";
    static constexpr int kThreads = 256, kBlocks = 4, kWarps = kThreads / 32;

    // As load_group(), of a piece that may begin anywhere.
    static DEVICE void load(const float *x, int32_t width, int group, float (&v)[8]) {
        if (reinterpret_cast<uintptr_t>(x) % 16 == 0) return load_group(x, width, group, v);
        const int k = group * kActivationGroup + activation_first(lane_index());
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int at = k + i % 4 + i / 4 * 16;
            v[i] = at < width ? x[at] : 0.0f;
        }
    }

    // Warp: the largest magnitude of a piece, as bits. Pieces are short: each of its groups' warps looks.
    static DEVICE uint32_t largest(const float *x, int32_t width) {
        uint32_t own = 0;
        for (int group = 0; group < groups_of(width); ++group) {
            float v[8];
            load(x, width, group, v);
            own = largest_of(v, own);
        }
        return largest_magnitude(own);
    }

    static DEVICE void run(const Params &p) {
        grid_dep_wait();
        const int groups = groups_of(p.width);
        const int32_t units = p.pieces * p.tokens * groups;
        for (int32_t unit = block_index() * kWarps + warp_index(); unit < units;
             unit += block_count() * kWarps) {
            const int32_t row = unit / groups, group = unit - row * groups;
            const int32_t piece = row / p.tokens, token = row - piece * p.tokens;
            const float *x = p.x + token * p.x_stride + piece * p.x_piece;
            float v[8];
            load(x, p.width, group, v);
            if (p.out.values) store_integers(p.out, p.width, row, group, quantise_group(v));
            if (p.out.halves) store_halves(p.out, p.width, row, group, v, half_scale(largest(x, p.width)));
        }
        grid_dep_trigger();
    }
};

}  // namespace

Kernel<QuantisePiecesParams> quantise_pieces_kernel() {
    return kernel_of<QuantisePieces>();
}
int64_t quantise_pieces_blocks(const QuantisePiecesParams &params) {
    const int64_t units = int64_t{params.pieces} * params.tokens * groups_of(params.width);
    return (units + QuantisePieces::kWarps - 1) / QuantisePieces::kWarps;
}

Kernel<QuantiseParams> quantise_kernel() {
    return kernel_of<Quantise>();
}

}  // namespace runnel::kernels::cuda
