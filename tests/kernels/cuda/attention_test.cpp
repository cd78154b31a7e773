#include "kernels/cuda/attention.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "gguf/half.h"
#include "tests/simt/buffer.h"
#include "tests/simt/simt.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"

using namespace runnel;
using namespace runnel::kernels::cuda;
using simt::Buffer;

namespace {

struct Sequence {
    int32_t past, count;
};

struct Shape {
    kernels::Attention step;  // heads, dims, scale, window, softcap, norm order
    std::vector<Sequence> sequences;
    std::optional<kernels::RopeTable> rope;
    bool head_norm = false, sinks = false, factors = false;
    CacheType type = CacheType::F16;
    int32_t first_position = 0;  // of every sequence's cell 0
};

enum class Way { Decode, Prefill, Split };  // Split: by rows, at 16

// A batch on the host: what goes in, and the exact results.
struct Problem {
    Shape shape;
    std::vector<float> q, k, v;  // [token][heads][dim]
    std::vector<float> q_norm, k_norm, sinks, factors;
    std::vector<int32_t> positions;
    std::vector<std::vector<float>> old_k,
        old_v;  // per sequence: [cell][kv_head][dim], values of the cache's type
    std::vector<int32_t> tables;
    int64_t table_stride = 0;
    int32_t blocks = 0;

    int32_t tokens() const { return static_cast<int32_t>(positions.size()); }
};

uint16_t round16(CacheType type, float x) {
    return type == CacheType::F16 ? gguf::f32_to_f16(x) : gguf::f32_to_bf16(x);
}
float widen(CacheType type, uint16_t x) {
    return type == CacheType::F16 ? gguf::f16_to_f32(x) : gguf::bf16_to_f32(x);
}

std::vector<float> normals(testing::Random &random, size_t count) {
    std::vector<float> x(count);
    for (float &value : x) value = random.normal();
    return x;
}

Problem make_problem(const Shape &shape, uint64_t seed) {
    testing::Random random(seed);
    const auto &a = shape.step;
    const auto size = [](int64_t n) { return static_cast<size_t>(n); };
    Problem p{shape, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}};
    for (const Sequence &s : shape.sequences) {
        for (int32_t i = 0; i < s.count; ++i) p.positions.push_back(shape.first_position + s.past + i);
        const auto cells = [&](int32_t dim) {
            std::vector<float> x = normals(random, size(s.past) * size(a.kv_heads) * size(dim));
            for (float &value : x) value = widen(shape.type, round16(shape.type, value));
            return x;
        };
        p.old_k.push_back(cells(a.head_dim_k));
        p.old_v.push_back(cells(a.head_dim_v));
        p.table_stride = std::max<int64_t>(p.table_stride, (s.past + s.count + 31) / 32);
        p.blocks += (s.past + s.count + 31) / 32;
    }
    const size_t tokens = p.positions.size();
    p.q = normals(random, tokens * size(a.heads) * size(a.head_dim_k));
    p.k = normals(random, tokens * size(a.kv_heads) * size(a.head_dim_k));
    p.v = normals(random, tokens * size(a.kv_heads) * size(a.head_dim_v));
    const auto around_one = [&](size_t n) {
        std::vector<float> x(n);
        for (float &value : x) value = 0.5f + random.uniform();
        return x;
    };
    if (shape.head_norm) p.q_norm = around_one(size(a.head_dim_k)), p.k_norm = around_one(size(a.head_dim_k));
    if (shape.sinks) p.sinks = normals(random, size(a.heads));
    if (shape.factors) p.factors = around_one(tokens);
    // Blocks in random order; entries beyond a sequence's end are nonsense that must not be used.
    std::vector<int32_t> ids(size(p.blocks));
    std::iota(ids.begin(), ids.end(), 0);
    for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[random.below(i)]);
    p.tables.assign(shape.sequences.size() * size(p.table_stride), -1);
    size_t next = 0;
    for (size_t s = 0; s < shape.sequences.size(); ++s)
        for (int32_t b = 0; b < (shape.sequences[s].past + shape.sequences[s].count + 31) / 32; ++b)
            p.tables[s * size(p.table_stride) + size(b)] = ids[next++];
    return p;
}

