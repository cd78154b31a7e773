// y = norm(x) * weight, then integers of 12 bits per group of 256 values, binary16 numbers, or
// both; see quantize.h for the formula.
//
// A block of 8 warps takes one row; warp w takes the groups w, w + 8, ... Each lane loads two
// float4 per group (a warp loads a contiguous KB). Rows of up to 4096 values stay in registers; all but
// the last 4096 of longer ones are read again, from L1, for each pass: a norm needs one more, for its sum,
// and binary16 output one more, for the largest value. Bytes read per value: 4, and 4 of the norm weight; bytes
// written: 2 + 3/8 for integers, 2 more for the digits of the first 64 rows, 2 for binary16.
#include "kernels/cuda/linear/quantize.h"

#include "kernels/cuda/linear/quantize_row.h"

namespace runnel::kernels::cuda {

namespace {

struct Quantize {
    using Params = QuantizeParams;
    static constexpr const char *kName = "quantize";
    static constexpr int kThreads = 256, kBlocks = 4;

    static DEVICE void run(const Params &p) {
        grid_dep_wait();
        grid_dep_trigger();
        quantize_row(p, block_index(), shared_memory<QuantizeShared>());
    }
};

struct QuantizePieces {
    using Params = QuantizePiecesParams;
    static constexpr const char *kName = "quantize_pieces";
    static constexpr int kThreads = 256, kBlocks = 4, kWarps = kThreads / 32;

    // Like load_group(), for a slice with any alignment.
    static DEVICE void load(const float *x, int32_t width, int group, float (&v)[8]) {
        if (reinterpret_cast<uintptr_t>(x) % 16 == 0) return load_group(x, width, group, v);
        const int k = group * kActivationGroup + activation_first(lane_index());
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int at = k + i % 4 + i / 4 * 16;
            v[i] = at < width ? x[at] : 0.0f;
        }
    }

    // Warp collective: the largest magnitude of a slice, as bits. Slices are short, so every warp
    // with a group of the slice computes it.
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
        grid_dep_trigger();
        const int groups = groups_of(p.width);
        const int32_t units = p.pieces * p.tokens * groups;
        for (int32_t unit = block_index() * kWarps + warp_index(); unit < units;
             unit += block_count() * kWarps) {
            const int32_t row = unit / groups, group = unit - row * groups;
            const int32_t piece = row / p.tokens, token = row - piece * p.tokens;
            const float *x = p.x + token * p.x_stride + piece * p.x_piece;
            float v[8];
            load(x, p.width, group, v);
            if (p.out.codes) store_integers(p.out, p.width, row, group, quantize_group(v));
            if (p.out.halves) store_halves(p.out, p.width, row, group, v, half_scale(largest(x, p.width)));
        }
    }
};

}  // namespace

Kernel<QuantizePiecesParams> quantize_pieces_kernel() {
    return kernel_of<QuantizePieces>();
}
int64_t quantize_pieces_blocks(const QuantizePiecesParams &params) {
    const int64_t units = int64_t{params.pieces} * params.tokens * groups_of(params.width);
    return (units + QuantizePieces::kWarps - 1) / QuantizePieces::kWarps;
}

Kernel<QuantizeParams> quantize_kernel() {
    return kernel_of<Quantize>();
}

}  // namespace runnel::kernels::cuda
