// The scores of an Indexer, written as attention_body.h is, and the table of all kernels of attention.h.
#pragma once

#include "kernels/cpu/attention_body.h"

namespace runnel::kernels::cpu {
namespace {

// The page of index keys is converted once for all heads of all tokens.
template <typename L>
void index_scores(const IndexTile &tile, float *scratch) noexcept {
    constexpr int W = L::kWidth, N = kBlockTokens / W;
    const int32_t dim = tile.pages.head_dim_k;
    float *const keys = scratch, *const p = keys + int64_t{kBlockTokens} * dim;
    Page page{};
    page.k = reinterpret_cast<const std::byte *>(keys);
    for (int32_t index = tile.first_page; index < tile.end_page; ++index) {
        const Place place = place_of(tile.pages, index, index + 1 < tile.end_page ? index + 1 : index);
        with_stored(tile.pages.k_type,
                    [&](auto form) { convert_keys<L, decltype(form)>(place.k, place.next_k, dim, keys); });
        const auto store_cells = [&](int64_t row, const typename L::Float *values) {
            float *to = tile.scores + row * tile.scores_stride + int64_t{index} * kBlockTokens;
            for (int i = 0; i < N; ++i) L::store(to + i * W, values[i]);
        };
        for (int32_t t = 0; t < tile.tokens; ++t) {
            const float *q = tile.q + t * tile.q_stride;
            const float *weights = tile.weights ? tile.weights + t * tile.weights_stride : nullptr;
            typename L::Float sum[N];
            for (int i = 0; i < N; ++i) sum[i] = L::zero();
            for (int32_t first = 0; first < tile.heads; first += L::kRows) {
                const int32_t left = tile.heads - first;
                with_rows<L::kRows>(left < L::kRows ? left : L::kRows, [&](auto count) {
                    constexpr int R = decltype(count)::value;
                    scores<L, R, Converted>(q + int64_t{first} * dim, page, dim, p);
                    for (int r = 0; r < R; ++r) {
                        typename L::Float products[N];
                        for (int i = 0; i < N; ++i) products[i] = L::load(p + r * kBlockTokens + i * W);
                        if (!weights) {
                            store_cells(int64_t{t} * tile.heads + first + r, products);
                            continue;
                        }
                        for (int i = 0; i < N; ++i)
                            sum[i] =
                                L::fma(L::set(weights[first + r]), L::max(products[i], L::zero()), sum[i]);
                    }
                });
            }
            if (weights) store_cells(t, sum);
        }
    }
}

template <typename L>
constexpr AttentionKernels attention_table(const char *name) {
    return {name, append<L>, attend<L>, attend_range<L>, join<L>, add_range<L>, index_scores<L>};
}

}  // namespace
}  // namespace runnel::kernels::cpu
