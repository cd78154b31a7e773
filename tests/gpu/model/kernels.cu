// The matrix kernels whose instructions the cost model counts (scripts/predict); nvcc compiles them in seconds.
#include "kernels/cuda/linear/linear_body.h"

namespace runnel::kernels::cuda {

namespace {

template <TileFormat F>
Kernel<LinearParams> modeled(LinearVersion v) {
    if (v.tokens > kGroupTokens)
        return v.staged ? kernel_of<Linear<F, 2, false, true>>() : kernel_of<Linear<F, 2, false, false>>();
    if (v.grouped)
        return v.staged ? kernel_of<Linear<F, 1, true, true>>() : kernel_of<Linear<F, 1, true, false>>();
    return v.staged ? kernel_of<Linear<F, 1, false, true>>() : kernel_of<Linear<F, 1, false, false>>();
}

}  // namespace

Kernel<LinearParams> modeled_linear(TileFormat format, LinearVersion version) {
    switch (format) {
        case TileFormat::F16:
            return modeled<TileFormat::F16>(version);
        case TileFormat::Q8_0:
            return modeled<TileFormat::Q8_0>(version);
        case TileFormat::Q5_K:
            return modeled<TileFormat::Q5_K>(version);
        case TileFormat::Q6_K:
            return modeled<TileFormat::Q6_K>(version);
        default:
            return modeled<TileFormat::Q4_K>(version);
    }
}

}  // namespace runnel::kernels::cuda