// Where cell `cell` of a head lies in the cache.
size_t place(const Problem &p, size_t sequence, int32_t cell, int32_t head, int32_t dim) {
    const int64_t block =
        p.tables[sequence * static_cast<size_t>(p.table_stride) + static_cast<size_t>(cell) / 32];
    return static_cast<size_t>(((block * p.shape.step.kv_heads + head) * 32 + cell % 32) * dim);
}

struct Result {
    std::vector<float> out;
    std::vector<uint16_t> k_cache, v_cache;
    std::vector<simt::LaunchReport> reports;
};

std::vector<uint16_t> old_cache(const Problem &p, const std::vector<std::vector<float>> &old, int32_t dim) {
    const auto kv_heads = p.shape.step.kv_heads;
    std::vector<uint16_t> cache(static_cast<size_t>(p.blocks) * static_cast<size_t>(kv_heads * 32 * dim),
                                0x7fffu);
    for (size_t s = 0; s < old.size(); ++s)
        for (int32_t cell = 0; cell < p.shape.sequences[s].past; ++cell)
            for (int32_t head = 0; head < kv_heads; ++head)
                for (int32_t d = 0; d < dim; ++d)
                    cache[place(p, s, cell, head, dim) + static_cast<size_t>(d)] = round16(
                        p.shape.type, old[s][static_cast<size_t>((cell * kv_heads + head) * dim + d)]);
    return cache;
}

Result run(const Problem &p, Way way, uint32_t blocks = 3) {
    const Shape &shape = p.shape;
    const auto &a = shape.step;
    Stream stream;
    const Buffer<float> q(stream, p.q, "q"), k(stream, p.k, "k"), v(stream, p.v, "v");
    const Buffer<float> out(stream, p.positions.size() * static_cast<size_t>(a.heads * a.head_dim_v), "out");
    const Buffer<uint16_t> k_cache(stream, old_cache(p, p.old_k, a.head_dim_k), "K cache");
    const Buffer<uint16_t> v_cache(stream, old_cache(p, p.old_v, a.head_dim_v), "V cache");
    std::vector<SequenceInfo> infos;
    int32_t first = 0, items = 0, tiles = 1;
    for (const Sequence &s : shape.sequences) {
        infos.push_back({first, s.count, s.past, 0});
        first += s.count;
        const int32_t mine = (s.count * (a.heads / a.kv_heads) + 15) / 16;
        tiles = std::max(tiles, mine);
        items += mine * a.kv_heads * ((s.past + s.count + 255) / 256);
    }
    const Buffer<SequenceInfo> sequences(stream, infos, "sequences");
    const Buffer<int32_t> count(stream, std::vector{static_cast<int32_t>(infos.size())}, "sequence count");
    const Buffer<int32_t> tables(stream, p.tables, "tables"), positions(stream, p.positions, "positions");
    const auto optional = [&](const std::vector<float> &x, const char *name) {
        return Buffer<float>(stream, x.empty() ? std::vector<float>{0} : x, name, Region::Weights);
    };
    const Buffer<float> q_norm = optional(p.q_norm, "q norm"), k_norm = optional(p.k_norm, "k norm");
    const Buffer<float> sinks = optional(p.sinks, "sinks"), factors = optional(p.factors, "factors");
    const Buffer<float> partial(stream, static_cast<size_t>(attention_partial_floats(items, a.head_dim_v)),
                                "partial");
    const Buffer<uint32_t> counters(
        stream, std::vector<uint32_t>(infos.size() * static_cast<size_t>(a.kv_heads * tiles), 0), "counters");
    const Buffer<float> totals(stream, size_t{blocks} * 64 * 128, "totals");
    std::vector<uint64_t> turns = {0};
    if (shape.rope) {
        turns.clear();
        for (const double f : shape.rope->inv_freq) turns.push_back(rope_turns(f));
    }
    const Buffer<uint64_t> turn_table(stream, turns, "rope", Region::Weights);

    AttentionParams params{};
    params.q = q.data(), params.k = k.data(), params.v = v.data(), params.out = out.data();
    params.q_stride = a.heads * a.head_dim_k, params.k_stride = a.kv_heads * a.head_dim_k;
    params.v_stride = a.kv_heads * a.head_dim_v, params.out_stride = a.heads * a.head_dim_v;
    params.k_cache = k_cache.data(), params.v_cache = v_cache.data();
    params.sequences = sequences.data(), params.sequence_count = count.data();
    params.tables = tables.data(), params.table_stride = p.table_stride, params.positions = positions.data();
    params.q_factors = p.factors.empty() ? nullptr : factors.data();
    params.q_norm = p.q_norm.empty() ? nullptr : q_norm.data();
    params.k_norm = p.k_norm.empty() ? nullptr : k_norm.data();
    params.sinks = p.sinks.empty() ? nullptr : sinks.data();
    params.partial = partial.data(), params.counters = counters.data(), params.totals = totals.data();
    if (shape.rope)
        params.rope = {turn_table.data(), shape.rope->magnitude,
                       shape.rope->pairs == kernels::RopeTable::Pairs::Adjacent ? RopePairs::Adjacent
                                                                                : RopePairs::Halves,
                       shape.rope->first, static_cast<int32_t>(2 * shape.rope->inv_freq.size())};
    params.heads = a.heads, params.kv_heads = a.kv_heads, params.dim_k = a.head_dim_k,
    params.dim_v = a.head_dim_v;
    params.scale = a.scale, params.softcap = a.softcap, params.softcap_inverse = 1.0f / a.softcap,
    params.norm_eps = a.norm_eps;
    params.window = a.window;
    params.chunked = a.window_kind == kernels::Attention::Window::Chunked;
    params.norm_after_rope = a.norm_after_rope;
    params.max_tiles = tiles;

    simt::take_reports();
    const int32_t limit = way == Way::Decode ? 1 << 30 : way == Way::Prefill ? 0 : 16;
    params.min_rows = 0, params.max_rows = limit;
    launch(stream, attention_decode_kernel(shape.type, a.head_dim_k, a.head_dim_v),
           {blocks, attention_decode_shared(a.head_dim_k, a.head_dim_v), true}, params);
    params.min_rows = limit, params.max_rows = 1 << 30;
    launch(stream, attention_append_kernel(shape.type), {blocks, kAppendShared, true}, params);
    launch(stream, attention_prefill_kernel(shape.type, a.head_dim_k, a.head_dim_v),
           {blocks, attention_prefill_shared(a.head_dim_k, a.head_dim_v), true}, params);
    Result result{out.read(), k_cache.read(), v_cache.read(), simt::take_reports()};
    for (const uint32_t c : counters.read()) REQUIRE(c == 0);
    return result;
}

