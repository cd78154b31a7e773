#include "kernels/cpu/attention.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "kernels/cpu/vector.h"
#include "tests/support/reference.h"

using namespace runnel;
using namespace runnel::kernels;
using namespace runnel::kernels::cpu;

namespace {

using Floats = std::vector<float>;
using Engine = std::mt19937;

constexpr uint16_t kHalfNan = 0x7e01, kHalfInfinity = 0x7c00;

std::vector<const AttentionKernels *> all_kernels() {
    std::vector<const AttentionKernels *> kernels{&attention_scalar()};
    if (attention_avx2() != nullptr) kernels.push_back(attention_avx2());
    if (attention_avx512() != nullptr) kernels.push_back(attention_avx512());
    return kernels;
}

int32_t pick(Engine &engine, int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(engine);
}

Floats normal(Engine &engine, int64_t n, float scale = 1) {
    std::normal_distribution<float> distribution(0, scale);
    Floats out(static_cast<size_t>(n));
    for (float &x : out) x = distribution(engine);
    return out;
}

// What the cache will hold of x.
Floats rounded_to_half(const Floats &x) {
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
};

// OCP e4m3: 1 sign, 4 bits of exponent (bias 7), 3 of mantissa.
float e4m3(uint8_t bits) {
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    if ((bits & 0x7f) == 0x7f) return NAN;
    const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                          : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    return bits & 0x80 ? -magnitude : magnitude;
}

// The value of cell and dimension of a page, read as attention_formats.h lays it out.
float stored_k(CacheType type, const std::byte *page, int32_t cell, int32_t d) {
    const auto *bytes = reinterpret_cast<const uint8_t *>(page);
    const auto half = [&](int32_t at) { return static_cast<uint16_t>(bytes[at] | bytes[at + 1] << 8); };
    if (type == CacheType::F16) return gguf::f16_to_f32(half(2 * (d * 32 + cell)));
    if (type == CacheType::BF16) return gguf::bf16_to_f32(half(2 * (d * 32 + cell)));
    if (type == CacheType::FP8) return e4m3(bytes[d * 32 + cell]);
    const bool nibbles = type == CacheType::Q4_0;
    const int32_t block = d / 32 * 32 * (nibbles ? 18 : 34), i = d % 32;
    const float scale = gguf::f16_to_f32(half(block + 2 * cell));
    if (!nibbles) return scale * static_cast<float>(static_cast<int8_t>(bytes[block + 64 + i * 32 + cell]));
    return scale *
           static_cast<float>((bytes[block + 64 + i * 16 + cell % 16] >> (cell < 16 ? 0 : 4) & 15) - 8);
}

float stored_v(CacheType type, const std::byte *page, int32_t dims, int32_t cell, int32_t d) {
    const auto *row =
        reinterpret_cast<const uint8_t *>(page) + static_cast<size_t>(cell) * cache_row_bytes(type, dims);
    const auto half = [&](int32_t at) { return static_cast<uint16_t>(row[at] | row[at + 1] << 8); };
    if (type == CacheType::F16) return gguf::f16_to_f32(half(2 * d));
    if (type == CacheType::BF16) return gguf::bf16_to_f32(half(2 * d));
    if (type == CacheType::FP8) return e4m3(row[d]);
    const bool nibbles = type == CacheType::Q4_0;
    const int32_t block = d / 32 * (nibbles ? 18 : 34), i = d % 32;
    const float scale = gguf::f16_to_f32(half(block));
    if (!nibbles) return scale * static_cast<float>(static_cast<int8_t>(row[block + 2 + i]));
    return scale * static_cast<float>((row[block + 2 + i % 16] >> (i < 16 ? 0 : 4) & 15) - 8);
}

// A sequence in a cache with two K/V heads whose blocks lie in random order among others; what nobody has
// written holds `stale`. Queries for every cell, for `heads` query heads of K/V head 1.
class Sequence {
  public:
    Sequence(Engine &engine, Shape sizes, uint16_t stale = kHalfNan, float spread = 1) : shape(sizes) {
        const int32_t blocks = (shape.cells + kBlockTokens - 1) / kBlockTokens, pool = blocks + 3;
        const size_t k_page = kBlockTokens * cache_row_bytes(shape.k_type, shape.head_dim_k);
        const size_t v_page = kBlockTokens * cache_row_bytes(shape.v_type, shape.head_dim_v);
        k_cache_.assign(k_page * static_cast<size_t>(pool), stale);  // of binary16: two heads
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
        if (shape.sink_cells > 0) sink_q = normal(engine, static_cast<int64_t>(q.size()), spread);
        k = normal(engine, int64_t{shape.cells} * shape.head_dim_k);
        v = normal(engine, int64_t{shape.cells} * shape.head_dim_v);
        for (int32_t i = 0; i < shape.cells * shape.head_dim_v && shape.values_are_keys; ++i)
            v[static_cast<size_t>(i)] =
                k[static_cast<size_t>(i / shape.head_dim_v * shape.head_dim_k + i % shape.head_dim_v)];
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
        tile.sink_cells = shape.sink_cells;
        if (shape.sink_cells > 0)
            tile.sink_q = sink_q.data() + int64_t{cell} * shape.heads * shape.head_dim_k;
        return tile;
    }

