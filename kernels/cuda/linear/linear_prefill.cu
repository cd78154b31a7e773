// y = W x for many tokens: the instances of linear_prefill_body.h.
#include "kernels/cuda/linear/linear_prefill.h"

#include "kernels/cuda/linear/linear_prefill_body.h"

namespace runnel::kernels::cuda {

Kernel<PrefillParams> linear_prefill_kernel(TileFormat format) {
    return with_format(format, [&](auto f) -> Kernel<PrefillParams> {
        constexpr TileFormat kFormat = decltype(f)::value;
        if constexpr (is_float(kFormat))
            return linear_prefill_floats_kernel();
        else if constexpr (is_half(kFormat))
            return linear_prefill_halves_kernel(kFormat);
        else if constexpr (is_apart(kFormat))
            return linear_prefill_codebooks_kernel(kFormat);
        else
            return kernel_of<LinearPrefill<kFormat>>();
    });
}

SharedBytes linear_prefill_shared(TileFormat format) {
    return with_format(format, [&](auto f) -> SharedBytes {
        constexpr TileFormat kFormat = decltype(f)::value;
        if constexpr (is_float(kFormat))
            return 0;
        else if constexpr (is_half(kFormat))
            return linear_prefill_halves_shared();
        else
            return LinearPrefill<kFormat>::kShared;
    });
}

int64_t linear_prefill_blocks(const LinearParams &params, TileFormat format, int64_t groups) {
    const bool gate = params.gate != LinearGate::None;
    int64_t tiles = row_tiles(params.matrix[0].rows);
    for (int i = 1; !gate && i < params.matrices; ++i) tiles += row_tiles(params.matrix[i].rows);
    const int64_t slots = is_float(format)  ? kPrefillFloatTiles
                          : is_half(format) ? kPrefillHalfTiles
                                            : kPrefillTiles,
                  each = gate ? slots / 2 : slots;
    return (tiles + each - 1) / each * groups;
}

}  // namespace runnel::kernels::cuda
