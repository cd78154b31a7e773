// One thread per element on a grid of any size; bound by the latency of a launch, not by bytes.
#include "kernels/cuda/elementwise.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/math.h"

namespace runnel::kernels::cuda {

namespace {

struct Activate {
    using Params = ActivateParams;
    static constexpr const char *kName = "activate";
    static constexpr int kThreads = 256, kBlocks = 4;

    static DEVICE float clamped(float gate, float up) {  // gpt-oss
        const float g = gate > 7.0f ? 7.0f : gate;
        const float u = up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up;
        return g / (1.0f + exp_p(-1.702f * g)) * (u + 1.0f);
    }

    static DEVICE float activated(Activation activation, float x) {
        switch (activation) {
            case Activation::GeluTanh:
                return 0.5f * x * (1.0f + tanh_p(0.797884560802865f * (x + 0.044715f * x * x * x)));
            case Activation::GeluErf:
                return gelu_erf_p(x);
            case Activation::ReluSquared:
                return x > 0.0f ? x * x : x != x ? x : 0.0f;
            default:
                return silu_p(x);
        }
    }

    static DEVICE void run(const Params &p) {
        grid_dep_wait();
        const int64_t all = int64_t{p.rows} * p.width, step = int64_t{block_count()} * block_threads();
        for (int64_t i = int64_t{block_index()} * block_threads() + thread_index(); i < all; i += step) {
            const int64_t row = i / p.width, col = i % p.width;
            const float gate = p.gate[row * p.gate_stride + col];
            const float up = p.up ? p.up[row * p.up_stride + col] : 1.0f;
            p.out[row * p.out_stride + col] = p.activation == Activation::SiluClamped
                                                  ? clamped(gate, up)
                                                  : activated(p.activation, gate) * up;
        }
        grid_dep_trigger();
    }
};

struct Softcap {
    using Params = SoftcapParams;
    static constexpr const char *kName = "softcap";
    static constexpr int kThreads = 256, kBlocks = 4;

    static DEVICE void run(const Params &p) {
        grid_dep_wait();
        const int64_t step = int64_t{block_count()} * block_threads();
        for (int64_t i = int64_t{block_index()} * block_threads() + thread_index(); i < p.count; i += step)
            p.x[i] = p.cap * tanh_p(p.x[i] / p.cap);
        grid_dep_trigger();
    }
};

}  // namespace

Kernel<ActivateParams> activate_kernel() {
    return kernel_of<Activate>();
}

Kernel<SoftcapParams> softcap_kernel() {
    return kernel_of<Softcap>();
}

}  // namespace runnel::kernels::cuda