// --- the exact result ------------------------------------------------------------------------------------

reference::Row exact_head(const Problem &p, const float *x, int32_t dim, const std::vector<float> &norm,
                          int32_t position) {
    const auto &a = p.shape.step;
    reference::Row head(x, x + dim);
    const auto normalise = [&] {
        if (!norm.empty())
            head = reference::rms_norm(head, reference::to_row(norm), static_cast<double>(a.norm_eps));
    };
    if (!a.norm_after_rope) normalise();
    if (p.shape.rope) reference::rope(head, *p.shape.rope, position);
    if (a.norm_after_rope) normalise();
    return head;
}

// [token][heads * dim_v]
std::vector<reference::Row> exact(const Problem &p) {
    const auto &a = p.shape.step;
    std::vector<reference::Row> rows;
    size_t token = 0;
    for (size_t s = 0; s < p.shape.sequences.size(); ++s) {
        reference::Row k = reference::to_row(p.old_k[s]), v = reference::to_row(p.old_v[s]);
        for (int32_t i = 0; i < p.shape.sequences[s].count; ++i, ++token) {
            const int32_t position = p.positions[token];
            for (int32_t head = 0; head < a.kv_heads; ++head) {
                const float *from =
                    &p.k[(token * static_cast<size_t>(a.kv_heads) + static_cast<size_t>(head)) *
                         static_cast<size_t>(a.head_dim_k)];
                for (const double x : exact_head(p, from, a.head_dim_k, p.k_norm, position))
                    k.push_back(double{widen(p.shape.type, round16(p.shape.type, static_cast<float>(x)))});
            }
            const size_t width = static_cast<size_t>(a.kv_heads * a.head_dim_v);
            for (size_t d = 0; d < width; ++d)
                v.push_back(double{widen(p.shape.type, round16(p.shape.type, p.v[token * width + d]))});
            reference::Row q;
            for (int32_t head = 0; head < a.heads; ++head) {
                const float *from = &p.q[(token * static_cast<size_t>(a.heads) + static_cast<size_t>(head)) *
                                         static_cast<size_t>(a.head_dim_k)];
                for (double x : exact_head(p, from, a.head_dim_k, p.q_norm, position)) {
                    if (!p.factors.empty()) x *= static_cast<double>(p.factors[token]);
                    q.push_back(double{widen(p.shape.type, round16(p.shape.type, static_cast<float>(x)))});
                }
            }
            rows.push_back(reference::attention_heads(a, q, k, v, p.shape.sequences[s].past + i,
                                                      reference::to_row(p.sinks)));
        }
    }
    return rows;
}

