// y = W x for up to 16 tokens at a time: the instances of linear_body.h for the formats
// with codebooks, and NVFP4.
//
// A register of operand A is one load from the codebook in shared memory and 3-5 bit operations; 32 lanes
// load 32 random entries, which takes about 3.5 clocks of shared memory on average: 14 per 512 weights.
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/linear_body.h"

namespace runnel::kernels::cuda {

Kernel<LinearParams> linear_codebooks_kernel(TileFormat format, LinearVersion version) {
    return with_format(format, [&](auto f) -> Kernel<LinearParams> {
        constexpr TileFormat kFormat = decltype(f)::value;
        if constexpr (is_apart(kFormat))
            return for_format<kFormat>(version);
        else
            return {};
    });
}

}  // namespace runnel::kernels::cuda
