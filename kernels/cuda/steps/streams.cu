// See streams.h. Bound by launch latency, not by bytes; joins by the bytes of the attentions' outputs.
#include "kernels/cuda/steps/streams.h"

#include <cmath>

#include "kernels/cuda/runtime/device.h"
#include "kernels/cuda/runtime/math.h"

namespace runnel::kernels::cuda {

namespace {

struct StreamShared {
    float x[kStreamWarps][kMostStreams * (kMostStreams + 2)];
};
static_assert(sizeof(StreamShared) == kStreamShared);

struct WeighStreams {
    using Params = StreamParams;
    static constexpr const char *kName = "stream weights";
    static constexpr int kThreads = 32 * kStreamWarps, kBlocks = 8;

    // Divides each line of the n x n matrix by (its sum + eps); the elements of a line are `apart` apart, the lines `next`.
    static DEVICE void divide(float *c, int n, int apart, int next, float eps) {
        const int line = lane_index();
        if (line < n) {
            float sum = 0;
            for (int i = 0; i < n; ++i) sum += c[line * next + i * apart];
            for (int i = 0; i < n; ++i) c[line * next + i * apart] /= sum + eps;
        }
        warp_sync();
    }

    // The softmax of each row of the matrix, + eps.
    static DEVICE void soften(float *c, int n, float eps) {
        const int row = lane_index();
        if (row < n) {
            float largest = c[row * n], sum = 0;
            for (int j = 1; j < n; ++j) largest = fmaxf(largest, c[row * n + j]);
            for (int j = 0; j < n; ++j) {
                const float e = exp_p(c[row * n + j] - largest);
                c[row * n + j] = e;
                sum += e;
            }
            for (int j = 0; j < n; ++j) c[row * n + j] = c[row * n + j] / sum + eps;
        }
        warp_sync();
    }

    static DEVICE void token(const Params &p, int64_t t, float *x) {
        const int n = p.streams, all = p.mix ? n * (n + 2) : n;
        for (int i = lane_index(); i < all; i += 32) {
            const int kind = i < n ? 0 : i < 2 * n ? 1 : 2;
            const float value = p.in[t * p.in_stride + i] * p.scales[kind] + p.bias[i];
            x[i] = kind == 2 ? value : 1.0f / (1.0f + exp_p(-value));
            if (kind == 0) p.read[t * p.read_stride + i] = x[i] + p.eps;
        }
        warp_sync();
        if (p.mix == nullptr) return;
        float *c = x + 2 * n, *mix = p.mix + t * p.mix_stride;
        soften(c, n, p.eps);
        divide(c, n, n, 1, p.eps);
        for (int i = 1; i < p.iterations; ++i) {
            divide(c, n, 1, n, p.eps);
            divide(c, n, n, 1, p.eps);
        }
        for (int i = lane_index(); i < n * (n + 1); i += 32) {
            const int j = i / (n + 1), from = i % (n + 1);
            mix[i] = from < n ? c[from * n + j] : 2.0f * x[n + j];
        }
        warp_sync();
    }

    static DEVICE void run(const Params &p) {
        float *x = shared_memory<StreamShared>().x[warp_index()];
        grid_dep_wait();
        grid_dep_trigger();
        for (int t = block_index() * kStreamWarps + warp_index(); t < p.tokens;
             t += block_count() * kStreamWarps)
            token(p, t, x);
    }
};

struct JoinHeads {
    using Params = JoinParams;
    static constexpr const char *kName = "join attention";
    static constexpr int kThreads = 256, kBlocks = 4;

    static DEVICE void run(const Params &p) {
        grid_dep_wait();
        grid_dep_trigger();
        const int64_t width = int64_t{p.heads} * p.dim, all = p.tokens * width,
                      step = int64_t{block_count()} * block_threads();
        for (int64_t n = int64_t{block_index()} * block_threads() + thread_index(); n < all; n += step) {
            const int64_t token = n / width, at = n % width, head = at / p.dim;
            const auto sums = [&](int i) {
                return p.part[i].sums + token * p.part[i].sums_stride + 2 * head;
            };
            float largest = sums(0)[0], total = 0, out = 0;
            for (int i = 1; i < p.parts; ++i) largest = fmaxf(largest, sums(i)[0]);
            for (int i = 0; i < p.parts; ++i) {
                const float w = exp_p(sums(i)[0] - largest) * sums(i)[1];
                total += w;
                out = fma_rn(w, p.part[i].in[token * p.part[i].in_stride + at], out);
            }
            p.out[token * p.out_stride + at] = out / total;
        }
    }
};

}  // namespace

Kernel<StreamParams> stream_weights_kernel() {
    return kernel_of<WeighStreams>();
}

Kernel<JoinParams> join_attention_kernel() {
    return kernel_of<JoinHeads>();
}

}  // namespace runnel::kernels::cuda
