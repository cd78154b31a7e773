#include "tests/gpu/device/doubt_kernels.h"

#include "kernels/cuda/runtime/device.h"

namespace runnel::tests::device {

using namespace kernels::cuda;

namespace {

struct Read {
    using Params = ReadParams;
    static constexpr const char *kName = "read";
    static constexpr int kThreads = kDoubtThreads, kBlocks = 4;

    static DEVICE void run(const Params &p) {
        constexpr int kLoads = 8;
        const auto *data = static_cast<const uint4 *>(p.data);
        const int64_t step = int64_t{block_count()} * kThreads * kLoads;
        uint32_t sum = 0;
        for (int64_t first = int64_t{block_index()} * kThreads * kLoads; first < p.quads; first += step) {
            uint4 v[kLoads];
#pragma unroll
            for (int i = 0; i < kLoads; ++i)
                v[i] = ldg128_stream(data + first + i * kThreads + thread_index());
#pragma unroll
            for (int i = 0; i < kLoads; ++i) sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
        }
        grid_dep_wait();
        if (sum == 0x12345678u) *p.out = sum;  // so that the compiler keeps the loads
    }
};

struct Beside {
    using Params = BesideParams;
    static constexpr const char *kName = "beside";
    static constexpr int kThreads = kDoubtThreads, kBlocks = 2;
    struct Shared {
        uint32_t table[kTableNumbers];
    };

    static DEVICE void run(const Params &p) {
        constexpr int kLoads = 4;
        auto &shared = shared_memory<Shared>();
        grid_dep_wait();
        for (int i = thread_index(); i < kTableNumbers; i += kThreads) shared.table[i] = p.table[i];
        block_sync();
        const auto *data = static_cast<const uint4 *>(p.data);
        const int64_t step = int64_t{block_count()} * kThreads * kLoads;
        int64_t first = int64_t{block_index()} * kThreads * kLoads + thread_index();
        uint4 next[kLoads] = {};
        const auto load = [&] {
#pragma unroll
            for (int i = 0; i < kLoads; ++i)
                if (first < p.quads) next[i] = ldg128_stream(data + first + i * kThreads);
            first += step;
        };
        load();
        uint32_t sum = 0, at = static_cast<uint32_t>(thread_index());
        for (int64_t done = int64_t{block_index()} * kThreads * kLoads; done < p.quads; done += step) {
#pragma unroll
            for (int i = 0; i < kLoads; ++i) sum ^= next[i].x ^ next[i].y ^ next[i].z ^ next[i].w;
            load();
#pragma unroll 1
            for (int i = 0; i < p.reads; ++i) at = p.from_shared ? shared.table[at] : p.table[at];
            sum += at;
        }
        if (sum == 0x12345678u) *p.out = sum;  // so that the compiler keeps the loads
    }
};

template <bool kLarge, bool kApart>
struct Step {
    using Params = StepParams;
    static constexpr const char *kName = kLarge ? "large step" : "small step";
    static constexpr int kThreads = kDoubtThreads, kBlocks = 1;

    static DEVICE void run(const Params &p) {
        const int i = block_index() * kThreads + thread_index();
        const uint4 weight = ldg128_stream(static_cast<const uint4 *>(p.weights) + i);
        grid_dep_wait();
        if (!p.late_trigger) grid_dep_trigger();
        uint32_t value = p.in[i] + 1 + weight.x;
        if (block_index() == 0)
            for (int spin = 0; spin < p.spins; ++spin) value = value * p.minus_one;
        p.out[i] = value;
        if (p.late_trigger) grid_dep_trigger();
    }
};

struct Barrier {
    using Params = BarrierParams;
    static constexpr const char *kName = "barrier";
    static constexpr int kThreads = kDoubtThreads, kBlocks = 1;

    static DEVICE void run(const Params &p) {
        for (int round = 1; round <= p.rounds; ++round) {
            block_sync();
            if (thread_index() == 0) {
                fence_gpu();
                const auto all = static_cast<uint32_t>(block_count() * round);
                atomic_add_u32(p.arrived, 1);
                while (atomic_add_u32(p.arrived, 0) < all) {
                }
                fence_gpu();
            }
            block_sync();
        }
    }
};

struct Alignment {
    using Params = AlignmentParams;
    static constexpr const char *kName = "alignment";
    static constexpr int kThreads = 32, kBlocks = 1;

    static DEVICE void run(const Params &p) {
        uint32_t a[4], b[2];
        float c[4] = {};
        for (int i = 0; i < 4; ++i) a[i] = p.a[4 * lane_index() + i];
        for (int i = 0; i < 2; ++i) b[i] = p.b[2 * lane_index() + i];
        mma_f16_k16(c, a, b);
        for (int i = 0; i < 4; ++i) p.c[4 * lane_index() + i] = c[i];
    }
};

}  // namespace

Kernel<ReadParams> read_kernel() {
    return kernel_of<Read>();
}
Kernel<BesideParams> beside_kernel() {
    return kernel_of<Beside>();
}
Kernel<StepParams> step_kernel(bool large, bool apart) {
    if (apart) return large ? kernel_of<Step<true, true>>() : kernel_of<Step<false, true>>();
    return large ? kernel_of<Step<true, false>>() : kernel_of<Step<false, false>>();
}
Kernel<BarrierParams> barrier_kernel() {
    return kernel_of<Barrier>();
}
Kernel<AlignmentParams> alignment_kernel() {
    return kernel_of<Alignment>();
}

}  // namespace runnel::tests::device
