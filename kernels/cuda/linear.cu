// y = W x for up to 16 tokens at a time: the instances of linear_body.h.
#include "kernels/cuda/linear.h"

#include "kernels/cuda/linear_body.h"

namespace runnel::kernels::cuda {

namespace {

Kernel<LinearParams> kernel_for(TileFormat format, int tokens, bool grouped) {
    switch (format) {
        case TileFormat::F32:
            return for_format<TileFormat::F32>(tokens, grouped);
        case TileFormat::F16:
            return for_format<TileFormat::F16>(tokens, grouped);
        case TileFormat::BF16:
            return for_format<TileFormat::BF16>(tokens, grouped);
        case TileFormat::Q4_0:
            return for_format<TileFormat::Q4_0>(tokens, grouped);
        case TileFormat::Q4_1:
            return for_format<TileFormat::Q4_1>(tokens, grouped);
        case TileFormat::Q5_0:
            return for_format<TileFormat::Q5_0>(tokens, grouped);
        case TileFormat::Q5_1:
            return for_format<TileFormat::Q5_1>(tokens, grouped);
        case TileFormat::Q8_0:
            return for_format<TileFormat::Q8_0>(tokens, grouped);
        case TileFormat::IQ4_NL:
            return for_format<TileFormat::IQ4_NL>(tokens, grouped);
        case TileFormat::MXFP4:
            return for_format<TileFormat::MXFP4>(tokens, grouped);
        case TileFormat::Q2_K:
            return for_format<TileFormat::Q2_K>(tokens, grouped);
        case TileFormat::Q3_K:
            return for_format<TileFormat::Q3_K>(tokens, grouped);
        case TileFormat::Q4_K:
            return for_format<TileFormat::Q4_K>(tokens, grouped);
        case TileFormat::Q5_K:
            return for_format<TileFormat::Q5_K>(tokens, grouped);
        case TileFormat::Q6_K:
            return for_format<TileFormat::Q6_K>(tokens, grouped);
        case TileFormat::IQ4_XS:
            return for_format<TileFormat::IQ4_XS>(tokens, grouped);
        default:
            return linear_codebooks_kernel(format, tokens, grouped);
    }
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
    const int64_t teams = kWarps / warps_per_tile(col_blocks(params.cols));
    int64_t tiles = row_tiles(params.matrix[0].rows);
    for (int i = 1; params.gate == LinearGate::None && i < params.matrices; ++i)
        tiles += row_tiles(params.matrix[i].rows);
    return (tiles * groups + teams - 1) / teams;
}

}  // namespace runnel::kernels::cuda
