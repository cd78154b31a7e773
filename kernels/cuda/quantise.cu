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

struct Quantise {
    using Params = QuantiseParams;
    static constexpr const char *kName = "quantise";
    static constexpr int kThreads = 256, kBlocks = 4;

    static DEVICE void store(const Params &p, int64_t row, int group, const ActivationPiece &piece) {
        const int lane = lane_index(), k = group * kActivationGroup + activation_first(lane);
        if (lane == 0) p.out.scales[row * p.out.scales_stride + group] = piece.scale;
        const int chunk = k / kActivationChunk, t = lane >> 1 & 3, sub = lane & 1;
        if (chunk * kActivationChunk >= p.width) return;
        int8_t *to = p.out.values + row * p.out.values_stride + int64_t{chunk} * kActivationChunkBytes +
                     16 * t + 8 * sub;
        st64(to, piece.hi);
        st64(to + 64, piece.lo);
        if (t != 0 || k >= p.width) return;
        int32_t *sums16 = p.out.sums16 + row * p.out.sums16_stride + k / 16 * 2;
        st128(sums16, uint4{static_cast<uint32_t>(piece.sum_hi[0]), static_cast<uint32_t>(piece.sum_lo[0]),
                            static_cast<uint32_t>(piece.sum_hi[1]), static_cast<uint32_t>(piece.sum_lo[1])});
        int32_t *sums = p.out.sums + row * p.out.sums_stride + k / 32 * 2;
        st64(sums, uint2{static_cast<uint32_t>(piece.sum_hi[0] + piece.sum_hi[1]),
                         static_cast<uint32_t>(piece.sum_lo[0] + piece.sum_lo[1])});
    }

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
            store(p, row, group, quantise_group(v));
        }
        grid_dep_trigger();
    }
};

}  // namespace

Kernel<QuantiseParams> quantise_kernel() {
    return kernel_of<Quantise>();
}

}  // namespace runnel::kernels::cuda
