#include "kernels/cuda/steps/rotate.h"

#include "kernels/cuda/runtime/device.h"

namespace runnel::kernels::cuda {

namespace {

struct RotateShared {
    alignas(16) float x[kMostRotated];
};
static_assert(sizeof(RotateShared) == kRotateShared);

struct RotateRows {
    using Params = RotateParams;
    static constexpr const char *kName = "rotate";
    static constexpr int kThreads = 256, kBlocks = 4;

    // Multiplies x[count], whole blocks, by the matrix, but for the division.
    static DEVICE void transform(float *x, int count, int block) {
#pragma unroll 1
        for (int apart = 1; apart < block; apart *= 2) {
#pragma unroll 1
            for (int i = thread_index(); i < count / 2; i += kThreads) {
                float *at = x + 2 * i - (i & (apart - 1));
                const float a = at[0], b = at[apart];
                at[0] = a + b;
                at[apart] = a - b;
            }
            block_sync();
        }
    }

    static DEVICE void run(const Params &p) {
        float *x = shared_memory<RotateShared>().x;
        grid_dep_wait();
        grid_dep_trigger();
        const float scale = 1.0f / sqrt_rn(static_cast<float>(p.block));
        const int chunk = p.block > kRotateFloats ? p.block : kRotateFloats,
                  chunks = (p.width + chunk - 1) / chunk;
        const float *before = p.signs_last ? nullptr : p.signs, *after = p.signs_last ? p.signs : nullptr;
#pragma unroll 1
        for (int index = block_index(); index < p.tokens * chunks; index += block_count()) {
            const int token = index / chunks, first = (index - token * chunks) * chunk;
            const int count = p.width - first < chunk ? p.width - first : chunk;
            const float *in = p.in + token * p.in_stride + first;
            float *out = p.out + token * p.out_stride + first;
            for (int i = thread_index(); i < count; i += kThreads)
                x[i] = before ? in[i] * before[first + i] : in[i];
            block_sync();
            transform(x, count, p.block);
            for (int i = thread_index(); i < count; i += kThreads)
                out[i] = after ? x[i] * scale * after[first + i] : x[i] * scale;
            block_sync();
        }
    }
};

}  // namespace

Kernel<RotateParams> rotate_kernel() {
    return kernel_of<RotateRows>();
}

}  // namespace runnel::kernels::cuda
