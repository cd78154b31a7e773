// The architectures that nvcc compiled for.
#include "kernels/cuda/runtime/device_code.h"

namespace runnel::kernels::cuda {

#ifdef __CUDACC__
static constexpr int kCompiled[] = {__CUDA_ARCH_LIST__};  // 800, 900
#endif

std::span<const int> compiled_architectures() {
#ifdef __CUDACC__
    static constexpr auto kTens = [] {
        struct {
            int all[std::size(kCompiled)];
        } tens{};
        for (size_t i = 0; i < std::size(kCompiled); ++i) tens.all[i] = kCompiled[i] / 10;
        return tens;
    }();
    return kTens.all;
#else
    return {};
#endif
}

}  // namespace runnel::kernels::cuda
