#include "kernels/cuda/tensor_rate.h"

#include "kernels/cuda/device.h"

namespace runnel::kernels::cuda {
namespace {

struct TensorRate {
    using Params = TensorRateParams;
    static constexpr const char *kName = "tensor rate";
    static constexpr int kThreads = kRateThreads;
    static constexpr int kBlocks = 2;

    static DEVICE void run(const Params &p) {
        grid_dep_wait();
        // Small numbers of both signs, different in every lane: no zeros, and sums that stay finite.
        const float seed = static_cast<float>(lane_index() - 15) * 0.01f;
        uint32_t a[4], b[2];
        for (int i = 0; i < 4; ++i) a[i] = pack_bf16(seed, 0.3f - seed);
        for (int i = 0; i < 2; ++i) b[i] = pack_bf16(0.2f + seed, -seed);
        float sums[kRateTiles][4] = {};
#pragma unroll 1
        for (int round = 0; round < p.rounds; ++round)
#pragma unroll
            for (int tile = 0; tile < kRateTiles; ++tile) mma_bf16_k16(sums[tile], a, b);
        float sum = 0;
#pragma unroll
        for (int tile = 0; tile < kRateTiles; ++tile)
            for (int i = 0; i < 4; ++i) sum += sums[tile][i];
        p.out[static_cast<int64_t>(block_index()) * kRateThreads + thread_index()] = sum;
    }
};

}  // namespace

Kernel<TensorRateParams> tensor_rate_kernel() {
    return kernel_of<TensorRate>();
}

}  // namespace runnel::kernels::cuda
