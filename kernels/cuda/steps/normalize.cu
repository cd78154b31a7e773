// See normalize.h. The row is read up to three times: first from memory, then from L1. Bound by
// launch latency.
#include "kernels/cuda/steps/normalize.h"

#include "kernels/cuda/runtime/device.h"

namespace runnel::kernels::cuda {

namespace {

constexpr int kWarps = 8;

struct NormalizeShared {
    float sums[2][kWarps];  // of the mean, of the squares
};
static_assert(sizeof(NormalizeShared) == kNormalizeShared);

struct Normalize {
    using Params = NormalizeParams;
    static constexpr const char *kName = "normalize";
    static constexpr int kThreads = 32 * kWarps, kBlocks = 4;

    // Block collective: the sum of all threads' values.
    static DEVICE float total(float own, float (&sums)[kWarps]) {
        own = warp_sum(own);
        if (lane_index() == 0) sums[warp_index()] = own;
        block_sync();
        float sum = sums[0];
#pragma unroll
        for (int w = 1; w < kWarps; ++w) sum += sums[w];
        return sum;
    }

    static DEVICE void run(const Params &p) {
        auto &shared = shared_memory<NormalizeShared>();
        grid_dep_wait();
        grid_dep_trigger();
        const int64_t row = block_index() / p.parts, first = int64_t{block_index() % p.parts} * p.width;
        const float *x = p.x + row * p.x_stride + first;
        const auto n = static_cast<float>(p.width);
        float mean = 0, squares = 0;
        if (p.layer) {
            for (int32_t i = thread_index(); i < p.width; i += kThreads) mean += x[i];
            mean = total(mean, shared.sums[0]) / n;
        }
        for (int32_t i = thread_index(); i < p.width; i += kThreads)
            squares = fma_rn(x[i] - mean, x[i] - mean, squares);
        const float scale = 1.0f / sqrt_rn(total(squares, shared.sums[1]) / n + p.eps);
        const float *add = p.add ? p.add + row * p.add_stride + first : nullptr;
        float *out = p.out + row * p.out_stride + first;
        for (int32_t i = thread_index(); i < p.width; i += kThreads) {
            float y = (x[i] - mean) * scale;
            const int64_t weight = p.own_weights ? first + i : i;
            if (p.weight) y = y * p.weight[weight];
            if (p.bias) y = y + p.bias[weight];
            out[i] = p.factor * (add ? y + add[i] : y);
        }
    }
};

}  // namespace

Kernel<NormalizeParams> normalize_kernel() {
    return kernel_of<Normalize>();
}

}  // namespace runnel::kernels::cuda