void check_close(const Problem &p, const Result &result) {
    const std::vector<reference::Row> rows = exact(p);
    // p is rounded to 11 (8) bits, q and k may fall to the other side of a tie.
    const double tolerance = p.shape.type == CacheType::F16 ? 2e-3 : 1.6e-2;
    size_t at = 0;
    for (size_t token = 0; token < rows.size(); ++token)
        for (const double x : rows[token]) {
            CAPTURE(token);
            CAPTURE(at);
            REQUIRE(std::abs(static_cast<double>(result.out[at++]) - x) <= tolerance);
        }
}

kernels::Attention attention(int32_t heads, int32_t kv_heads, int32_t dim_k, int32_t dim_v) {
    kernels::Attention a{};
    a.heads = heads, a.kv_heads = kv_heads, a.head_dim_k = dim_k, a.head_dim_v = dim_v;
    a.scale = 1.0f / std::sqrt(static_cast<float>(dim_k));
    a.norm_eps = 1e-6f;
    return a;
}

kernels::RopeTable rope_table(kernels::RopeTable::Pairs pairs, int32_t rotated) {
    kernels::RopeTable table{pairs, 1, {}, 0};
    for (int32_t j = 0; j < rotated / 2; ++j) table.inv_freq.push_back(std::pow(10000.0, -2.0 * j / rotated));
    return table;
}

template <class T>
bool same_bits(const std::vector<T> &a, const std::vector<T> &b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Both kernels against the reference, and against each other bit for bit.
void check_shape(const Shape &shape, uint64_t seed) {
    CAPTURE(seed);
    CAPTURE(shape.step.heads);
    CAPTURE(shape.step.head_dim_k);
    CAPTURE(shape.step.head_dim_v);
    const Problem p = make_problem(shape, seed);
    const Result decode = run(p, Way::Decode), prefill = run(p, Way::Prefill);
    check_close(p, decode);
    CHECK(same_bits(decode.out, prefill.out));
    CHECK(same_bits(decode.k_cache, prefill.k_cache));
    CHECK(same_bits(decode.v_cache, prefill.v_cache));
}

}  // namespace

TEST_CASE("cuda attention: lengths around pages, steps and splits") {
    for (const int32_t past : {0, 1, 31, 63, 64, 255, 256, 257, 700}) {
        CAPTURE(past);
        check_shape({attention(4, 2, 32, 32), {{past, 1}}, {}}, 1);
    }
    check_shape({attention(4, 2, 32, 32), {{250, 9}, {0, 3}, {511, 2}}, {}}, 2);
}

TEST_CASE("cuda attention: head sizes, groups and both 16-bit types") {
    uint64_t seed = 10;
    for (const CacheType type : {CacheType::F16, CacheType::BF16})
        for (const auto &[dim_k, dim_v] :
             {std::pair{16, 16}, {40, 24}, {64, 64}, {72, 80}, {128, 128}, {192, 128}, {256, 256}}) {
            const int32_t group = std::vector{1, 5, 7, 14, 3, 8, 2}[seed % 7];
            check_shape(
                {attention(2 * group, 2, dim_k, dim_v), {{70, 2}, {300, 1}}, {}, false, false, false, type},
                seed++);
        }
}

