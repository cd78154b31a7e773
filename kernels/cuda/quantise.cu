// y = norm(x) * weight, then hi/lo int8 per group of 256 values; see quantise.h for the formula.
//
// A block of 8 warps takes one row; a warp takes the groups w, w + 8, ... Each lane loads two float4 per
// group (the warp a contiguous KB), keeps nothing between the two passes: the second reads the row from L1.
// Bytes against the floor: 4 per value read (and 4 of the norm weight per block), 2 + 24/32 written.
#include "kernels/cuda/quantise.h"

#include "kernels/cuda/norm.h"

namespace runnel::kernels::cuda {

namespace {

struct QuantiseShared {
    float partial[kNormWarps];
};
static_assert(sizeof(QuantiseShared) == kQuantiseShared);

// Group `group` of a row of `width` values.
DEVICE void store_group(const Activations &out, int32_t width, int64_t row, int group,
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

    static DEVICE void normalise(const Params &p, int group, float scale, float (&v)[8]) {
        float weight[8];
        load_group(p.weight, p.width, group, weight);
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = v[i] * scale * weight[i];
    }

    static DEVICE void store_normed(const Params &p, int64_t row, int group, const float (&v)[8]) {
        const int k = group * kActivationGroup + activation_first(lane_index());
#pragma unroll
        for (int h = 0; h < 2; ++h)
            if (k + 16 * h < p.width)
                *reinterpret_cast<float4 *>(p.normed + row * p.x_stride + k + 16 * h) =
                    float4{v[4 * h], v[4 * h + 1], v[4 * h + 2], v[4 * h + 3]};
    }

    static DEVICE void run(const Params &p) {
        auto &shared = shared_memory<QuantiseShared>();
        grid_dep_wait();
        const int64_t row = block_index();
        const float *x = p.x + row * p.x_stride;
        const float scale = p.weight ? inverse_rms(x, p.width, p.eps, shared.partial) : 1.0f;
        const int groups = (p.width + kActivationGroup - 1) / kActivationGroup;
        for (int group = warp_index(); group < groups; group += kNormWarps) {
            float v[8];
            load_group(x, p.width, group, v);
            if (p.weight) normalise(p, group, scale, v);
            if (p.normed) store_normed(p, row, group, v);
            store_group(p.out, p.width, row, group, quantise_group(v));
        }
        grid_dep_trigger();
    }
};

constexpr int groups_of(int32_t width) {
    return (width + kActivationGroup - 1) / kActivationGroup;
}

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

    static DEVICE void run(const Params &p) {
        grid_dep_wait();
        const int groups = groups_of(p.width);
        const int32_t units = p.pieces * p.tokens * groups;
        for (int32_t unit = block_index() * kWarps + warp_index(); unit < units;
             unit += block_count() * kWarps) {
            const int32_t row = unit / groups, group = unit - row * groups;
            const int32_t piece = row / p.tokens, token = row - piece * p.tokens;
            float v[8];
            load(p.x + token * p.x_stride + piece * p.x_piece, p.width, group, v);
            store_group(p.out, p.width, row, group, quantise_group(v));
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
