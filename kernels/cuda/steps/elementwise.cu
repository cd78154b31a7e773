// One thread per element (copies: per 4) on a grid of any size. Bound by launch latency, not by
// bytes.
#include "kernels/cuda/steps/elementwise.h"

#include "kernels/cuda/runtime/device.h"
#include "kernels/cuda/runtime/math.h"

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

    static DEVICE float limited(float limit, bool before, float gate, float up) {
        const float u = up > limit ? limit : up < -limit ? -limit : up;
        if (before) return silu_p(gate > limit ? limit : gate) * u;
        const float g = silu_p(gate);
        return (g > limit ? limit : g) * u;
    }

    static DEVICE float activated(const Params &p, float x) {
        switch (p.activation) {
            case ActivationKind::GeluTanh:
                return 0.5f * x * (1.0f + tanh_p(0.797884560802865f * (x + 0.044715f * x * x * x)));
            case ActivationKind::GeluErf:
                return gelu_erf_p(x);
            case ActivationKind::ReluSquared:
                return x > 0.0f ? x * x : x != x ? x : 0.0f;
            case ActivationKind::Sigmoid:
                return 1.0f / (1.0f + exp_p(-x));
            case ActivationKind::Relu:
                return x < 0.0f ? 0.0f : x;
            case ActivationKind::Clamp:
                return x > p.positive ? p.positive : x < p.negative ? p.negative : x;
            case ActivationKind::XIelu:
                if (x > 0.0f) return (p.positive * x + p.beta) * x;
                return p.negative * (exp_p(x < p.eps ? x : p.eps) - 1.0f - x) + p.beta * x;
            case ActivationKind::Identity:
                return x;
            case ActivationKind::Tanh:
                return tanh_p(x);
            case ActivationKind::SignedRoot: {
                const float magnitude = x < 0.0f ? -x : x;
                const float root = sqrt_rn(magnitude < p.positive ? p.positive : magnitude);
                return x > 0.0f ? root : x < 0.0f ? -root : x;
            }
            default:
                return silu_p(x);
        }
    }

    static DEVICE float gated(const Params &p, float gate, float up) {
        switch (p.activation) {
            case ActivationKind::SiluClamped:
                return clamped(gate, up);
            case ActivationKind::SiluThenLimit:
                return limited(p.positive, false, gate, up);
            case ActivationKind::LimitThenSilu:
                return limited(p.positive, true, gate, up);
            default:
                return activated(p, gate) * up;
        }
    }

    static DEVICE void run(const Params &p) {
        grid_dep_wait();
        grid_dep_trigger();
        const int64_t all = int64_t{p.rows} * p.width, step = int64_t{block_count()} * block_threads();
        for (int64_t i = int64_t{block_index()} * block_threads() + thread_index(); i < all; i += step) {
            const int64_t row = i / p.width, col = i % p.width;
            const float gate = p.gate[row * p.gate_stride + col];
            const float up = p.up ? p.up[row * p.up_stride + col] : 1.0f;
            p.out[row * p.out_stride + col] = gated(p, gate, up);
        }
    }
};

// Number of runs of 128 floats in a copy.
constexpr int64_t copy_units(const PieceCopy &c, int32_t tokens) {
    return int64_t{tokens} * c.count * ((c.width + kCopyFloats - 1) / kCopyFloats);
}

struct CopyPieces {
    using Params = CopyParams;
    static constexpr const char *kName = "copy";
    static constexpr int kThreads = 256, kBlocks = 4;

    static DEVICE bool in_fours(const PieceCopy &c) {
        const auto bits = reinterpret_cast<uintptr_t>(c.in) | reinterpret_cast<uintptr_t>(c.out);
        const int64_t floats = c.in_stride | c.out_stride | c.in_piece | c.out_piece | c.width;
        return bits % 16 == 0 && floats % 4 == 0;
    }

    // Copies floats [128 unit, 128 unit + 128) of the slices; the last run of a slice may be shorter.
    static DEVICE void copy(const PieceCopy &c, uint32_t unit) {
        const auto chunks = static_cast<uint32_t>((c.width + kCopyFloats - 1) / kCopyFloats);
        const uint32_t piece = unit / chunks, token = piece / static_cast<uint32_t>(c.count);
        const int64_t index = piece - token * static_cast<uint32_t>(c.count);
        const auto first = static_cast<int32_t>(unit - piece * chunks) * kCopyFloats;
        const int32_t left = c.width - first < kCopyFloats ? c.width - first : kCopyFloats;
        const float *in = c.in + token * c.in_stride + index * c.in_piece + first;
        float *out = c.out + token * c.out_stride + index * c.out_piece + first;
        if (in_fours(c)) {
            if (4 * lane_index() < left) st128(out + 4 * lane_index(), ld128(in + 4 * lane_index()));
            return;
        }
#pragma unroll
        for (int i = 0; i < kCopyFloats; i += 32)
            if (i + lane_index() < left) out[i + lane_index()] = in[i + lane_index()];
    }

