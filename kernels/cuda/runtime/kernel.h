// A kernel that host code can launch.
//
// A kernel is a struct ("body") in a .cu file:
//
//   struct Embed {
//       using Params = EmbedParams;                   // trivially copyable, at most 4 KB, passed by value
//       static constexpr const char *kName = "embed";
//       static constexpr int kThreads = 256;          // of a block
//       static constexpr int kBlocks = 2;             // that should fit on one multiprocessor
//       static DEVICE void run(const Params &params);
//   };
//
// and the .cu file returns its handle: `Kernel<EmbedParams> embed_kernel() { return kernel_of<Embed>(); }`.
// The same line makes a __global__ function under nvcc and an emulated kernel under g++.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace runnel::kernels::cuda {

struct KernelHandle {
    const char *name;
    int threads;        // of a block
    const void *entry;  // what the runtime launches
};

template <class Params>
struct Kernel {
    KernelHandle handle;
};

// Shared memory of a block. On sm_75, which has 64 KB, kernels that need more run in a smaller version
// (run_for_device() in device.h).
struct SharedBytes {
    size_t usual = 0, turing = 0;
    constexpr SharedBytes() = default;
    constexpr SharedBytes(size_t everywhere) : usual(everywhere), turing(everywhere) {}
    constexpr SharedBytes(size_t elsewhere, size_t on_turing) : usual(elsewhere), turing(on_turing) {}
    constexpr size_t on(bool is_turing) const { return is_turing ? turing : usual; }
};

#ifdef __CUDACC__

template <class Body>
__global__ void __launch_bounds__(Body::kThreads, Body::kBlocks)
    entry(const __grid_constant__ typename Body::Params params) {
    Body::run(params);
}

#else

template <class Body>
void entry(const void *params) {
    Body::run(*static_cast<const typename Body::Params *>(params));
}

#endif

template <class Body>
Kernel<typename Body::Params> kernel_of() {
    static_assert(std::is_trivially_copyable_v<typename Body::Params> &&
                  sizeof(typename Body::Params) <= 4096);
    static_assert(Body::kThreads % 32 == 0);
    return {{Body::kName, Body::kThreads, reinterpret_cast<const void *>(&entry<Body>)}};
}

}  // namespace runnel::kernels::cuda