TEST_CASE("cuda attention: head norm, RoPE, temperature") {
    using Pairs = kernels::RopeTable::Pairs;
    for (const Pairs pairs : {Pairs::Adjacent, Pairs::Halves})
        for (const bool after : {false, true}) {
            Shape shape{
                attention(4, 1, 64, 64), {{100, 3}, {0, 2}}, rope_table(pairs, 64), true, false, true};
            shape.step.norm_after_rope = after;
            shape.first_position = 99000;
            check_shape(shape, 30 + static_cast<uint64_t>(after));
            shape.rope = rope_table(pairs, 32);
            shape.rope->first = 16;
            shape.rope->magnitude = 1.25f;
            shape.head_norm = false;
            check_shape(shape, 32);
        }
}

TEST_CASE("cuda attention: windows, soft-cap and sinks") {
    for (const int32_t window : {1, 40, 64, 300})
        for (const auto kind : {kernels::Attention::Window::Sliding, kernels::Attention::Window::Chunked}) {
            Shape shape{attention(4, 2, 32, 32), {{600, 4}, {20, 2}, {299, 20}}, {}, false, true};
            shape.step.window = window;
            shape.step.window_kind = kind;
            shape.step.softcap = window == 40 ? 2.0f : 0.0f;
            CAPTURE(window);
            check_shape(shape, 40);
        }
}

TEST_CASE(
    "cuda attention: a row's bits do not depend on the batch, the grid, the chunks or the order of blocks") {
    const Shape whole{
        attention(6, 2, 64, 64), {{0, 300}, {40, 2}}, rope_table(kernels::RopeTable::Pairs::Halves, 64)};
    const Problem p = make_problem(whole, 50);
    const Result reference = run(p, Way::Prefill, 1);
    CHECK(same_bits(reference.out, run(p, Way::Split, 7).out));
    simt::settings().seed = 77;
    CHECK(same_bits(reference.out, run(p, Way::Decode, 5).out));
    simt::settings() = {};
    // The last 37 tokens of the first sequence as a chunk of their own: its past is what was cached.
    const auto &a = whole.step;
    Problem tail = p;
    const int32_t past = 263;
    tail.shape.sequences = {{past, 300 - past}};
    tail.old_k.resize(1), tail.old_v.resize(1);
    for (int32_t cell = 0; cell < past; ++cell)
        for (int32_t i = 0; i < a.kv_heads * a.head_dim_k; ++i) {
            const size_t at =
                place(p, 0, cell, i / a.head_dim_k, a.head_dim_k) + static_cast<size_t>(i % a.head_dim_k);
            tail.old_k[0].push_back(widen(CacheType::F16, reference.k_cache[at]));
            tail.old_v[0].push_back(widen(CacheType::F16, reference.v_cache[at]));
        }
    const auto cut = [&](std::vector<float> &x, int32_t width) {
        x.erase(x.begin(), x.begin() + past * width);
        x.resize(static_cast<size_t>((300 - past) * width));
    };
    cut(tail.q, a.heads * a.head_dim_k), cut(tail.k, a.kv_heads * a.head_dim_k),
        cut(tail.v, a.kv_heads * a.head_dim_v);
    tail.positions = std::vector<int32_t>(p.positions.begin() + past, p.positions.begin() + 300);
    for (const Way way : {Way::Decode, Way::Prefill}) {
        const Result chunk = run(tail, way);
        const std::vector<float> expected(reference.out.begin() + past * a.heads * a.head_dim_v,
                                          reference.out.begin() + 300 * a.heads * a.head_dim_v);
        CHECK(same_bits(chunk.out, expected));
    }
}

TEST_CASE("cuda attention: decode reads every K/V byte once") {
    const Problem p = make_problem({attention(8, 2, 64, 64), {{511, 1}, {100, 1}}, {}}, 60);
    const Result result = run(p, Way::Decode);
    const auto &traffic = result.reports[0].traffic;
    constexpr uint64_t kCells = 511 + 100, kHeadBytes = 2 * 64 * 2;
    CHECK(traffic.at("K cache").read == kCells * kHeadBytes);
    CHECK(traffic.at("V cache").read == kCells * kHeadBytes);
    CHECK(traffic.at("K cache").written == 2 * kHeadBytes);
    CHECK(traffic.at("out").written == 2 * 8 * 64 * 4);
    CHECK(traffic.at("partial").written == 2 * 2 * 16 * (64 + 2) * 4);  // the long sequence's two splits
}
