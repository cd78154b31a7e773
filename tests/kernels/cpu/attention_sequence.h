// Shared by the tests of attention: a sequence in a cache whose blocks are in random order, the
// ways to run the kernels over it, and the expected results, to the bit as attention.h defines
// them and in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/vector.h"
#include "tests/support/reference.h"

namespace runnel::testing {

using namespace kernels;
using namespace kernels::cpu;

using Floats = std::vector<float>;
using Engine = std::mt19937;

inline constexpr uint16_t kHalfNan = 0x7e01, kHalfInfinity = 0x7c00;

inline std::vector<const AttentionKernels *> all_kernels() {
    std::vector<const AttentionKernels *> kernels{&attention_scalar()};
    if (attention_avx2() != nullptr) kernels.push_back(attention_avx2());
    if (attention_avx512() != nullptr) kernels.push_back(attention_avx512());
    return kernels;
}

inline int32_t pick(Engine &engine, int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(engine);
}

inline Floats normal(Engine &engine, int64_t n, float scale = 1) {
    std::normal_distribution<float> distribution(0, scale);
    Floats out(static_cast<size_t>(n));
    for (float &x : out) x = distribution(engine);
    return out;
}

// The values of x after rounding to the cache's binary16.
inline Floats rounded_to_half(const Floats &x) {
    std::vector<uint16_t> half(x.size());
    Floats out(x.size());
    vector_scalar().to_half(x.data(), static_cast<int64_t>(x.size()), half.data());
    vector_scalar().from_half(half.data(), static_cast<int64_t>(x.size()), out.data());
    return out;
}

struct Shape {
    int32_t cells, heads, head_dim_k, head_dim_v, window;
    bool chunked = false;
    float softcap = 0;
    bool sinks = false;  // some below, some above the scores
    bool values_are_keys = false;
    CacheType k_type = CacheType::F16, v_type = CacheType::F16;
    int32_t sink_cells = 0;
    bool slopes = false;
};

// OCP e4m3: 1 sign, 4 bits of exponent (bias 7), 3 of mantissa.
inline float e4m3(uint8_t bits) {
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    if ((bits & 0x7f) == 0x7f) return NAN;
    const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                          : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    return bits & 0x80 ? -magnitude : magnitude;
}

inline float half_at(const uint8_t *at) {
    return gguf::f16_to_f32(static_cast<uint16_t>(at[0] | at[1] << 8));
}
inline float float_at(const uint8_t *at) {
    float x;
    std::memcpy(&x, at, sizeof x);
    return x;
}

// The level (cache_type.h) of a nibble and, for types that have one, a fifth bit.
inline float level_of(CacheType type, int nibble, int fifth_bit) {
    if (type == CacheType::IQ4_NL) return gguf::kIQ4Values[nibble];
    if (type == CacheType::Q4_0 || type == CacheType::Q4_1)
        return static_cast<float>(nibble - (type == CacheType::Q4_0 ? 8 : 0));
    return static_cast<float>(nibble + 16 * fifth_bit - (type == CacheType::Q5_0 ? 16 : 0));
}

// One value of a page, read according to attention_formats.h.
inline float stored_k(CacheType type, const std::byte *page, int32_t cell, int32_t d) {
    const auto *bytes = reinterpret_cast<const uint8_t *>(page);
    const auto half = [&](int32_t at) { return static_cast<uint16_t>(bytes[at] | bytes[at + 1] << 8); };
    if (type == CacheType::F16) return gguf::f16_to_f32(half(2 * (d * 32 + cell)));
    if (type == CacheType::BF16) return gguf::bf16_to_f32(half(2 * (d * 32 + cell)));
    if (type == CacheType::F32) return float_at(bytes + 4 * (d * 32 + cell));
    if (type == CacheType::FP8) return e4m3(bytes[d * 32 + cell]);
    const auto *block = bytes + d / 32 * 32 * static_cast<int32_t>(cache_row_bytes(type, 32));
    const int32_t i = d % 32, head = has_minimum(type) ? 128 : 64;
    const float scale = half_at(block + 2 * cell),
                least = has_minimum(type) ? half_at(block + 64 + 2 * cell) : 0;
    if (type == CacheType::Q8_0)
        return scale * static_cast<float>(static_cast<int8_t>(block[head + i * 32 + cell]));
    const int nibble = block[head + i * 16 + cell % 16] >> (cell < 16 ? 0 : 4) & 15;
    return scale * level_of(type, nibble, block[head + 512 + 4 * i + cell / 8] >> cell % 8 & 1) + least;
}

inline float stored_v(CacheType type, const std::byte *page, int32_t dims, int32_t cell, int32_t d) {
    const auto *row =
        reinterpret_cast<const uint8_t *>(page) + static_cast<size_t>(cell) * cache_row_bytes(type, dims);
    const auto half = [&](int32_t at) { return static_cast<uint16_t>(row[at] | row[at + 1] << 8); };
    if (type == CacheType::F16) return gguf::f16_to_f32(half(2 * d));
    if (type == CacheType::BF16) return gguf::bf16_to_f32(half(2 * d));
    if (type == CacheType::F32) return float_at(row + 4 * d);
    if (type == CacheType::FP8) return e4m3(row[d]);
    const auto *block = row + d / 32 * static_cast<int32_t>(cache_row_bytes(type, 32));
    const int32_t i = d % 32, head = has_minimum(type) ? 4 : 2,
                  nibbles = head + (has_fifth_bit(type) ? 4 : 0);
    const float scale = half_at(block), least = has_minimum(type) ? half_at(block + 2) : 0;
    if (type == CacheType::Q8_0) return scale * static_cast<float>(static_cast<int8_t>(block[head + i]));
    return scale * level_of(type, block[nibbles + i % 16] >> (i < 16 ? 0 : 4) & 15,
                            block[head + i / 8] >> i % 8 & 1) +
           least;
}

// A sequence in a cache with two K/V heads whose blocks are in random order among others; bytes never written
// are `stale`. Queries for every cell, for `heads` query heads of K/V head 1.
class Sequence {
  public:
    Sequence(Engine &engine, Shape sizes, uint16_t stale = kHalfNan, float spread = 1) : shape(sizes) {
        const int32_t blocks = (shape.cells + kBlockTokens - 1) / kBlockTokens, pool = blocks + 3;
        const size_t k_page = kBlockTokens * cache_row_bytes(shape.k_type, shape.head_dim_k);
        const size_t v_page = kBlockTokens * cache_row_bytes(shape.v_type, shape.head_dim_v);
        k_cache_.assign(k_page * static_cast<size_t>(pool), stale);  // 16-bit elements: space for two heads
        v_cache_.assign(v_page * static_cast<size_t>(pool), stale);
        for (BlockId id = 0; id < pool; ++id) table.push_back(id);
        std::shuffle(table.begin(), table.end(), engine);
        table.resize(static_cast<size_t>(blocks));
        auto *k_bytes = reinterpret_cast<std::byte *>(k_cache_.data()),
             *v_bytes = reinterpret_cast<std::byte *>(v_cache_.data());
        pages = {k_bytes + k_page, v_bytes + v_page, 2 * k_page,   2 * v_page,  table.data(),
                 shape.head_dim_k, shape.head_dim_v, shape.k_type, shape.v_type};
        q = normal(engine, int64_t{shape.cells} * shape.heads * shape.head_dim_k, spread);
        if (shape.values_are_keys) pages.v = nullptr;
        sinks = normal(engine, shape.heads, 5);
        for (int32_t i = 0; i < shape.heads; ++i) slopes.push_back(0.3f / static_cast<float>(i + 1));
        if (shape.sink_cells > 0) sink_q = normal(engine, static_cast<int64_t>(q.size()), spread);
        k = normal(engine, int64_t{shape.cells} * shape.head_dim_k);
        v = normal(engine, int64_t{shape.cells} * shape.head_dim_v);
        for (int32_t i = 0; i < shape.cells * shape.head_dim_v && shape.values_are_keys; ++i)
            v[static_cast<size_t>(i)] =
                k[static_cast<size_t>(i / shape.head_dim_v * shape.head_dim_k + i % shape.head_dim_v)];
    }

