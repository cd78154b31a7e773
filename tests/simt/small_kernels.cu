#include "tests/simt/small_kernels.h"

#include "kernels/cuda/runtime/device.h"

namespace runnel::simt {

using namespace kernels::cuda;

namespace {

struct Arena {
    float values[kSmallThreads];
    uint4 staged[kSmallThreads];
    uint32_t flag;
};
static_assert(sizeof(Arena) <= kSmallShared);

struct Common {
    using Params = SmallParams;
    static constexpr int kThreads = kSmallThreads, kBlocks = 1;
};

DEVICE int global_index() {
    return block_index() * block_threads() + thread_index();
}

// --- correct kernels -----------------------------------------------------------------------------------------

DEVICE float sum_of_block(float mine, float *partial) {
    mine = warp_sum(mine);
    if (lane_index() == 0) partial[warp_index()] = mine;
    block_sync();
    return partial[0] + partial[1];
}

struct BlockSum : Common {
    static constexpr const char *kName = "block sum";
    static DEVICE void run(const Params &p) {
        const int i = global_index();
        p.out[i] = sum_of_block(p.in[i], shared_memory<Arena>().values);
    }
};

struct LastBlockSum : Common {
    static constexpr const char *kName = "last block sum";
    static DEVICE void run(const Params &p) {
        auto &arena = shared_memory<Arena>();
        const float sum = sum_of_block(p.in[global_index()], arena.values);
        block_sync();
        if (thread_index() == 0) {
            p.in[block_index() * block_threads()] = sum;
            fence_gpu();
            arena.flag = atomic_inc_wrap_u32(p.counter, static_cast<uint32_t>(block_count() - 1));
            fence_gpu();
        }
        block_sync();
        if (arena.flag != static_cast<uint32_t>(block_count() - 1) || thread_index() != 33) return;
        float total = 0;
        for (int b = 0; b < block_count(); ++b) total += p.in[b * block_threads()];
        p.out[0] = total;
    }
};

struct Staged : Common {
    static constexpr const char *kName = "staged";
    static DEVICE void run(const Params &p) {
        auto &arena = shared_memory<Arena>();
        const int t = thread_index(), other = t ^ 1;
        cp_async16(&arena.staged[t], static_cast<const uint4 *>(p.weights) + t);
        cp_async_commit();
        if (t < 16) cp_async16(&arena.values[4 * t], p.weights, false);
        cp_async_commit();
        cp_async_wait<1>();
        warp_sync();
        const float weight = bits_float(arena.staged[other].x);
        cp_async_wait<0>();
        grid_dep_wait();
        p.out[global_index()] = weight + p.in[global_index()] + (t < 16 ? arena.values[4 * t] : 0.0f);
    }
};

struct WriteWeights : Common {
    static constexpr const char *kName = "write weights";
    static DEVICE void run(const Params &p) {
        grid_dep_wait();
        if (block_index() != 0) return;
        auto *weights = static_cast<float *>(const_cast<void *>(p.weights));
        for (int i = 0; i < 4; ++i) weights[4 * thread_index() + i] = -1;
    }
};

// --- wrong kernels -------------------------------------------------------------------------------------------

struct MissingBarrier : Common {
    static constexpr const char *kName = "missing barrier";
    static DEVICE void run(const Params &p) {
        auto &arena = shared_memory<Arena>();
        arena.values[thread_index()] = p.in[global_index()];
        p.out[global_index()] = arena.values[thread_index() ^ 32];
    }
};

struct MissingWarpSync : Common {
    static constexpr const char *kName = "missing warp sync";
    static DEVICE void run(const Params &p) {
        auto &arena = shared_memory<Arena>();
        arena.values[thread_index()] = 0;
        warp_sync();
        arena.values[thread_index()] = p.in[global_index()];
        p.out[global_index()] = arena.values[thread_index() ^ 1];
    }
};

struct WriteAfterRead : Common {
    static constexpr const char *kName = "write after read";
    static DEVICE void run(const Params &p) {
        auto &arena = shared_memory<Arena>();
        arena.values[thread_index()] = p.in[global_index()];
        block_sync();
        const float first = arena.values[0];
        if (thread_index() == 0) arena.values[0] = 2;  // others may not have read it yet
        p.out[global_index()] = first;
    }
};

struct SameTarget : Common {
    static constexpr const char *kName = "same target";
    static DEVICE void run(const Params &p) { p.out[thread_index()] = static_cast<float>(block_index()); }
};

struct NoFence : Common {
    static constexpr const char *kName = "no fence";
    static DEVICE void run(const Params &p) {
        if (thread_index() != 0) return;
        p.in[block_index()] = 1;
        if (atomic_add_u32(p.counter, 1) + 1 != static_cast<uint32_t>(block_count())) return;
        float total = 0;
        for (int b = 0; b < block_count(); ++b) total += p.in[b];
        p.out[0] = total;
    }
};

// A sum of the blocks' parts by the last of them, with only one of the two fences that it needs.
template <bool kReleases, bool kAcquires>
struct HalfFenced : Common {
    static constexpr const char *kName = kReleases ? "no acquire" : "no release";
    static DEVICE void run(const Params &p) {
        if (thread_index() != 0) return;
        p.in[block_index()] = 1;
        if (kReleases) fence_gpu();
        if (atomic_add_u32(p.counter, 1) + 1 != static_cast<uint32_t>(block_count())) return;
        if (kAcquires) fence_gpu();
        float total = 0;
        for (int b = 0; b < block_count(); ++b) total += p.in[b];
        p.out[0] = total;
    }
};

struct SharedBeyond : Common {
    static constexpr const char *kName = "shared beyond";
    static DEVICE void run(const Params &p) {
        float *values = shared_memory<Arena>().values;  // a pointer, so that no sanitizer sees the error
        values[thread_index() + p.n * kSmallShared] = 1;
    }
};

struct SharedTooLarge : Common {
    struct Large {
        float values[kSmallShared];
    };
    static constexpr const char *kName = "shared too large";
    static DEVICE void run(const Params &) { shared_memory<Large>().values[0] = 1; }
};

struct GlobalBeyond : Common {
    static constexpr const char *kName = "global beyond";
    static DEVICE void run(const Params &p) { p.out[global_index() + 1] = 1; }
};

struct WildPointer : Common {
    static constexpr const char *kName = "wild pointer";
    static DEVICE void run(const Params &p) {
        p.out[0] = *reinterpret_cast<const float *>(reinterpret_cast<uintptr_t>(p.in) ^ uintptr_t{1} << 45);
    }
};

struct SharedUnwritten : Common {
    static constexpr const char *kName = "shared unwritten";
    static DEVICE void run(const Params &p) {
        p.out[global_index()] = shared_memory<Arena>().values[thread_index()];
    }
};

struct GlobalUnwritten : Common {
    static constexpr const char *kName = "global unwritten";
    static DEVICE void run(const Params &p) { p.in[global_index()] = p.out[global_index()]; }
};

struct DivergentShuffle : Common {
    static constexpr const char *kName = "divergent shuffle";
    static DEVICE void run(const Params &p) {
        float v = p.in[global_index()];
        if (lane_index() < 16) v = shfl_xor(v, 1);
        p.out[global_index()] = v;
    }
};

struct TwoPlaces : Common {
    static constexpr const char *kName = "two places";
    static DEVICE void run(const Params &p) {
        float v = p.in[global_index()];
        if (lane_index() < 16)
            v = shfl_xor(v, 1);
        else
            v = shfl_xor(v, 2);
        p.out[global_index()] = v;
    }
};

struct EarlyReturn : Common {
    static constexpr const char *kName = "early return";
    static DEVICE void run(const Params &) {
        if (warp_index() == 1) return;
        block_sync();
    }
};

struct BarrierPlaces : Common {
    static constexpr const char *kName = "barrier places";
    static DEVICE void run(const Params &) {
        if (warp_index() == 1)
            block_sync();
        else
            block_sync();
    }
};

struct NoAsyncWait : Common {
    static constexpr const char *kName = "no async wait";
    static DEVICE void run(const Params &p) {
        auto &arena = shared_memory<Arena>();
        const int t = thread_index();
        cp_async16(&arena.staged[t], static_cast<const uint4 *>(p.weights) + t);
        cp_async_commit();
        cp_async_wait<1>();
        p.out[global_index()] = bits_float(arena.staged[t].x);
        cp_async_wait<0>();
    }
};

struct AsyncNoBarrier : Common {
    static constexpr const char *kName = "async no barrier";
    static DEVICE void run(const Params &p) {
        auto &arena = shared_memory<Arena>();
        const int t = thread_index();
        cp_async16(&arena.staged[t], static_cast<const uint4 *>(p.weights) + t);
        cp_async_commit();
        cp_async_wait<0>();
        warp_sync();
        p.out[global_index()] = bits_float(arena.staged[t ^ 32].x);
    }
};

struct AsyncLeft : Common {
    static constexpr const char *kName = "async left";
    static DEVICE void run(const Params &p) {
        cp_async16(&shared_memory<Arena>().staged[thread_index()], p.weights);
    }
};

struct EarlyRead : Common {
    static constexpr const char *kName = "early read";
    static DEVICE void run(const Params &p) {
        const float v = p.in[global_index()];
        grid_dep_wait();
        p.out[global_index()] = v;
    }
};

struct EarlyWrite : Common {
    static constexpr const char *kName = "early write";
    static DEVICE void run(const Params &p) {
        p.out[global_index()] = 0;
        grid_dep_wait();
    }
};

struct EarlyTrigger : Common {
    static constexpr const char *kName = "early trigger";
    static DEVICE void run(const Params &) {
        grid_dep_trigger();
        grid_dep_wait();
    }
};

struct NeverWaits : Common {
    static constexpr const char *kName = "never waits";
    static DEVICE void run(const Params &) {}
};

struct StreamedData : Common {
    static constexpr const char *kName = "streamed data";
    static DEVICE void run(const Params &p) { p.out[global_index()] = bits_float(ldg32_stream(p.in)); }
};

struct StreamedThenWritten : Common {
    static constexpr const char *kName = "streamed then written";
    static DEVICE void run(const Params &p) {
        auto *own = static_cast<uint32_t *>(const_cast<void *>(p.weights)) + thread_index();
        const uint32_t before = ldg32_stream(own);
        if (block_index() == 0) *own = before + 1;
    }
};

struct WrittenThenStreamed : Common {
    static constexpr const char *kName = "written then streamed";
    static DEVICE void run(const Params &p) {
        auto *own = static_cast<uint32_t *>(const_cast<void *>(p.weights)) + thread_index();
        if (block_index() != 0) return;
        *own = 1;
        p.out[thread_index()] = bits_float(ldg32_stream(own));
    }
};

struct Misaligned : Common {
    static constexpr const char *kName = "misaligned";
    static DEVICE void run(const Params &p) {
        p.out[0] = bits_float(ldg128_stream(static_cast<const char *>(p.weights) + 4).x);
    }
};

// (Excluded from UndefinedBehaviorSanitizer: the emulator must find this error.)
struct MisalignedPlain : Common {
    static constexpr const char *kName = "misaligned plain";
    [[gnu::no_sanitize("undefined")]] static DEVICE void run(const Params &p) {
        auto *wide = reinterpret_cast<uint64_t *>(p.out + 1);
        *wide = static_cast<uint64_t>(thread_index());
    }
};

struct MatrixRow : Common {
    static constexpr const char *kName = "matrix row";
    static DEVICE void run(const Params &p) {
        auto &arena = shared_memory<Arena>();
        st128(&arena.staged[thread_index()], uint4{1, 2, 3, 4});
        block_sync();
        uint32_t r[4];
        ldmatrix_x4(r, reinterpret_cast<const char *>(&arena.staged[lane_index()]) + 8);
        p.out[global_index()] = bits_float(r[0]);
    }
};

struct Products {
    using Params = ProductParams;
    static constexpr const char *kName = "products";
    static constexpr int kThreads = 32, kBlocks = 1;
    template <class T, class Multiply>
    static DEVICE void add(T *to, Multiply multiply) {
        T c[4];
        for (int i = 0; i < 4; ++i) c[i] = to[4 * lane_index() + i];
        multiply(c);
        for (int i = 0; i < 4; ++i) to[4 * lane_index() + i] = c[i];
    }
    static DEVICE void run(const Params &p) {
        uint32_t a[4], b[2];
        for (int i = 0; i < 4; ++i) a[i] = p.a[4 * lane_index() + i];
        for (int i = 0; i < 2; ++i) b[i] = p.b[2 * lane_index() + i];
        add(p.f16_k8, [&](float(&c)[4]) { mma_f16_k8(c, {a[0], a[1]}, b[0]); });
        add(p.f16_k16, [&](float(&c)[4]) { mma_f16_k16(c, a, b); });
        add(p.bf16_k16, [&](float(&c)[4]) { mma_bf16_k16(c, a, b); });
        add(p.s8_k16, [&](int32_t(&c)[4]) { mma_s8_k16(c, {a[0], a[1]}, b[0]); });
        add(p.s8_k32, [&](int32_t(&c)[4]) { mma_s8_k32(c, a, b); });
        add(p.u8_k32, [&](int32_t(&c)[4]) { mma_u8_k32(c, a, b); });
    }
};

template <class Body>
WrongKernel wrong(const char *message, bool dependent = false) {
    return {kernel_of<Body>(), dependent, message};
}

}  // namespace

std::vector<WrongKernel> wrong_kernels() {
    return {
        wrong<MissingBarrier>("which was never written|race: write and read|race: read and write"),
        wrong<MissingWarpSync>("race: "),
        wrong<WriteAfterRead>("race: "),
        wrong<SameTarget>("race: write and write"),
        wrong<NoFence>("race: write and read"),
        wrong<HalfFenced<false, true>>("race: write and read"),
        wrong<HalfFenced<true, false>>("race: write and read"),
        wrong<SharedBeyond>("of shared memory, of which the launch has"),
        wrong<SharedTooLarge>("bytes of shared memory, the launch gives"),
        wrong<GlobalBeyond>("out of bounds"),
        wrong<WildPointer>("which is not device memory"),
        wrong<SharedUnwritten>("which was never written"),
        wrong<GlobalUnwritten>("which was never written"),
        wrong<DivergentShuffle>("diverged"),
        wrong<TwoPlaces>("diverged"),
        wrong<EarlyReturn>("never reached"),
        wrong<BarrierPlaces>("different places"),
        wrong<NoAsyncWait>("cp_async_wait is missing"),
        wrong<AsyncNoBarrier>("was never written|race: |cp_async_wait is missing"),
        wrong<AsyncLeft>("without waiting for its cp_async16"),
        wrong<EarlyRead>("before grid_dep_wait", true),
        wrong<EarlyWrite>("before grid_dep_wait", true),
        wrong<NeverWaits>("without grid_dep_wait", true),
        wrong<EarlyTrigger>("grid_dep_trigger before grid_dep_wait", true),
        wrong<StreamedData>("which is not a weight"),
        wrong<StreamedThenWritten>("which this launch reads by ldg*_stream"),
        wrong<WrittenThenStreamed>("which this launch has written"),
        wrong<Misaligned>("not aligned"),
        wrong<MisalignedPlain>("not aligned"),
        wrong<MatrixRow>("not aligned"),
    };
}

SmallKernel block_sum_kernel() {
    return kernel_of<BlockSum>();
}
SmallKernel last_block_sum_kernel() {
    return kernel_of<LastBlockSum>();
}
SmallKernel staged_kernel() {
    return kernel_of<Staged>();
}

SmallKernel write_weights_kernel() {
    return kernel_of<WriteWeights>();
}

kernels::cuda::Kernel<ProductParams> products_kernel() {
    return kernel_of<Products>();
}

}  // namespace runnel::simt