    // What the cache holds of k and v.
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
    Floats q, k, v, sinks, sink_q;

  private:
    size_t block_of(int32_t cell) const {
        return static_cast<size_t>(table[static_cast<size_t>(cell / kBlockTokens)]);
    }
    std::vector<uint16_t> k_cache_, v_cache_;
};

struct Free {
    void operator()(float *p) const { std::free(p); }
};

// Exactly the promised scratch, so that the sanitizers see an access beyond it; full of NaN.
std::unique_ptr<float, Free> scratch_for(const AttentionTile &tile) {
    const size_t floats =
        attention_scratch(tile.pages.head_dim_k, tile.pages.head_dim_v, tile.tokens * tile.heads);
    std::unique_ptr<float, Free> scratch(
        static_cast<float *>(std::aligned_alloc(64, (floats * sizeof(float) + 63) / 64 * 64)));
    std::fill(scratch.get(), scratch.get() + floats, NAN);
    return scratch;
}

Floats attend(const AttentionKernels &kernels, const Sequence &sequence, int32_t cell, int32_t tokens) {
    Floats out(sequence.rows_size(tokens), NAN);
    const AttentionTile tile = sequence.tile(cell, tokens, out.data());
    kernels.attend(tile, scratch_for(tile).get());
    return out;
}

// The same, as if every range were computed by another thread, in descending order.
Floats attend_in_ranges(const AttentionKernels &kernels, const Sequence &sequence, int32_t cell,
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
Floats attend_one_by_one(const AttentionKernels &kernels, const Sequence &sequence, int32_t cell,
                         int32_t tokens) {
    Floats out(sequence.rows_size(tokens), NAN);
    const AttentionTile whole = sequence.tile(cell, tokens, out.data());
    for (int32_t t = 0; t < tokens; ++t) {
        for (int32_t h = 0; h < whole.heads; ++h) {
            AttentionTile tile = whole;
            tile.q += t * whole.q_stride + h * whole.pages.head_dim_k;
            tile.out += t * whole.out_stride + h * whole.pages.head_dim_v;
            tile.first_cell += t;
            if (tile.sinks) tile.sinks += h;
            if (tile.sink_q) tile.sink_q += t * whole.q_stride + h * whole.pages.head_dim_k;
            tile.tokens = tile.heads = 1;
            kernels.attend(tile, scratch_for(tile).get());
        }
    }
    return out;
}

bool same_bits(const Floats &a, const Floats &b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

float exponential(float x) {
    vector_scalar().exp(&x, 1, &x);
    return x;
}

// One row, literally as attention.h defines it: cells [begin, end) of q's sequence.
struct Partial {
    float m = -1e30f, l = 0;
    Floats o;
};

Partial range_by_definition(const float *q, const Floats &k, const Floats &v, const AttentionTile &tile,
                            int32_t begin, int32_t end) {
    const int32_t dk = tile.pages.head_dim_k, dv = tile.pages.head_dim_v;
    Partial out;
    out.o.assign(static_cast<size_t>(dv), 0.0f);
    float l[16] = {};
    for (int32_t page = begin / 32; page * 32 < end; ++page) {
        float s[32], p[32] = {}, largest = out.m;
        const int32_t first = std::max(begin, page * 32), last = std::min(end, page * 32 + 32);
        for (int32_t cell = first; cell < last; ++cell) {
            float sum = 0;
            for (int32_t d = 0; d < dk; ++d) sum = std::fma(q[d], k[static_cast<size_t>(cell * dk + d)], sum);
            s[cell % 32] = sum * tile.scale;
            if (tile.softcap != 0) vector_scalar().softcap(tile.softcap, s + cell % 32, 1, s + cell % 32);
            largest = std::max(largest, s[cell % 32]);
        }
        if (largest > out.m) {
            const float factor = exponential(out.m - largest);
            for (float &x : l) x *= factor;
            for (float &x : out.o) x *= factor;
            out.m = largest;
        }
        for (int32_t cell = first; cell < last; ++cell) p[cell % 32] = exponential(s[cell % 32] - out.m);
        for (int i = 0; i < 16; ++i) l[i] += p[i] + p[i + 16];
        for (int32_t cell = first; cell < last; ++cell)
            for (int32_t d = 0; d < dv; ++d)
                out.o[static_cast<size_t>(d)] = std::fma(p[cell % 32], v[static_cast<size_t>(cell * dv + d)],
                                                         out.o[static_cast<size_t>(d)]);
    }
    float s[8];
    for (int i = 0; i < 8; ++i) s[i] = l[i] + l[i + 8];
    out.l = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    return out;
}

Floats attend_by_definition(const Sequence &sequence, int32_t cell, int32_t tokens) {
    Floats out;
    const AttentionTile tile = sequence.tile(cell, tokens, nullptr);
    const Floats k = sequence.kept_k(), v = sequence.kept_v();
    for (int32_t row = 0; row < tokens * tile.heads; ++row) {
        const int32_t own = cell + row / tile.heads;
        int32_t seen = tile.window == 0 ? 0
                       : tile.chunked   ? own / tile.window * tile.window
                                        : std::max(0, own - tile.window + 1);
        Partial joined;
        const int32_t sinks = tile.sink_cells;
        if (sinks > 0)
            joined = range_by_definition(tile.sink_q + int64_t{row} * tile.pages.head_dim_k, k, v, tile, 0,
                                         std::min(own + 1, sinks));
        seen = std::max(seen, sinks);
        for (int32_t range = seen / kRangeCells; seen <= own && range <= own / kRangeCells; ++range) {
            const Partial part = range_by_definition(tile.q + int64_t{row} * tile.pages.head_dim_k, k, v,
                                                     tile, std::max(seen, range * kRangeCells),
                                                     std::min(own + 1, (range + 1) * kRangeCells));
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
double error_against_reference(const Sequence &sequence, int32_t cell, int32_t tokens, const Floats &out) {
    const Shape &s = sequence.shape;
    const auto k = reference::to_row(rounded_to_half(sequence.k)),
               v = reference::to_row(rounded_to_half(sequence.v));
    const auto q = reference::to_row(sequence.q), sinks = reference::to_row(sequence.sinks);
    const Attention step{
        .q = 0,
        .k = 1,
        .v = 2,
        .out = 3,
        .layer = 0,
        .heads = s.heads,
        .kv_heads = 1,
        .head_dim_k = s.head_dim_k,
        .head_dim_v = s.head_dim_v,
        .scale = 1 / std::sqrt(static_cast<float>(s.head_dim_k)),
        .window = s.window,
        .window_kind = s.chunked ? Attention::Window::Chunked : Attention::Window::Sliding,
        .softcap = s.softcap,
    };
    double worst = 0;
    for (int32_t t = 0; t < tokens; ++t) {
        const int64_t own = cell + t, width = int64_t{s.heads} * s.head_dim_k;
        const auto expected = reference::attention_heads(
            step, std::span(q).subspan(static_cast<size_t>(own * width), static_cast<size_t>(width)), k,
            s.values_are_keys ? reference::Row{} : v, own, s.sinks ? sinks : reference::Row{});
        for (size_t i = 0; i < expected.size(); ++i) {
            const double difference =
                std::fabs(out[static_cast<size_t>(t) * expected.size() + i] - expected[i]);
            worst = std::isnan(difference) ? 1e9 : std::max(worst, difference);
        }
    }
    return worst;
}

}  // namespace

TEST_CASE("append writes K transposed and V in rows") {
    Engine engine(1);
    for (const AttentionKernels *kernels : all_kernels()) {
        CAPTURE(kernels->name);
        for (const auto &[dk, dv] : std::vector<std::pair<int32_t, int32_t>>{{64, 64}, {33, 47}, {100, 36}}) {
            Sequence sequence(engine, {70, 1, dk, dv, 0});
            sequence.append_all(*kernels, engine);
            std::vector<uint16_t> k(sequence.k.size()), v(sequence.v.size());
            vector_scalar().to_half(sequence.k.data(), static_cast<int64_t>(k.size()), k.data());
            vector_scalar().to_half(sequence.v.data(), static_cast<int64_t>(v.size()), v.data());
            int wrong = 0;
            for (int32_t cell = 0; cell < 96; ++cell) {
                const auto block = static_cast<size_t>(sequence.table[static_cast<size_t>(cell / 32)]);
                const auto *k_page =
                    reinterpret_cast<const uint16_t *>(sequence.pages.k + block * sequence.pages.k_stride);
                const auto *v_page =
                    reinterpret_cast<const uint16_t *>(sequence.pages.v + block * sequence.pages.v_stride);
                const bool written = cell < 70;
                for (int32_t d = 0; d < dk; ++d)
                    wrong += k_page[d * 32 + cell % 32] !=
                             (written ? k[static_cast<size_t>(cell * dk + d)] : kHalfNan);
                for (int32_t d = 0; d < dv; ++d)
                    wrong += v_page[cell % 32 * dv + d] !=
                             (written ? v[static_cast<size_t>(cell * dv + d)] : kHalfNan);
            }
            CHECK(wrong == 0);
        }
    }
}

TEST_CASE("attention: against double precision over random shapes") {
    Engine engine(2);
    const std::vector<int32_t> dims{1, 7, 16, 32, 33, 48, 64, 80, 96, 100, 128, 192, 256};
    const auto any_dim = [&] {
        return dims[static_cast<size_t>(pick(engine, 0, static_cast<int32_t>(dims.size()) - 1))];
    };
    for (int round = 0; round < 80; ++round) {
        const int32_t tokens = round % 3 == 0 ? 1 : pick(engine, 1, 40);
        const int32_t past = pick(engine, 0, 3) == 0 ? 0 : pick(engine, 0, 200);
        const int32_t heads =
            std::vector<int32_t>{1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 64}[static_cast<size_t>(round) % 11];
        const int32_t head_dim_k = any_dim();
        const bool values_are_keys = round % 7 == 3;
        const Shape shape{past + tokens,
                          heads,
                          head_dim_k,
                          values_are_keys  ? std::max(1, head_dim_k - 16)
                          : round % 4 == 0 ? any_dim()
                                           : head_dim_k,
                          round % 2 == 0 ? 0 : pick(engine, 1, past + tokens),
                          round % 3 == 0,
                          round % 5 == 1 ? 3.0f : 0,
                          round % 4 == 1,
                          values_are_keys};
        CAPTURE(round);
        CAPTURE(tokens);
        CAPTURE(past);
        CAPTURE(heads);
        CAPTURE(shape.head_dim_k);
        CAPTURE(shape.head_dim_v);
        CAPTURE(shape.window);
        CAPTURE(shape.chunked);
        CAPTURE(shape.softcap);
        CAPTURE(shape.sinks);
        CAPTURE(values_are_keys);
        Sequence sequence(engine, shape, round % 5 == 0 ? kHalfInfinity : kHalfNan, 2);
        sequence.append_all(attention_best(), engine);
        const Floats scalar = attend(attention_scalar(), sequence, past, tokens);
        CHECK(error_against_reference(sequence, past, tokens, scalar) < 5e-6);
        for (const AttentionKernels *kernels : all_kernels()) {
            CAPTURE(kernels->name);
            CHECK(same_bits(attend(*kernels, sequence, past, tokens), scalar));
            CHECK(same_bits(attend_in_ranges(*kernels, sequence, past, tokens), scalar));
            CHECK(same_bits(attend_one_by_one(*kernels, sequence, past, tokens), scalar));
        }
    }
}

TEST_CASE("attention: rows are what the header defines, to the last bit") {
    Engine engine(7);
    for (const Shape shape :
         {Shape{1, 1, 32, 32, 0}, Shape{1090, 3, 33, 20, 0}, Shape{1090, 3, 33, 20, 600},
          Shape{700, 8, 64, 64, 33}, Shape{45, 5, 80, 96, 0}, Shape{1090, 3, 33, 20, 600, true, 4, true},
          Shape{540, 2, 64, 48, 0, false, 0, true, true}}) {
        CAPTURE(shape.cells);
        CAPTURE(shape.window);
        Sequence sequence(engine, shape, kHalfNan, 3);
        sequence.append_all(attention_best(), engine);
        const int32_t tokens = std::min(shape.cells, 9), cell = shape.cells - tokens;
        CHECK(same_bits(attend(attention_best(), sequence, cell, tokens),
                        attend_by_definition(sequence, cell, tokens)));
    }
}

TEST_CASE("attention: page and range boundaries, windows") {
    Engine engine(3);
    for (const int32_t cells : {1, 31, 32, 33, 64, 65, 511, 512, 513, 1023, 1024, 1025, 1100}) {
        for (const int32_t window : {0, 1, 2, 31, 32, 33, 500, 512, 513, 1024}) {
            CAPTURE(cells);
            CAPTURE(window);
            Sequence sequence(engine, {cells, 3, 33, 40, window});
            sequence.append_all(attention_best(), engine);
            const int32_t tokens = std::min(cells, 4);
            const Floats scalar = attend(attention_scalar(), sequence, cells - tokens, tokens);
            CHECK(error_against_reference(sequence, cells - tokens, tokens, scalar) < 5e-6);
            for (const AttentionKernels *kernels : all_kernels()) {
                CAPTURE(kernels->name);
                CHECK(same_bits(attend(*kernels, sequence, cells - tokens, tokens), scalar));
                CHECK(same_bits(attend_in_ranges(*kernels, sequence, cells - tokens, tokens), scalar));
                CHECK(same_bits(attend_one_by_one(*kernels, sequence, cells - tokens, tokens), scalar));
            }
        }
    }
}

TEST_CASE("attention: a prompt in any chunks gives the same rows as token by token") {
    Engine engine(4);
    for (const Shape shape : {Shape{600, 1, 64, 64, 0}, Shape{560, 4, 32, 32, 100}, Shape{150, 7, 80, 80, 0},
                              Shape{90, 16, 36, 36, 37}}) {
        CAPTURE(shape.cells);
        CAPTURE(shape.heads);
        Floats expected;
        {
            Sequence sequence(engine, shape);
            const AttentionKernels &kernels = attention_best();
            for (int32_t cell = 0; cell < shape.cells; ++cell) {
                sequence.append(kernels, cell, 1);
                const Floats row = attend(kernels, sequence, cell, 1);
                expected.insert(expected.end(), row.begin(), row.end());
            }
            for (const int32_t chunk : {2, 3, 16, 17, 31, 32, 33, 64}) {
                CAPTURE(chunk);
                Floats out;
                for (int32_t cell = 0; cell < shape.cells; cell += chunk) {
                    const Floats rows = attend(kernels, sequence, cell, std::min(chunk, shape.cells - cell));
                    out.insert(out.end(), rows.begin(), rows.end());
                }
                CHECK(same_bits(out, expected));
            }
        }
    }
}

TEST_CASE("attention: what a row does not see does not reach it") {
    Engine engine(5);
    for (const AttentionKernels *kernels : all_kernels()) {
        for (const int32_t window : {0, 40}) {
            CAPTURE(kernels->name);
            CAPTURE(window);
            const int32_t cells = 150, first = 118, tokens = 32;
            Sequence clean(engine, {cells, 2, 64, 64, window});
            clean.append_all(*kernels, engine);
            const Floats expected = attend(*kernels, clean, first, tokens);

            // A later token of the same tile holds NaN and infinities: only rows from there on change.
            const int32_t poisoned = 133;
            for (int32_t d = 0; d < 64; ++d) {
                clean.k[static_cast<size_t>(poisoned * 64 + d)] = d % 2 == 0 ? NAN : INFINITY;
                clean.v[static_cast<size_t>(poisoned * 64 + d)] = d % 2 == 0 ? INFINITY : NAN;
            }
            clean.append(*kernels, poisoned, 1);
            const Floats out = attend(*kernels, clean, first, tokens);
            const size_t before = clean.rows_size(poisoned - first);
            CHECK(std::memcmp(out.data(), expected.data(), before * sizeof(float)) == 0);
            CHECK(std::all_of(out.begin() + static_cast<ptrdiff_t>(before), out.end(),
                              [](float x) { return std::isnan(x); }));

            // Blocks that left the window are never looked up.
            if (window == 0) continue;
            const int32_t seen = 79;  // the first cell that the tile's first row sees
            std::fill(clean.table.begin(), clean.table.begin() + seen / kBlockTokens, 1 << 30);
            CHECK(std::memcmp(attend(*kernels, clean, first, tokens).data(), expected.data(),
                              before * sizeof(float)) == 0);
        }
    }
}

TEST_CASE("attention: large and equal scores") {
    Engine engine(6);
    Sequence sequence(engine, {1200, 8, 64, 64, 0}, kHalfNan, 200);
    sequence.append_all(attention_best(), engine);
    const Floats scalar = attend(attention_scalar(), sequence, 1196, 4);
    CHECK(error_against_reference(sequence, 1196, 4, scalar) <
          2e-4);  // scores of +-600 keep 4 digits behind the point
    for (const AttentionKernels *kernels : all_kernels()) {
        CAPTURE(kernels->name);
        CHECK(same_bits(attend(*kernels, sequence, 1196, 4), scalar));
        CHECK(same_bits(attend_in_ranges(*kernels, sequence, 1196, 4), scalar));
    }
    // All queries zero: the mean of the values.
    std::fill(sequence.q.begin(), sequence.q.end(), 0.0f);
    CHECK(error_against_reference(sequence, 1196, 4, attend(attention_best(), sequence, 1196, 4)) < 1e-6);
}

TEST_CASE("attention: K and V in every pair of types, read as the layout says, to the last bit") {
    Engine engine(8);
    const CacheType types[] = {CacheType::F16, CacheType::BF16, CacheType::Q8_0, CacheType::Q4_0,
                               CacheType::FP8};
    int round = 0;
    for (const CacheType k_type : types)
        for (const CacheType v_type : types) {
            const std::pair<int32_t, int32_t> dims[] = {{64, 64}, {33, 47}, {80, 36}, {128, 128}, {7, 16}};
            const auto [dk, dv] = dims[round++ % 5];
            CAPTURE(static_cast<int>(k_type));
            CAPTURE(static_cast<int>(v_type));
            CAPTURE(dk);
            Shape shape{round % 2 == 0 ? 90 : 700, round % 3 == 0 ? 16 : 3, dk, dv, round % 4 == 0 ? 50 : 0};
            shape.k_type = k_type, shape.v_type = v_type;
            shape.values_are_keys = round % 6 == 5 && dv <= dk;
            Sequence sequence(engine, shape);
            sequence.append_all(attention_best(), engine);
            const int32_t tokens = 5, cell = shape.cells - tokens;
            const Floats expected = attend_by_definition(sequence, cell, tokens);
            for (const AttentionKernels *kernels : all_kernels()) {
                CAPTURE(kernels->name);
                sequence.append_all(*kernels, engine);
                CHECK(same_bits(attend(*kernels, sequence, cell, tokens), expected));
                CHECK(same_bits(attend_in_ranges(*kernels, sequence, cell, tokens), expected));
            }
            const Floats k = sequence.kept_k(), v = sequence.kept_v();
            const auto error = [](CacheType type) {  // of values around 1, at most 5
                return type == CacheType::F16    ? 0.003
                       : type == CacheType::BF16 ? 0.02
                       : type == CacheType::Q8_0 ? 0.025
                       : type == CacheType::Q4_0 ? 0.71
                                                 : 0.26;
            };
            double worst_k = 0, worst_v = 0;
            for (size_t i = 0; i < k.size(); ++i)
                worst_k = std::max(worst_k, std::fabs(double(k[i]) - double(sequence.k[i])));
            for (size_t i = 0; i < v.size(); ++i)
                worst_v = std::max(worst_v, std::fabs(double(v[i]) - double(sequence.v[i])));
            CHECK(worst_k < error(k_type));
            CHECK(worst_v < error(shape.values_are_keys ? k_type : v_type));
        }
}

TEST_CASE("attention: numbers that a type cannot hold") {
    Engine engine(9);
    for (const CacheType type : {CacheType::BF16, CacheType::Q8_0, CacheType::Q4_0, CacheType::FP8}) {
        CAPTURE(static_cast<int>(type));
        Shape shape{5, 1, 40, 40, 0};
        shape.k_type = shape.v_type = type;
        Sequence sequence(engine, shape);
        sequence.append_all(attention_best(), engine);
        for (const auto &[given, kept] :
             {std::pair{0.0f, 0.0f}, {1e-30f, 0.0f}, {500.0f, 448.0f}, {-1e5f, -448.0f}}) {
            std::fill(sequence.v.begin(), sequence.v.begin() + 40, given);
            sequence.append(attention_best(), 0, 1);
            const float expected = type == CacheType::FP8 ? kept : given;
            CHECK(sequence.kept_v()[39] == doctest::Approx(expected).epsilon(0.01).scale(1e-20));
        }
        for (const float broken : {NAN, INFINITY}) {  // shows in what is computed from it
            sequence.v[3] = broken;
            sequence.append(attention_best(), 0, 1);
            CHECK_FALSE(std::isfinite(attend(attention_best(), sequence, 0, 1)[3]));
        }
    }
}

TEST_CASE("attention: sink cells are seen from everywhere, with queries of their own") {
    Engine engine(10);
    for (const int32_t sinks : {1, 4, 31, 32, 33, 100, 512})
        for (const int32_t window : {1, 30, 64, 600}) {
            CAPTURE(sinks);
            CAPTURE(window);
            Shape shape{1090, 3, 33, 20, window};
            shape.sink_cells = sinks;
            shape.sinks = window == 30;
            Sequence sequence(engine, shape);
            sequence.append_all(attention_best(), engine);
            for (const int32_t cell : {0, 3, sinks - 1, sinks, 505, 1083}) {
                CAPTURE(cell);
                const Floats expected = attend_by_definition(sequence, cell, 7);
                for (const AttentionKernels *kernels : all_kernels()) {
                    CAPTURE(kernels->name);
                    CHECK(same_bits(attend(*kernels, sequence, cell, 7), expected));
                    CHECK(same_bits(attend_in_ranges(*kernels, sequence, cell, 7), expected));
                    CHECK(same_bits(attend_one_by_one(*kernels, sequence, cell, 7), expected));
                }
            }
        }
}

TEST_CASE("attention: a Hadamard rotation is its own inverse, keeps lengths, and spreads an outlier") {
    Engine engine(11);
    for (const int32_t dims : {1, 2, 8, 33, 64, 80, 96, 128}) {
        CAPTURE(dims);
        const Floats x = normal(engine, 3 * dims);
        Floats y = x;
        rotate_heads(y.data(), 3, dims);
        double before = 0, after = 0;
        for (size_t i = 0; i < x.size(); ++i) before += double(x[i]) * x[i], after += double(y[i]) * y[i];
        CHECK(after == doctest::Approx(before).epsilon(1e-5));
        rotate_heads(y.data(), 3, dims);
        for (size_t i = 0; i < x.size(); ++i) CHECK(y[i] == doctest::Approx(x[i]).epsilon(1e-5).scale(1));
    }
    Floats one(64, 0.0f);
    one[5] = 8;
    rotate_heads(one.data(), 1, 64);
    CHECK(std::all_of(one.begin(), one.end(), [](float v) { return std::fabs(v) == 1.0f; }));
}
