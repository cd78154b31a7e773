// y = W x for many tokens: the instances of linear_prefill_body.h for the formats with codebooks, and NVFP4.
#include "kernels/cuda/linear_prefill.h"
#include "kernels/cuda/linear_prefill_body.h"

namespace runnel::kernels::cuda {

namespace {

// visit(OfClass of the format).
template <class Visitor>
auto for_class(TileFormat format, const Visitor &visit) {
    if (!has_codebook(format)) return visit(OfClass<prefill_class(TileFormat::NVFP4)>());
    return has_groups_of_16(format) ? visit(OfClass<prefill_class(TileFormat::IQ2_S)>())
                                    : visit(OfClass<prefill_class(TileFormat::IQ3_S)>());
}

}  // namespace

Kernel<PrefillParams> linear_prefill_codebooks_kernel(TileFormat format) {
    return for_class(format, [](auto c) { return kernel_of<LinearPrefill<decltype(c)::value>>(); });
}

SharedBytes linear_prefill_codebooks_shared(TileFormat format) {
    return for_class(format, [](auto c) { return LinearPrefill<decltype(c)::value>::kShared; });
}

}  // namespace runnel::kernels::cuda
