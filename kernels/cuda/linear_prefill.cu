// y = W x for many tokens: the instances of linear_prefill_body.h.
#include "kernels/cuda/linear_prefill.h"

#include "kernels/cuda/linear_prefill_body.h"

namespace runnel::kernels::cuda {

namespace {

// visit(OfClass of the format).
template <class Visitor>
auto for_class(TileFormat format, const Visitor &visit) {
    const PrefillClass c = prefill_class(format);
    if (c.group_floats)
        return c.minimum ? visit(OfClass<PrefillClass{true, false, true, false}>())
                         : visit(OfClass<PrefillClass{true, false, false, false}>());
    if (c.groups_of_16)
        return c.minimum ? visit(OfClass<PrefillClass{false, true, true, false}>())
                         : visit(OfClass<PrefillClass{false, true, false, false}>());
    return c.minimum ? visit(OfClass<PrefillClass{false, false, true, false}>())
                     : visit(OfClass<PrefillClass{false, false, false, false}>());
}

}  // namespace

Kernel<PrefillParams> linear_prefill_kernel(TileFormat format) {
    if (is_float(format)) return linear_prefill_floats_kernel();
    if (is_half(format)) return linear_prefill_halves_kernel(format);
    if (is_apart(format)) return linear_prefill_codebooks_kernel(format);
    return for_class(format, [](auto c) { return kernel_of<LinearPrefill<decltype(c)::value>>(); });
}

SharedBytes linear_prefill_shared(TileFormat format) {
    if (is_float(format)) return 0;
    if (is_half(format)) return linear_prefill_halves_shared();
    if (is_apart(format)) return linear_prefill_codebooks_shared(format);
    return for_class(format, [](auto c) { return LinearPrefill<decltype(c)::value>::kShared; });
}

int64_t linear_prefill_blocks(const LinearParams &params, TileFormat format, int64_t groups) {
    const bool gate = params.gate != LinearGate::None;
    int64_t tiles = row_tiles(params.matrix[0].rows);
    for (int i = 1; !gate && i < params.matrices; ++i) tiles += row_tiles(params.matrix[i].rows);
    const int64_t slots = is_float(format) ? kPrefillFloatTiles : kPrefillTiles,
                  each = gate ? slots / 2 : slots;
    return (tiles + each - 1) / each * groups;
}

}  // namespace runnel::kernels::cuda