    // Lets every token attend to `count` random blocks of `block` cells, the last of which is its own if block > 1; half of
    // the tokens prefer neighbors.
    void choose(Engine &engine, int32_t count, int32_t block = 1) {
        chosen_count = count, chosen_block = block;
        chosen.assign(static_cast<size_t>(int64_t{shape.cells} * count), -1);
        for (int32_t own = 0; own < shape.cells; ++own) {
            const int32_t last = own / block;
            std::vector<int32_t> blocks(static_cast<size_t>(last) + 1);
            std::iota(blocks.rbegin(), blocks.rend(), 0);
            const auto first = blocks.begin() + (block > 1 ? 1 : 0);
            if (own % 2 == 0)
                std::shuffle(first, blocks.end(), engine);
            else if (first < blocks.end())
                std::rotate(first, first + pick(engine, 0, static_cast<int>(blocks.end() - first) - 1),
                            blocks.end());
            blocks.resize(std::min(blocks.size(), static_cast<size_t>(count)));
            std::sort(blocks.begin(), blocks.end());
            std::copy(blocks.begin(), blocks.end(), chosen.begin() + int64_t{own} * count);
        }
    }

    void append(const AttentionKernels &kernels, int32_t cell, int32_t tokens) {
        kernels.append(pages, cell, tokens, k.data() + cell * shape.head_dim_k, shape.head_dim_k,
                       v.data() + cell * shape.head_dim_v, shape.head_dim_v);
    }

