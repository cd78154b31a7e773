// y = W x for many tokens: the instances of linear_prefill_body.h for the formats with codebooks, and NVFP4.
#include "kernels/cuda/linear/linear_prefill.h"
#include "kernels/cuda/linear/linear_prefill_body.h"

namespace runnel::kernels::cuda {

Kernel<PrefillParams> linear_prefill_codebooks_kernel(TileFormat format) {
    return with_format(format, [&](auto f) -> Kernel<PrefillParams> {
        constexpr TileFormat kFormat = decltype(f)::value;
        if constexpr (is_apart(kFormat))
            return kernel_of<LinearPrefill<kFormat>>();
        else
            return {};
    });
}

}  // namespace runnel::kernels::cuda
