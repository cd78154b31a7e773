// y = W x for up to 16 tokens at a time: the instances of linear_body.h for the formats with codebooks, and
// NVFP4.
//
// A register of operand A is one load from the book in shared memory and 3-5 bit operations; 32 lanes ask for
// 32 entries at random, which takes the shared memory some 3.5 clocks on average: 14 per 512 weights.
#include "kernels/cuda/linear.h"
#include "kernels/cuda/linear_body.h"

namespace runnel::kernels::cuda {

Kernel<LinearParams> linear_codebooks_kernel(TileFormat format, int tokens, bool grouped) {
    switch (format) {
        case TileFormat::NVFP4:
            return for_format<TileFormat::NVFP4>(tokens, grouped);
        case TileFormat::IQ1:
            return for_format<TileFormat::IQ1>(tokens, grouped);
        case TileFormat::IQ2_XXS:
            return for_format<TileFormat::IQ2_XXS>(tokens, grouped);
        case TileFormat::IQ2_XS:
            return for_format<TileFormat::IQ2_XS>(tokens, grouped);
        case TileFormat::IQ2_S:
            return for_format<TileFormat::IQ2_S>(tokens, grouped);
        case TileFormat::IQ3_XXS:
            return for_format<TileFormat::IQ3_XXS>(tokens, grouped);
        case TileFormat::IQ3_S:
            return for_format<TileFormat::IQ3_S>(tokens, grouped);
        default:
            return {};
    }
}

}  // namespace runnel::kernels::cuda