    // Writes all cells, in chunks of random size.
    void append_all(const AttentionKernels &kernels, Engine &engine) {
        for (int32_t cell = 0; cell < shape.cells;) {
            const int32_t tokens = std::min(pick(engine, 1, 50), shape.cells - cell);
            append(kernels, cell, tokens);
            cell += tokens;
        }
    }

    size_t rows_size(int32_t tokens) const {
        return static_cast<size_t>(tokens * shape.heads * shape.head_dim_v);
    }

    AttentionTile tile(int32_t cell, int32_t tokens, float *out) const {
        AttentionTile tile{};
        tile.pages = pages;
        tile.q = q.data() + int64_t{cell} * shape.heads * shape.head_dim_k;
        tile.q_stride = shape.heads * shape.head_dim_k;
        tile.out = out;
        tile.out_stride = shape.heads * shape.head_dim_v;
        tile.tokens = tokens;
        tile.heads = shape.heads;
        tile.first_cell = cell;
        tile.window = shape.window;
        tile.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim_k));
        tile.chunked = shape.chunked;
        tile.softcap = shape.softcap;
        if (shape.sinks) tile.sinks = sinks.data();
        if (shape.slopes) tile.slopes = slopes.data();
        tile.sink_cells = shape.sink_cells;
        tile.common_end = common_end;
        if (shape.sink_cells > 0)
            tile.sink_q = sink_q.data() + int64_t{cell} * shape.heads * shape.head_dim_k;
        if (chosen_count > 0) tile.chosen = chosen.data() + int64_t{cell} * chosen_count;
        tile.chosen_stride = tile.chosen_count = chosen_count;
        tile.chosen_block = chosen_block;
        return tile;
    }

    // The chosen blocks of the token in cell `own`; empty if there is no choice.
    reference::Row chosen_row(int64_t own) const {
        const auto from = chosen.begin() + own * chosen_count;
        return {from, from + chosen_count};
    }

    // The values of k and v in the cache.
    Floats kept_k() const {
        Floats out;
        for (int32_t cell = 0; cell < shape.cells; ++cell)
            for (int32_t d = 0; d < shape.head_dim_k; ++d)
                out.push_back(
                    stored_k(shape.k_type, pages.k + block_of(cell) * pages.k_stride, cell % 32, d));
        return out;
    }
    Floats kept_v() const {
        Floats out;
        for (int32_t cell = 0; cell < shape.cells; ++cell)
            for (int32_t d = 0; d < shape.head_dim_v; ++d)
                out.push_back(
                    shape.values_are_keys
                        ? stored_k(shape.k_type, pages.k + block_of(cell) * pages.k_stride, cell % 32, d)
                        : stored_v(shape.v_type, pages.v + block_of(cell) * pages.v_stride, shape.head_dim_v,
                                   cell % 32, d));
        return out;
    }

    Shape shape;
    std::vector<BlockId> table;
    KvPages pages;
    Floats q, k, v, sinks, slopes, sink_q;
    Floats chosen;  // [cells][chosen_count], of choose()
    int32_t chosen_count = 0, chosen_block = 1;
    int32_t common_end = 0;  // of all tiles

  private:
    size_t block_of(int32_t cell) const {
        return static_cast<size_t>(table[static_cast<size_t>(cell / kBlockTokens)]);
    }
    std::vector<uint16_t> k_cache_, v_cache_;
};

