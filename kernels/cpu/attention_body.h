// The attention of attention.h, written once over a type of lanes (vector_lanes_*.h) and compiled once per
// instruction set; everything is local to the including file.
//
// The rows of a tile are split into blocks of L::kRows, so that a block's sums fill the registers. Each page
// is processed one block at a time, in three passes:
// - scores: rows x 2 vectors of cells in registers; per dimension two loads of K, and a broadcast of each
//   row's q;
// - subtract_maximum, exponentials: the 32 scores of a row become p, and its maximum and sums are updated;
// - weighted_sum: rows x some vectors of o in registers; per cell loads of V, and a broadcast of each row's p.
//
// K and V are converted while they are loaded, and the next page, which can be anywhere in memory, is
// prefetched meanwhile. When many blocks share a page, or its type is not read in place (attention_pages.h), it is
// converted once, into scratch. Both ways add the same values to the same sums.
//
// Bytes moved per page: 64 * (head_dim_k + head_dim_v); multiply-adds: rows * 32 * (head_dim_k + head_dim_v).
#pragma once

#include <climits>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_cells.h"
#include "kernels/cpu/attention_formats.h"
#include "kernels/cpu/attention_layout.h"
#include "kernels/cpu/attention_pages.h"
#include "kernels/cpu/vector_body.h"

