// y = W x for up to 16 tokens at a time: the instances of linear_body.h.
#include "kernels/cuda/linear/linear.h"

#include "kernels/cuda/linear/linear_body.h"

namespace runnel::kernels::cuda {

namespace {

Kernel<LinearParams> kernel_for(TileFormat format, int tokens, bool grouped) {
    return with_format(format, [&](auto f) {
        constexpr TileFormat kFormat = decltype(f)::value;
        if constexpr (is_apart(kFormat))
            return linear_codebooks_kernel(kFormat, tokens, grouped);
        else
            return for_format<kFormat>(tokens, grouped);
    });
}

}  // namespace

Kernel<LinearParams> linear_kernel(TileFormat format, int tokens) {
    return kernel_for(format, tokens, false);
}
Kernel<LinearParams> linear_groups_kernel(TileFormat format, int tokens) {
    return kernel_for(format, tokens, true);
}

size_t linear_shared(TileFormat format, int tokens) {
    const size_t book = sizeof(uint32_t) * static_cast<size_t>(book_words(format));
    if (tokens <= kGroupTokens) return sizeof(LinearShared<1>) + book;
    if (tokens <= 2 * kGroupTokens) return sizeof(LinearShared<2>) + book;
    return sizeof(LinearShared<4>) + book;
}

int64_t linear_blocks(const LinearParams &params, int64_t groups) {
    const int64_t teams = kWarps / column_ranges(params.range_blocks);
    int64_t tiles = row_tiles(params.matrix[0].rows);
    for (int i = 1; params.gate == LinearGate::None && i < params.matrices; ++i)
        tiles += row_tiles(params.matrix[i].rows);
    return (tiles * groups + teams - 1) / teams;
}

}  // namespace runnel::kernels::cuda