struct Free {
    void operator()(float *p) const { std::free(p); }
};

// Exactly the documented scratch size, so that the sanitizers find accesses beyond it; filled with NaN.
inline std::unique_ptr<float, Free> scratch_for(const AttentionTile &tile) {
    const size_t floats =
        attention_scratch(tile.pages.head_dim_k, tile.pages.head_dim_v, tile.tokens * tile.heads);
    std::unique_ptr<float, Free> scratch(
        static_cast<float *>(std::aligned_alloc(64, (floats * sizeof(float) + 63) / 64 * 64)));
    std::fill(scratch.get(), scratch.get() + floats, NAN);
    return scratch;
}

inline Floats attend(const AttentionKernels &kernels, const Sequence &sequence, int32_t cell,
                     int32_t tokens) {
    Floats out(sequence.rows_size(tokens), NAN);
    const AttentionTile tile = sequence.tile(cell, tokens, out.data());
    kernels.attend(tile, scratch_for(tile).get());
    return out;
}

// As attend(), but with each range computed separately, in descending order.
inline Floats attend_in_ranges(const AttentionKernels &kernels, const Sequence &sequence, int32_t cell,
                               int32_t tokens) {
    Floats out(sequence.rows_size(tokens), NAN);
    const AttentionTile tile = sequence.tile(cell, tokens, out.data());
    const int32_t ranges = range_count(tile);
    const size_t size = attention_partial(tile);
    Floats partials(size * static_cast<size_t>(ranges), NAN);
    for (int32_t range = ranges - 1; range >= 0; --range)
        kernels.attend_range(tile, range, partials.data() + size * static_cast<size_t>(range),
                             scratch_for(tile).get());
    kernels.join(tile, partials.data(), ranges);
    return out;
}

// One tile per query head and token.
inline Floats attend_one_by_one(const AttentionKernels &kernels, const Sequence &sequence, int32_t cell,
                                int32_t tokens) {
    Floats out(sequence.rows_size(tokens), NAN);
    const AttentionTile whole = sequence.tile(cell, tokens, out.data());
    for (int32_t t = 0; t < tokens; ++t) {
        for (int32_t h = 0; h < whole.heads; ++h) {
            AttentionTile tile = whole;
            tile.q += t * whole.q_stride + h * whole.pages.head_dim_k;
            tile.out += t * whole.out_stride + h * whole.pages.head_dim_v;
            tile.first_cell += t;
            if (tile.chosen) tile.chosen += t * whole.chosen_stride;
            if (tile.sinks) tile.sinks += h;
            if (tile.slopes) tile.slopes += h;
            if (tile.sink_q) tile.sink_q += t * whole.q_stride + h * whole.pages.head_dim_k;
            tile.tokens = tile.heads = 1;
            kernels.attend(tile, scratch_for(tile).get());
        }
    }
    return out;
}

