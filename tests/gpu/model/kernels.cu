// The matrix kernels whose instructions the cost model counts (scripts/predict); nvcc compiles them in seconds.
#include "kernels/cuda/linear/linear_body.h"

namespace runnel::kernels::cuda {

namespace {

template <TileFormat F>
Kernel<LinearParams> modeled(int tokens, bool grouped) {
    if (grouped) return kernel_of<Linear<F, 1, true>>();
    if constexpr (!is_half(F) && !has_group_floats(F))
        if (tokens > kGroupTokens) return kernel_of<Linear<F, 2, false>>();
    return kernel_of<Linear<F, 1, false>>();
}

}  // namespace

Kernel<LinearParams> modeled_linear(TileFormat format, int tokens, bool grouped) {
    switch (format) {
        case TileFormat::F16:
            return modeled<TileFormat::F16>(tokens, grouped);
        case TileFormat::Q8_0:
            return modeled<TileFormat::Q8_0>(tokens, grouped);
        case TileFormat::Q5_K:
            return modeled<TileFormat::Q5_K>(tokens, grouped);
        case TileFormat::Q6_K:
            return modeled<TileFormat::Q6_K>(tokens, grouped);
        default:
            return modeled<TileFormat::Q4_K>(tokens, grouped);
    }
}

}  // namespace runnel::kernels::cuda