    static DEVICE void run(const Params &p) {
        grid_dep_wait();
        grid_dep_trigger();
        const int64_t step = int64_t{block_count()} * (kThreads / 32);
        int64_t unit = int64_t{block_index()} * (kThreads / 32) + warp_index();
        for (int i = 0; i < p.copies; ++i) {
            const int64_t units = copy_units(p.copy[i], p.tokens);
            for (; unit < units; unit += step) copy(p.copy[i], static_cast<uint32_t>(unit));
            unit -= units;  // index within the next copy
        }
    }
};

struct MixStreams {
    using Params = MixParams;
    static constexpr const char *kName = "mix";
    static constexpr int kThreads = 256, kBlocks = 4;

    static DEVICE void run(const Params &p) {
        grid_dep_wait();
        grid_dep_trigger();
        const int64_t slices = int64_t{p.tokens} * p.outputs, step = int64_t{block_count()} * block_threads();
        for (int64_t n = int64_t{block_index()} * block_threads() + thread_index(); n < slices * p.width;
             n += step) {
            const int64_t slice = n / p.width, col = n % p.width, token = slice / p.outputs;
            const auto j = static_cast<int32_t>(slice % p.outputs);
            const float *c =
                p.coefficients ? p.coefficients + token * p.coefficients_stride + j * p.inputs : nullptr;
            float sum = 0;
            for (int32_t i = 0; i < p.inputs; ++i)
                sum += (c ? c[i] : 1.0f) * p.in[i].first[token * p.in[i].stride + col];
            p.out[j].first[token * p.out[j].stride + col] = p.scale * sum;
        }
    }
};

struct Interpolate {
    using Params = LerpParams;
    static constexpr const char *kName = "interpolate";
    static constexpr int kThreads = 256, kBlocks = 4;

    static DEVICE void run(const Params &p) {
        grid_dep_wait();
        grid_dep_trigger();
        const int64_t all = int64_t{p.tokens} * p.width, step = int64_t{block_count()} * block_threads();
        for (int64_t n = int64_t{block_index()} * block_threads() + thread_index(); n < all; n += step) {
            const int64_t token = n / p.width, col = n % p.width;
            const float from = p.from ? p.from[token * p.from_stride + col] : 0.0f;
            const float to = p.to ? p.to[token * p.to_stride + col] : 0.0f;
            for (int32_t i = 0; i < p.outputs; ++i) {
                const int64_t at = i * int64_t{p.width} + col;
                float c = p.weight ? p.weight[at] : 0.0f;
                if (p.coefficients) c = c + p.coefficients[token * p.coefficients_stride + at];
                p.output[i].out[token * p.output[i].stride + col] = fma_rn(c, to - from, from);
            }
        }
    }
};

struct Softcap {
    using Params = SoftcapParams;
    static constexpr const char *kName = "softcap";
    static constexpr int kThreads = 256, kBlocks = 4;

    static DEVICE void run(const Params &p) {
        grid_dep_wait();
        grid_dep_trigger();
        const int64_t step = int64_t{block_count()} * block_threads();
        for (int64_t i = int64_t{block_index()} * block_threads() + thread_index(); i < p.count; i += step)
            p.x[i] = p.cap * tanh_p(p.x[i] / p.cap);
    }
};

}  // namespace

Kernel<ActivateParams> activate_kernel() {
    return kernel_of<Activate>();
}

Kernel<CopyParams> copy_pieces_kernel() {
    return kernel_of<CopyPieces>();
}
int64_t copy_pieces_blocks(const CopyParams &params) {
    int64_t units = 0;
    for (int i = 0; i < params.copies; ++i) units += copy_units(params.copy[i], params.tokens);
    return (units + CopyPieces::kThreads / 32 - 1) / (CopyPieces::kThreads / 32);
}

Kernel<MixParams> mix_kernel() {
    return kernel_of<MixStreams>();
}

Kernel<LerpParams> lerp_kernel() {
    return kernel_of<Interpolate>();
}

Kernel<SoftcapParams> softcap_kernel() {
    return kernel_of<Softcap>();
}

}  // namespace runnel::kernels::cuda
