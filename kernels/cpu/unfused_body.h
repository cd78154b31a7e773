// The kernels of unfused_attention.h, written once over a type of lanes and compiled once per instruction set.
#pragma once

#include "kernels/cpu/attention_body.h"
#include "kernels/cpu/unfused_attention.h"

namespace runnel::kernels::cpu {
namespace {

// Calls f(page, index) for the pages that at least one row of the tile sees.
template <typename F>
void for_each_page(const AttentionTile &tile, F f) {
    const int32_t first = first_visible(tile, tile.first_cell) / kBlockTokens,
                  last = (tile.first_cell + tile.tokens - 1) / kBlockTokens;
    for (int32_t index = first; index <= last; ++index) {
        const Place place = place_of(tile.pages, index, index < last ? index + 1 : index);
        f(place, index);
    }
}

template <typename L>
void unfused_scores(const AttentionTile &tile, float *matrix, int64_t stride, float *scratch) noexcept {
    constexpr int W = L::kWidth;
    const Rows rows = cut_scratch(tile, scratch);
    const KvPages &pages = tile.pages;
    pack_q<L>(tile, rows);
    for_each_page(tile, [&](const Place &place, int32_t index) {
        Page page = stored_page(pages, place);
        if (rows.count > in_place_rows<L>(pages.k_type)) {
            with_stored(pages.k_type, [&](auto form) {
                convert_keys<L, decltype(form)>(place.k, place.next_k, pages.head_dim_k, rows.k_page);
            });
            page.k = reinterpret_cast<const std::byte *>(rows.k_page);
            page.k_type = CacheType::F32;
        }
        for (int first = 0; first < rows.count; first += L::kRows) {
            const int left = rows.count - first;
            const float *q = rows.q + int64_t{first} * pages.head_dim_k;
            with_rows<L::kRows>(left < L::kRows ? left : L::kRows, [&](auto count) {
                constexpr int R = decltype(count)::value;
                with_form(page.k_type, [&](auto form) {
                    scores<L, R, decltype(form)>(q, page, pages.head_dim_k, rows.p);
                });
                for (int r = 0; r < R; ++r) {
                    float *out = matrix + (first + r) * stride + int64_t{index} * kBlockTokens;
                    for (int i = 0; i < kBlockTokens; i += W)
                        L::store(out + i, L::mul(L::load(rows.p + r * kBlockTokens + i), L::set(tile.scale)));
                }
            });
            page.next_k = page.k;  // for later blocks the next page is already being fetched
        }
    });
}

template <typename L>
void unfused_softmax(const AttentionTile &tile, float *matrix, int64_t stride) noexcept {
    constexpr int W = L::kWidth;
    const int32_t cells = tile.first_cell + tile.tokens;
    for (int row = 0; row < tile.tokens * tile.heads; ++row) {
        float *const s = matrix + row * stride;
        const Visible seen = visible(tile, row, 0, cells);
        // Reads whole vectors; `keep` replaces the cells that are not visible.
        const int begin = seen.begin / W * W;
        const auto kept = [&](int at, float other) {
            return L::keep(L::load(s + at), L::set(other), seen.begin - at, seen.end - at);
        };
        auto largest = L::set(kNoMaximum);
        for (int at = begin; at < seen.end; at += W) largest = L::max(largest, kept(at, kNoMaximum));
        const auto m = L::set(L::reduce_max(largest));
        auto sums = L::zero();
        for (int at = begin; at < seen.end; at += W) {
            const auto p = L::keep(exponential<L>(L::sub(kept(at, kNoMaximum), m)), L::zero(),
                                   seen.begin - at, seen.end - at);
            L::store(s + at, p);
            sums = L::add(sums, p);
        }
        float lanes[W], sum = 0;
        L::store(lanes, sums);
        for (const float lane : lanes) sum += lane;
        for (int at = begin; at < seen.end; at += W) L::store(s + at, L::div(L::load(s + at), L::set(sum)));
    }
}

// The values of a page: in place, or as float32 in scratch.
template <typename L>
Page value_page(const AttentionTile &tile, const Rows &rows, const Place &place) {
    const KvPages &pages = tile.pages;
    if (!pages.v) return converted_page<L>(rows, pages, place);  // V is the start of K
    Page page = stored_page(pages, place);
    if (rows.count <= in_place_rows<L>(pages.v_type)) return page;
    const size_t v_bytes = row_bytes(pages.v_type, pages.head_dim_v);
    for (size_t at = 0; at < kBlockTokens * v_bytes; at += 64) prefetch(place.next_v + at);
    with_stored(pages.v_type, [&](auto form) {
        for (size_t cell = 0; cell < kBlockTokens; ++cell)
            convert_values<L, decltype(form)>(place.v + cell * v_bytes, pages.head_dim_v,
                                              rows.v_page + cell * rows.o_stride);
    });
    page.v = reinterpret_cast<const std::byte *>(rows.v_page);
    page.v_stride = rows.o_stride * sizeof(float);
    page.v_type = CacheType::F32;
    return page;
}

// Adds one page to the outputs of rows [first, first + R).
template <typename L, int R>
void add_values(const AttentionTile &tile, const Rows &rows, const Page &page, int32_t index, int first,
                const float *matrix, int64_t stride) {
    constexpr int W = L::kWidth;
    for (int r = 0; r < R; ++r) {
        const float *p = matrix + (first + r) * stride + int64_t{index} * kBlockTokens;
        for (int i = 0; i < kBlockTokens; i += W) L::store(rows.p + r * kBlockTokens + i, L::load(p + i));
    }
    CellBits cells[R];
    for (int r = 0; r < R; ++r)
        cells[r] = page_cells(tile, first + r, index * kBlockTokens, kAllCells, nullptr);
    for (int r = 0; r < R;) {
        int same = 1;
        if constexpr (R > 1)
            while (r + same < R && cells[r + same] == cells[r]) ++same;
        if (cells[r] != 0)
            with_form(page.v_type, [&](auto form) {
                with_rows<R>(same, [&](auto count) {
                    weighted_sum<L, decltype(count)::value, decltype(form)>(
                        rows.p + r * kBlockTokens, page, cells[r],
                        rows.o + static_cast<size_t>(first + r) * rows.o_stride, rows.o_stride,
                        tile.pages.head_dim_v);
                });
            });
        r += same;
    }
}

template <typename L>
void unfused_values(const AttentionTile &tile, const float *matrix, int64_t stride, float *scratch) noexcept {
    const Rows rows = cut_scratch(tile, scratch);
    const int32_t n = tile.pages.head_dim_v;
    clear_padding<L>(tile, rows);
    for (size_t i = 0; i < static_cast<size_t>(rows.count) * rows.o_stride; i += L::kWidth)
        L::store(rows.o + i, L::zero());
    for_each_page(tile, [&](const Place &place, int32_t index) {
        Page page = value_page<L>(tile, rows, place);
        for (int first = 0; first < rows.count; first += L::kRows) {
            const int left = rows.count - first;
            with_rows<L::kRows>(left < L::kRows ? left : L::kRows, [&](auto count) {
                add_values<L, decltype(count)::value>(tile, rows, page, index, first, matrix, stride);
            });
            page.next_v = page.v;
        }
    });
    for (int row = 0; row < rows.count; ++row) {
        const float *o = rows.o + static_cast<size_t>(row) * rows.o_stride;
        map<L>(o, o, n, out_row(tile, row), [](auto x, auto) { return x; });
    }
}

template <typename L>
constexpr UnfusedKernels unfused_table() {
    return {unfused_scores<L>, unfused_softmax<L>, unfused_values<L>};
}

}  // namespace
}  // namespace runnel::kernels::cpu