inline bool same_bits(const Floats &a, const Floats &b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline float exponential(float x) {
    vector_scalar().exp(&x, 1, &x);
    return x;
}

// One row, computed literally as attention.h defines it: cells [begin, end) of q's sequence, or the chosen ones of
// them.
struct Partial {
    float m = -1e30f, l = 0;
    Floats o;
};

inline Partial range_by_definition(const float *q, const Floats &k, const Floats &v,
                                   const AttentionTile &tile, int32_t begin, int32_t end, float slope,
                                   int32_t own, const std::vector<float> &chosen = {}) {
    const auto hidden = [&](int32_t cell) {
        return !chosen.empty() && !std::binary_search(chosen.begin(), chosen.end(),
                                                      static_cast<float>(cell / tile.chosen_block));
    };
    const int32_t dk = tile.pages.head_dim_k, dv = tile.pages.head_dim_v;
    Partial out;
    out.o.assign(static_cast<size_t>(dv), 0.0f);
    float l[16] = {};
    for (int32_t page = begin / 32; page * 32 < end; ++page) {
        float s[32], p[32] = {}, largest = out.m;
        const int32_t first = std::max(begin, page * 32), last = std::min(end, page * 32 + 32);
        for (int32_t cell = first; cell < last; ++cell) {
            if (hidden(cell)) continue;
            float sum = 0;
            for (int32_t d = 0; d < dk; ++d) sum = std::fma(q[d], k[static_cast<size_t>(cell * dk + d)], sum);
            s[cell % 32] = sum * tile.scale;
            if (tile.softcap != 0) vector_scalar().softcap(tile.softcap, s + cell % 32, 1, s + cell % 32);
            const float bias = slope * static_cast<float>(cell - own);
            s[cell % 32] += bias;
            largest = std::max(largest, s[cell % 32]);
        }
        if (largest > out.m) {
            const float factor = exponential(out.m - largest);
            for (float &x : l) x *= factor;
            for (float &x : out.o) x *= factor;
            out.m = largest;
        }
        for (int32_t cell = first; cell < last; ++cell)
            if (!hidden(cell)) p[cell % 32] = exponential(s[cell % 32] - out.m);
        for (int i = 0; i < 16; ++i) l[i] += p[i] + p[i + 16];
        for (int32_t cell = first; cell < last; ++cell)
            for (int32_t d = 0; d < dv && !hidden(cell); ++d)
                out.o[static_cast<size_t>(d)] = std::fma(p[cell % 32], v[static_cast<size_t>(cell * dv + d)],
                                                         out.o[static_cast<size_t>(d)]);
    }
    float s[8];
    for (int i = 0; i < 8; ++i) s[i] = l[i] + l[i + 8];
    out.l = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    return out;
}

inline Floats attend_by_definition(const Sequence &sequence, int32_t cell, int32_t tokens) {
    Floats out;
    const AttentionTile tile = sequence.tile(cell, tokens, nullptr);
    const Floats k = sequence.kept_k(), v = sequence.kept_v();
    for (int32_t row = 0; row < tokens * tile.heads; ++row) {
        const int32_t own = cell + row / tile.heads, end = std::max(own + 1, tile.common_end);
        int32_t seen = tile.window == 0 ? 0
                       : tile.chunked   ? own / tile.window * tile.window
                                        : std::max(0, own - tile.window + 1);
        Partial joined;
        const float slope = tile.slopes ? tile.slopes[row % tile.heads] : 0;
        const int32_t sinks = tile.sink_cells;
        if (sinks > 0)
            joined =
                range_by_definition(tile.sink_q + int64_t{row} * tile.pages.head_dim_k, k, v, tile, 0,
                                    std::min(own + 1, sinks), slope, std::min(own, tile.window + sinks - 1));
        seen = std::max(seen, sinks);
        std::vector<float> chosen;
        if (tile.chosen) {
            const float *from = tile.chosen + row / tile.heads * tile.chosen_stride;
            chosen.assign(from, from + std::min(own / tile.chosen_block + 1, tile.chosen_count));
        }
        const auto chooses = [&](int32_t range) {
            const auto first = range * kRangeCells, last = std::min(own, first + kRangeCells - 1);
            return chosen.empty() || std::ranges::any_of(chosen, [&](float one) {
                       const int32_t begin = static_cast<int32_t>(one) * tile.chosen_block;
                       return begin <= last && begin + tile.chosen_block > first;
                   });
        };
        for (int32_t range = seen / kRangeCells; seen < end && range <= (end - 1) / kRangeCells; ++range) {
            if (!chooses(range)) continue;
            const Partial part =
                range_by_definition(tile.q + int64_t{row} * tile.pages.head_dim_k, k, v, tile,
                                    std::max(seen, range * kRangeCells),
                                    std::min(end, (range + 1) * kRangeCells), slope, own, chosen);
            if (joined.o.empty()) {
                joined = part;
                continue;
            }
            const float larger = std::max(joined.m, part.m);
            const float a = exponential(joined.m - larger), b = exponential(part.m - larger);
            joined.m = larger;
            joined.l = std::fma(part.l, b, joined.l * a);
            for (size_t d = 0; d < joined.o.size(); ++d)
                joined.o[d] = std::fma(part.o[d], b, joined.o[d] * a);
        }
        float a = 1;
        if (tile.sinks) {
            const float sink = tile.sinks[row % tile.heads], larger = std::max(joined.m, sink);
            a = exponential(joined.m - larger);
            joined.l = std::fma(joined.l, a, exponential(sink - larger));
        }
        for (const float o : joined.o) out.push_back(o * a / joined.l);
    }
    return out;
}

// Largest difference to the double-precision result, in units of the largest value.
inline double error_against_reference(const Sequence &sequence, int32_t cell, int32_t tokens,
                                      const Floats &out) {
    const Shape &s = sequence.shape;
    const auto k = reference::to_row(s.k_type == CacheType::F16 ? rounded_to_half(sequence.k)
                                                                : sequence.kept_k()),
               v = reference::to_row(s.v_type == CacheType::F16 ? rounded_to_half(sequence.v)
                                                                : sequence.kept_v());
    const auto q = reference::to_row(sequence.q), sinks = reference::to_row(sequence.sinks),
               slopes = reference::to_row(sequence.slopes);
    const Attention step{
        .q = 0,
        .k = 1,
        .v = 2,
        .out = 3,
        .cache = 0,
        .heads = s.heads,
        .kv_heads = 1,
        .head_dim_k = s.head_dim_k,
        .head_dim_v = s.head_dim_v,
        .scale = 1 / std::sqrt(static_cast<float>(s.head_dim_k)),
        .window = s.window,
        .window_kind = s.chunked ? Attention::Window::Chunked : Attention::Window::Sliding,
        .softcap = s.softcap,
        .chosen_block = sequence.chosen_block,
    };
    double worst = 0;
    for (int32_t t = 0; t < tokens; ++t) {
        const int64_t own = cell + t, width = int64_t{s.heads} * s.head_dim_k;
        const auto expected = reference::attention_heads(
            step, std::span(q).subspan(static_cast<size_t>(own * width), static_cast<size_t>(width)), k,
            s.values_are_keys ? reference::Row{} : v, own, s.sinks ? sinks : reference::Row{}, {},
            s.slopes ? slopes : reference::Row{}, sequence.chosen_row(own), sequence.common_end);
        for (size_t i = 0; i < expected.size(); ++i) {
            const double difference =
                std::fabs(out[static_cast<size_t>(t) * expected.size() + i] - expected[i]);
            worst = std::isnan(difference) ? 1e9 : std::max(worst, difference);
        }
    }
    return worst;
}

}  // namespace runnel::testing