namespace runnel::kernels::cpu {
namespace {

constexpr float kNoMaximum = -1e30f;
constexpr float kNoRange = -2e30f;  // the maximum of a row before any range is joined

// A page as the products read it: in the cache, or converted to float32 in scratch.
struct Page {
    const std::byte *k, *v;
    size_t v_stride;                   // bytes from cell to cell
    const std::byte *next_k, *next_v;  // to prefetch while this page is computed
    CacheType k_type, v_type;          // as they are read: F32 if converted
    const CellBits *chosen = nullptr;  // per token, or null: all cells
    CellBits some = kAllCells;         // no others are visible
};

// Calls f(form) with the form (attention_pages.h) in which keys or values of this type are read in place.
template <typename F>
inline void with_form(CacheType type, F f) {
    if (type == CacheType::F32) return f(Converted{});
    with_stored_in_place(type, f);
}

// Pointers into the scratch of a tile.
struct Rows {
    int count;
    size_t o_stride;
    float *k_page, *v_page;    // [head_dim_k][32], [32][o_stride]
    float *p;                  // [kRows][32], of the current block
    float *q;                  // [count][head_dim_k]
    float *m, *l;              // [count], of the ranges joined so far
    float *range_m, *range_l;  // [count], of the current range
    float *sums;               // [count][16]
    float *o;                  // [count][o_stride]
};

inline Rows cut_scratch(const AttentionTile &tile, float *scratch) {
    Rows rows{};
    rows.count = tile.tokens * tile.heads;
    rows.o_stride = padded(tile.pages.head_dim_v);
    const size_t per_row = padded(rows.count);
    const auto take = [&](size_t floats) {
        float *taken = scratch;
        scratch += floats;
        return taken;
    };
    rows.k_page = take(kBlockTokens * static_cast<size_t>(tile.pages.head_dim_k));
    rows.v_page = take(kBlockTokens * rows.o_stride);
    rows.p = take(kMaxBlockRows * kBlockTokens);
    rows.q = take(per_row * static_cast<size_t>(tile.pages.head_dim_k));
    rows.m = take(per_row);
    rows.l = take(per_row);
    rows.range_m = take(per_row);
    rows.range_l = take(per_row);
    rows.sums = take(static_cast<size_t>(rows.count) * kSumLanes);
    rows.o = take(static_cast<size_t>(rows.count) * rows.o_stride);
    return rows;
}

// Up to this many rows a page is read in place; with more it is first converted, once for all blocks of rows.
template <typename L>
constexpr int in_place_rows(CacheType type) {
    switch (type) {
        case CacheType::F32:
            return INT_MAX;
        case CacheType::F16:
        case CacheType::BF16:
            return 63;
        case CacheType::Q8_0:
            return 2 * L::kRows;
        case CacheType::Q4_0:
        case CacheType::FP8:
            return L::kRows;
        default:
            return 0;
    }
}

template <int R>
struct RowCount {
    static constexpr int value = R;
};

// Calls f(RowCount<rows>{}); 1 <= rows <= R.
template <int R, typename F>
inline void with_rows(int rows, F f) {
    if constexpr (R > 1) {
        if (rows < R) return with_rows<R - 1>(rows, f);
    }
    f(RowCount<R>{});
}

// p[r][cell] = sum over d of q[r][d] * k[d][cell].
template <typename L, int R, typename Form>
void scores(const float *q, const Page &page, int32_t head_dim, float *p) {
    constexpr int W = L::kWidth;
    const float *row[R];
    for (int r = 0; r < R; ++r) row[r] = q + r * head_dim;
    for (int cell = 0; cell < kBlockTokens; cell += 2 * W) {
        typename L::Float low[R], high[R];
        for (int r = 0; r < R; ++r) low[r] = high[r] = L::zero();
        Keys<L, Form> keys(page.k, page.next_k, cell);
        for (int32_t block = 0; block < head_dim; block += kFormatBlock) {
            keys.begin_block();
            const int32_t end = head_dim - block < kFormatBlock ? head_dim : block + kFormatBlock;
            for (int32_t d = block; d < end; ++d) {
                typename L::Float k_low, k_high;
                keys.next(k_low, k_high);
                for (int r = 0; r < R; ++r) {
                    const auto broadcast = L::set(row[r][d]);
                    low[r] = L::fma(broadcast, k_low, low[r]);
                    high[r] = L::fma(broadcast, k_high, high[r]);
                }
            }
        }
        for (int r = 0; r < R; ++r) {
            L::store(p + r * kBlockTokens + cell, low[r]);
            L::store(p + r * kBlockTokens + cell + W, high[r]);
        }
    }
}

// What is added to the scores of a row: slope * (from + i) for cell i of the page.
struct DistanceBias {
    float slope = 0;
    int32_t from = 0;
};

inline DistanceBias distance_bias(const AttentionTile &tile, int row, int32_t page_cell) {
    if (tile.slopes == nullptr) return {};
    const int32_t own = tile.first_cell + row / tile.heads;
    return {tile.slopes[row % tile.heads],
            page_cell - (own < tile.last_distance_cell ? own : tile.last_distance_cell)};
}

// v += slope * distance for the cells [cell, cell + width) of the page.
template <typename L>
inline typename L::Float biased(typename L::Float v, const DistanceBias &bias, int cell) {
    alignas(64) static constexpr float kCells[kBlockTokens] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                                               11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                                                               22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
    const auto distance = L::add(L::load(kCells + cell), L::set(static_cast<float>(bias.from)));
    return L::add(v, L::mul(L::set(bias.slope), distance));
}

// Scales, caps and biases the scores in p and subtracts the row's maximum; rescales o and the sums when the maximum
// changes.
template <typename L>
inline void subtract_maximum(float *p, float scale, float softcap, const DistanceBias &bias, CellBits cells,
                             float *maximum, float *sums, float *o, size_t o_size) {
    constexpr int W = L::kWidth, N = kBlockTokens / W, S = kSumLanes / W;
    const bool whole = cells == kAllCells;
    typename L::Float v[N];
    for (int i = 0; i < N; ++i) {
        v[i] = L::mul(L::load(p + i * W), L::set(scale));
        if (softcap != 0) v[i] = soft_capped<L>(v[i], L::set(softcap));
        if (bias.slope != 0) v[i] = biased<L>(v[i], bias, i * W);
        if (!whole) v[i] = L::keep_bits(v[i], L::set(kNoMaximum), cells >> (i * W));
    }
    auto largest = v[0];
    for (int i = 1; i < N; ++i) largest = L::max(largest, v[i]);
    auto m = L::set(*maximum);
    if (L::any_greater(largest, m)) {
        *maximum = L::reduce_max(largest);
        const auto moved = L::set(*maximum);
        const auto factor = exponential<L>(L::sub(m, moved));
        for (int i = 0; i < S; ++i) L::store(sums + i * W, L::mul(L::load(sums + i * W), factor));
        for (size_t d = 0; d < o_size; d += W) L::store(o + d, L::mul(L::load(o + d), factor));
        m = moved;
    }
    for (int i = 0; i < N; ++i) L::store(p + i * W, L::sub(v[i], m));
}

// p = exp(p) where visible, else 0; added to the sums.
template <typename L>
inline void exponentials(float *p, CellBits cells, float *sums) {
    constexpr int W = L::kWidth, N = kBlockTokens / W, S = kSumLanes / W;
    const bool whole = cells == kAllCells;
    typename L::Float v[N];
    for (int i = 0; i < N; ++i) {
        v[i] = exponential<L>(L::load(p + i * W));
        if (!whole) v[i] = L::keep_bits(v[i], L::zero(), cells >> (i * W));
        L::store(p + i * W, v[i]);
    }
    for (int i = 0; i < S; ++i) L::store(sums + i * W, L::add(L::load(sums + i * W), L::add(v[i], v[i + S])));
}

// One register tile of weighted_sum: R rows x D vectors of dimensions, from dimension d on. With `Partial`,
// there is one vector and only its first `lanes` elements exist in v.
template <typename L, int R, int D, bool Partial, typename Form>
inline void weighted_columns(const float *p, const Page &page, CellBits cells, float *o, size_t o_stride,
                             int d, int lanes) {
    constexpr int W = L::kWidth;
    constexpr bool kStored = !std::is_same_v<Form, Converted>;
    // The offset of d from the start of its block of shared scales; 0 for register tiles of whole blocks.
    const int start = D * W % kFormatBlock == 0 ? 0 : d % kFormatBlock;
    const size_t offset = value_offset<Form>(d - start);
    constexpr size_t kBytes = value_offset<Form>((D * W + kFormatBlock - 1) / kFormatBlock * kFormatBlock);
    typename L::Float sum[R][D];
    o += d;
    for (int r = 0; r < R; ++r)
        for (int i = 0; i < D; ++i) sum[r][i] = L::load(o + static_cast<size_t>(r) * o_stride + i * W);
    const std::byte *next = page.next_v + offset;
    const auto add = [&](int cell, const std::byte *v) {
        if constexpr (kStored) {
            for (size_t i = 0; i < kBytes; i += 64) prefetch(next + i);
            next += page.v_stride;
        }
        typename L::Float value[D];
        for (int i = 0; i < D; ++i) {
            if constexpr (Partial && std::is_same_v<Form, Stored<CacheType::F16>>) {
                value[i] = L::load_half_n(halves(v) + start, lanes);
            } else {
                value[i] = load_values<L, Form>(v, start + i * W);
            }
        }
        for (int r = 0; r < R; ++r) {
            const auto weight = L::set(p[r * kBlockTokens + cell]);
            for (int i = 0; i < D; ++i) sum[r][i] = L::fma(weight, value[i], sum[r][i]);
        }
    };
    while (cells != 0) {
        const CellRun run = take_run(cells);
        const std::byte *v = page.v + static_cast<size_t>(run.begin) * page.v_stride + offset;
        for (int cell = run.begin; cell < run.end; ++cell, v += page.v_stride) add(cell, v);
    }
    for (int r = 0; r < R; ++r)
        for (int i = 0; i < D; ++i) L::store(o + static_cast<size_t>(r) * o_stride + i * W, sum[r][i]);
}

// Whole vectors [at, vectors) of the dimensions: D at a time, then fewer.
template <typename L, int R, int D, typename Form>
inline void weighted_vectors(const float *p, const Page &page, CellBits cells, float *o, size_t o_stride,
                             int at, int vectors) {
    for (; at + D <= vectors; at += D)
        weighted_columns<L, R, D, false, Form>(p, page, cells, o, o_stride, at * L::kWidth, 0);
    if constexpr (D > 1) weighted_vectors<L, R, D / 2, Form>(p, page, cells, o, o_stride, at, vectors);
}

constexpr int power_of_two_below(int n) {
    return n >= 8 ? 8 : n >= 4 ? 4 : n >= 2 ? 2 : 1;
}

// o[r][d] += sum over the visible cells of p[r][cell] * v[cell][d], for rows with the same visible cells.
template <typename L, int R, typename Form>
void weighted_sum(const float *p, const Page &page, CellBits cells, float *o, size_t o_stride,
                  int32_t head_dim) {
    constexpr int W = L::kWidth, D = power_of_two_below(L::kAccumulators / R);
    // All formats but f16 pad rows to whole vectors.
    constexpr bool kRagged = std::is_same_v<Form, Stored<CacheType::F16>>;
    const int vectors = kRagged ? head_dim / W : (head_dim + W - 1) / W;
    weighted_vectors<L, R, D, Form>(p, page, cells, o, o_stride, 0, vectors);
    const int at = vectors * W;
    if (kRagged && at < head_dim)
        weighted_columns<L, R, 1, true, Form>(p, page, cells, o, o_stride, at, head_dim - at);
}

// Computes one page for rows [first, first + R). whole: all its cells are visible to all rows.
template <typename L, int R>
void attend_block(const AttentionTile &tile, const Rows &rows, const Page &page, int32_t page_cell, int first,
                  bool whole) {
    const int32_t head_dim_v = tile.pages.head_dim_v;
    CellBits cells[R], any = 0;
    for (int r = 0; r < R; ++r) {
        cells[r] = whole ? kAllCells : page_cells(tile, first + r, page_cell, page.some, page.chosen);
        any |= cells[r];
    }
    if (any == 0) return;
    const float *q = rows.q + static_cast<size_t>(first) * static_cast<size_t>(tile.pages.head_dim_k);
    with_form(page.k_type,
              [&](auto form) { scores<L, R, decltype(form)>(q, page, tile.pages.head_dim_k, rows.p); });
    float *o = rows.o + static_cast<size_t>(first) * rows.o_stride;
    float *sums = rows.sums + first * kSumLanes;
    for (int r = 0; r < R; ++r)
        if (cells[r] != 0)
            subtract_maximum<L>(rows.p + r * kBlockTokens, tile.scale, tile.softcap,
                                distance_bias(tile, first + r, page_cell), cells[r], rows.range_m + first + r,
                                sums + r * kSumLanes, o + static_cast<size_t>(r) * rows.o_stride,
                                rows.o_stride);
    for (int r = 0; r < R; ++r)
        if (cells[r] != 0) exponentials<L>(rows.p + r * kBlockTokens, cells[r], sums + r * kSumLanes);
    // Rows with the same visible cells are computed together: no row touches a cell outside its window.
    for (int r = 0; r < R;) {
        int same = 1;
        if constexpr (R > 1)  // (GCC 13 warns of an access before the array otherwise)
            while (r + same < R && cells[r + same] == cells[r]) ++same;
        if (cells[r] != 0)
            with_form(page.v_type, [&](auto form) {
                with_rows<R>(same, [&](auto count) {
                    weighted_sum<L, decltype(count)::value, decltype(form)>(
                        rows.p + r * kBlockTokens, page, cells[r], o + static_cast<size_t>(r) * rows.o_stride,
                        rows.o_stride, head_dim_v);
                });
            });
        r += same;
    }
}

template <typename L>
inline void attend_page(const AttentionTile &tile, const Rows &rows, Page page, int32_t page_cell) {
    // Two rows decide: no row's cells end before the first row's, or begin after the last row's.
    const Visible all{0, kBlockTokens};
    const bool whole = page.chosen == nullptr && page.some == kAllCells &&
                       visible(tile, 0, page_cell, kBlockTokens) == all &&
                       visible(tile, rows.count - 1, page_cell, kBlockTokens) == all;
    for (int first = 0; first < rows.count; first += L::kRows) {
        const int left = rows.count - first;
        with_rows<L::kRows>(left < L::kRows ? left : L::kRows, [&](auto count) {
            attend_block<L, decltype(count)::value>(tile, rows, page, page_cell, first, whole);
        });
        // For later blocks the next page is already being fetched.
        page.next_k = page.k, page.next_v = page.v;
    }
}

// The addresses of a block's K and V pages, and of the next block's.
struct Place {
    const std::byte *k, *v, *next_k, *next_v;
};

inline Place place_of(const KvPages &pages, int32_t page, int32_t next) {
    const auto block = [&](int32_t i) { return static_cast<size_t>(pages.table[i] - pages.first_block); };
    const auto v_page = [&](int32_t i) { return pages.v ? pages.v + block(i) * pages.v_stride : nullptr; };
    return {pages.k + block(page) * pages.k_stride, v_page(page), pages.k + block(next) * pages.k_stride,
            v_page(next)};
}

inline Page stored_page(const KvPages &pages, const Place &place) {
    return {place.k,      place.v,     row_bytes(pages.v_type, pages.head_dim_v), place.next_k, place.next_v,
            pages.k_type, pages.v_type};
}

template <typename L>
inline Page converted_page(const Rows &rows, const KvPages &pages, const Place &place) {
    with_stored(pages.k_type, [&](auto form) {
        convert_keys<L, decltype(form)>(place.k, place.next_k, pages.head_dim_k, rows.k_page);
    });
    const size_t v_bytes = row_bytes(pages.v_type, pages.head_dim_v);
    for (size_t at = 0; pages.v && at < kBlockTokens * v_bytes; at += 64) prefetch(place.next_v + at);
    if (pages.v)
        with_stored(pages.v_type, [&](auto form) {
            for (size_t cell = 0; cell < kBlockTokens; ++cell)
                convert_values<L, decltype(form)>(place.v + cell * v_bytes, pages.head_dim_v,
                                                  rows.v_page + cell * rows.o_stride);
        });
    for (size_t cell = 0; !pages.v && cell < kBlockTokens; ++cell)  // V is the start of K
        for (size_t d = 0; d < static_cast<size_t>(pages.head_dim_v); ++d)
            rows.v_page[cell * rows.o_stride + d] = rows.k_page[d * kBlockTokens + cell];
    const auto bytes = [](const float *at) { return reinterpret_cast<const std::byte *>(at); };
    return {bytes(rows.k_page), bytes(rows.v_page), rows.o_stride * sizeof(float), nullptr, nullptr,
            CacheType::F32,     CacheType::F32};
}

// Copies q of all rows next to one another: in the batch, rows are a power of two apart and would
// compete for the same cache sets.
template <typename L>
inline void pack_q(const AttentionTile &tile, const Rows &rows) {
    const int64_t size = int64_t{tile.heads} * tile.pages.head_dim_k;
    for (int32_t token = 0; token < tile.tokens; ++token) {
        const float *q = tile.q + token * tile.q_stride;
        const float *next = token + 1 < tile.tokens ? q + tile.q_stride : q;
        for (int64_t i = 0; i < size; i += 16) prefetch(next + i);
        map<L>(q, q, size, rows.q + token * size, [](auto x, auto) { return x; });
    }
}

// Writes zeros after the last dimension, so that whole vectors of a converted page hold numbers.
template <typename L>
inline void clear_padding(const AttentionTile &tile, const Rows &rows) {
    for (size_t cell = 0; cell < kBlockTokens; ++cell)
        for (size_t d = static_cast<size_t>(tile.pages.head_dim_v); d < rows.o_stride; ++d)
            rows.v_page[cell * rows.o_stride + d] = 0;
}

// Steps 1 and 2 of attention.h for one range of the sequence: range_m, range_l and o of every row.
template <typename L>
void compute_range(const AttentionTile &tile, const Rows &rows, int32_t range) {
    for (int row = 0; row < rows.count; ++row) rows.range_m[row] = kNoMaximum;
    const size_t cleared = static_cast<size_t>(rows.count) * (kSumLanes + rows.o_stride);
    for (size_t i = 0; i < cleared; i += L::kWidth)
        L::store(rows.sums + i, L::zero());  // also clears o, which follows

    const int32_t from = range * kRangeCells, last_row = rows.count - 1;
    const int32_t first_page = (from + visible(tile, 0, from, kRangeCells).begin) / kBlockTokens;
    const int32_t end_page =
        (from + visible(tile, last_row, from, kRangeCells).end + kBlockTokens - 1) / kBlockTokens;
    const KvPages &pages = tile.pages;
    const bool in_place = pages.v && rows.count <= in_place_rows<L>(pages.k_type) &&
                          rows.count <= in_place_rows<L>(pages.v_type);
    ChosenCells chosen(tile, from);
    int32_t index = chosen.next_page(first_page, end_page);
    while (index < end_page) {
        const CellBits *cells = chosen.take(index);
        const int32_t next = chosen.next_page(index + 1, end_page);
        const Place place = place_of(pages, index, next < end_page ? next : index);
        Page page = in_place ? stored_page(pages, place) : converted_page<L>(rows, pages, place);
        page.chosen = cells;
        page.some = stride_cells(tile, index);
        attend_page<L>(tile, rows, page, index * kBlockTokens);
        index = next;
    }
    for (int row = 0; row < rows.count; ++row) {
        float half[8];
        const float *sums = rows.sums + row * kSumLanes;
        for (int i = 0; i < 8; ++i) half[i] = sums[i] + sums[i + 8];
        rows.range_l[row] = fold_8(half);
    }
}

// Step 3 of attention.h: joins a range's m, l and o to a row's.
template <typename L>
inline void join_row(float *m, float *l, float *out, float range_m, float range_l, const float *o, int32_t n,
                     bool first) {
    if (first) {
        *m = range_m;
        *l = range_l;
        map<L>(o, o, n, out, [](auto x, auto) { return x; });
        return;
    }
    const float larger = *m > range_m ? *m : range_m;
    const auto a = exponential<L>(L::set(*m - larger)), b = exponential<L>(L::set(range_m - larger));
    *m = larger;
    float lanes[L::kWidth];
    L::store(lanes, L::fma(L::set(range_l), b, L::mul(L::set(*l), a)));
    *l = lanes[0];
    map<L>(out, o, n, out, [&](auto x, auto y) { return L::fma(y, b, L::mul(x, a)); });
}

inline float *out_row(const AttentionTile &tile, int row) {
    return tile.out + row / tile.heads * tile.out_stride + int64_t{row % tile.heads} * tile.pages.head_dim_v;
}

inline int32_t tile_first_range(const AttentionTile &tile) {
    return first_visible(tile, tile.first_cell) / kRangeCells;
}
inline int32_t tile_last_range(const AttentionTile &tile) {
    return (visible_end(tile, tile.first_cell + tile.tokens - 1) - 1) / kRangeCells;
}

inline bool row_sees(const AttentionTile &tile, int row, int32_t range) {
    const int32_t from = range * kRangeCells;
    if (tile.chosen != nullptr) return chooses(tile, row / tile.heads, from, from + kRangeCells);
    return visible(tile, row, from, kRangeCells).any();
}

// Whether some row attends to the range; without chosen cells, all ranges of a tile are seen.
inline bool tile_sees(const AttentionTile &tile, int32_t range) {
    for (int token = 0; token < tile.tokens; ++token)
        if (row_sees(tile, token * tile.heads, range)) return true;
    return false;
}

// The tile with its rows attending to the sink cells only, which are range 0.
inline AttentionTile sink_tile(AttentionTile tile) {
    tile.q = tile.sink_q;
    tile.last_distance_cell = tile.window + tile.sink_cells - 1;
    tile.window = 0;
    tile.end_cell = tile.sink_cells;
    tile.sink_cells = 0;
    return tile;
}

// Tells JoinAttention what a row is a mean of.
inline void write_sums(const AttentionTile &tile, int row, float m, float l) {
    if (tile.sums == nullptr) return;
    float *sums = tile.sums + row / tile.heads * tile.sums_stride + int64_t{row % tile.heads} * 2;
    sums[0] = m;
    sums[1] = l;
}

// Steps 4 and 5: adds the sink to the sum, then out = o / l. out may be o.
template <typename L>
inline void finish_row(const AttentionTile &tile, int row, float m, float l, const float *o) {
    const int32_t n = tile.pages.head_dim_v;
    float *out = out_row(tile, row);
    if (!tile.sinks) {
        write_sums(tile, row, m, l);
        if (l == 0) return map<L>(out, out, n, out, [](auto, auto) { return L::zero(); });
        return map<L>(o, o, n, out, [&](auto x, auto) { return L::div(x, L::set(l)); });
    }
    const float sink = tile.sinks[row % tile.heads], larger = m > sink ? m : sink;
    const auto a = exponential<L>(L::set(m - larger)), s = exponential<L>(L::set(sink - larger));
    const auto sum = L::fma(L::set(l), a, s);
    float lanes[L::kWidth];
    L::store(lanes, sum);
    write_sums(tile, row, larger, lanes[0]);
    map<L>(o, o, n, out, [&](auto x, auto) { return L::div(L::mul(x, a), sum); });
}

// Joins the current range to the rows that attend to it.
template <typename L>
void join_range(const AttentionTile &tile, const Rows &rows, int32_t range) {
    for (int row = 0; row < rows.count; ++row) {
        if (!row_sees(tile, row, range)) continue;
        const bool first = rows.m[row] == kNoRange;
        join_row<L>(rows.m + row, rows.l + row, out_row(tile, row), rows.range_m[row], rows.range_l[row],
                    rows.o + static_cast<size_t>(row) * rows.o_stride, tile.pages.head_dim_v, first);
    }
}

template <typename L>
void attend(const AttentionTile &tile, float *scratch) noexcept {
    const Rows rows = cut_scratch(tile, scratch);
    const int32_t first_range = tile_first_range(tile), last_range = tile_last_range(tile);
    clear_padding<L>(tile, rows);
    if (first_range == last_range && tile.sink_cells == 0) {
        pack_q<L>(tile, rows);
        compute_range<L>(tile, rows, first_range);
        for (int row = 0; row < rows.count; ++row)
            finish_row<L>(tile, row, rows.range_m[row], rows.range_l[row],
                          rows.o + static_cast<size_t>(row) * rows.o_stride);
        return;
    }
    for (int row = 0; row < rows.count; ++row) rows.m[row] = kNoRange;
    if (tile.sink_cells > 0) {
        const AttentionTile sinks = sink_tile(tile);
        pack_q<L>(sinks, rows);
        compute_range<L>(sinks, rows, 0);
        join_range<L>(sinks, rows, 0);
    }
    pack_q<L>(tile, rows);
    for (int32_t range = first_range; range <= last_range; ++range) {
        if (tile.chosen != nullptr && !tile_sees(tile, range)) continue;
        compute_range<L>(tile, rows, range);
        join_range<L>(tile, rows, range);
    }
    for (int row = 0; row < rows.count; ++row)
        finish_row<L>(tile, row, rows.m[row], rows.l[row], out_row(tile, row));
}

template <typename L>
void attend_range(const AttentionTile &tile, int32_t index, float *partial, float *scratch) noexcept {
    const Rows rows = cut_scratch(tile, scratch);
    const int32_t n = tile.pages.head_dim_v;
    const bool sinks = tile.sink_cells > 0;
    const AttentionTile &seen = sinks && index == 0 ? sink_tile(tile) : tile;
    pack_q<L>(seen, rows);
    clear_padding<L>(seen, rows);
    compute_range<L>(seen, rows, sinks && index == 0 ? 0 : tile_first_range(tile) + index - (sinks ? 1 : 0));
    for (int row = 0; row < rows.count; ++row, partial += kPartialHead + n) {
        partial[0] = rows.range_m[row];
        partial[1] = rows.range_l[row];
        const float *o = rows.o + static_cast<size_t>(row) * rows.o_stride;
        map<L>(o, o, n, partial + kPartialHead, [](auto x, auto) { return x; });
    }
}

template <typename L>
void join(const AttentionTile &tile, const float *partials, int32_t ranges) noexcept {
    const int32_t n = tile.pages.head_dim_v, row_size = kPartialHead + n, count = tile.tokens * tile.heads;
    const int32_t sinks = tile.sink_cells > 0 ? 1 : 0, tile_first = tile_first_range(tile);
    for (int row = 0; row < count; ++row) {
        float m = kNoRange, l = 0;
        for (int32_t index = 0; index < ranges; ++index) {
            const bool sees = index < sinks || row_sees(tile, row, tile_first + index - sinks);
            if (!sees) continue;
            const float *partial = partials + (int64_t{index} * count + row) * row_size;
            join_row<L>(&m, &l, out_row(tile, row), partial[0], partial[1], partial + kPartialHead, n,
                        m == kNoRange);
        }
        finish_row<L>(tile, row, m, l, out_row(tile, row));
    }
}

template <typename L>
void add_range(const AttentionTile &tile, int32_t range, const float *partial, float *joined) noexcept {
    const int32_t n = tile.pages.head_dim_v, row_size = kPartialHead + n;
    for (int row = 0; row < tile.tokens * tile.heads; ++row, partial += row_size, joined += row_size) {
        if (!row_sees(tile, row, range)) continue;
        const bool first = range == first_visible(tile, tile.first_cell + row / tile.heads) / kRangeCells;
        join_row<L>(joined, joined + 1, joined + kPartialHead, partial[0], partial[1], partial + kPartialHead,
                    n, first);
    }
}

template <typename L>
void append_half_k(uint16_t *page, const float *k, int32_t dims) {
    constexpr int W = L::kWidth;
    for (int32_t d = 0; d < dims; d += W) {
        const int n = dims - d < W ? dims - d : W;
        uint16_t half[W];
        L::store_half(half, L::load_n(k + d, n));
        for (int i = 0; i < n; ++i) page[(d + i) * kBlockTokens] = half[i];
    }
}

template <typename L>
void append(const KvPages &pages, int32_t cell, int32_t tokens, const float *k, int64_t k_stride,
            const float *v, int64_t v_stride) noexcept {
    const size_t v_bytes = row_bytes(pages.v_type, pages.head_dim_v);
    for (int32_t end = cell + tokens; cell < end; ++cell, k += k_stride, v += v_stride) {
        const auto block = static_cast<size_t>(pages.table[cell / kBlockTokens] - pages.first_block);
        const size_t column = static_cast<size_t>(cell % kBlockTokens);
        if (pages.v) {
            std::byte *row = pages.v + block * pages.v_stride + column * v_bytes;
            if (pages.v_type == CacheType::F16)
                to_half<L>(v, pages.head_dim_v, reinterpret_cast<uint16_t *>(row));
            else
                write_v_row<L>(pages.v_type, row, v, pages.head_dim_v);
        }
        std::byte *page = pages.k + block * pages.k_stride;
        if (pages.k_type == CacheType::F16)
            append_half_k<L>(reinterpret_cast<uint16_t *>(page) + column, k, pages.head_dim_k);
        else
            write_k_cell<L>(pages.k_type, page, column, k, pages.head_dim_k);
    }
}

}  // namespace
}  // namespace runnel::kernels::cpu
