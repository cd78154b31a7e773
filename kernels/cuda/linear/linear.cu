// y = W x for up to 16 tokens at a time: the instances of linear_body.h.
#include "kernels/cuda/linear/linear.h"

#include "kernels/cuda/linear/linear_body.h"

namespace runnel::kernels::cuda {

namespace {

template <int kGroups>
constexpr size_t shared_of(int slots) {
    return slots == 1 ? sizeof(LinearShared<kGroups, 1>) : sizeof(LinearShared<kGroups, 4 / kGroups>);
}

}  // namespace

Kernel<LinearParams> linear_kernel(TileFormat format, LinearVersion version) {
    return with_format(format, [&](auto f) {
        constexpr TileFormat kFormat = decltype(f)::value;
        if constexpr (is_apart(kFormat))
            return linear_codebooks_kernel(kFormat, version);
        else
            return for_format<kFormat>(version);
    });
}

size_t linear_shared(TileFormat format, LinearVersion version, const LinearParams &params) {
    const int groups = version.tokens <= kGroupTokens                          ? 1
                       : version.grouped || version.tokens <= 2 * kGroupTokens ? 2
                                                                               : 4;
    const int slots = slots_of(format, groups, version.grouped, version.staged);
    const size_t fixed = (groups == 1   ? shared_of<1>(slots)
                          : groups == 2 ? shared_of<2>(slots)
                                        : shared_of<4>(slots)) +
                         sizeof(uint32_t) * static_cast<size_t>(book_words(format));
    if (!version.staged) return fixed;
    return (fixed + 15) / 16 * 16 + staged_bytes(format, params.cols,
                                                 version.grouped ? params.x_rows : params.tokens,
                                                 version.grouped ? params.tokens : 0);
}

int64_t linear_blocks(const LinearParams &params, int64_t groups) {
    const int64_t teams = kWarps / column_ranges(params.range_blocks);
    int64_t tiles = row_tiles(params.matrix[0].rows);
    for (int i = 1; params.gate == LinearGate::None && i < params.matrices; ++i)
        tiles += row_tiles(params.matrix[i].rows);
    return (tiles * groups + teams - 1) / teams;
}

}  // namespace runnel::kernels::cuda
