#include "tests/kernels/cuda/attention/attention_problem.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "tests/simt/buffer.h"
#include "tests/simt/run_kernel.h"
#include "tests/simt/simt.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"

namespace runnel::tests {

using namespace kernels::cuda;
using simt::Buffer;

namespace {

std::vector<float> normals(testing::Random &random, size_t count) {
    std::vector<float> x(count);
    for (float &value : x) value = random.normal();
    return x;
}

// The page with a cell of a head.
size_t page(const Problem &p, size_t sequence, int32_t cell, int32_t head) {
    const int64_t block =
        p.tables[sequence * static_cast<size_t>(p.table_stride) + static_cast<size_t>(cell) / 32];
    return static_cast<size_t>(block * p.shape.step.kv_heads + head);
}

Bytes old_cache(const Problem &p, const std::vector<std::vector<CacheCell>> &old, CacheType type,
                int32_t dim) {
    const auto kv_heads = p.shape.step.kv_heads;
    Bytes cache(std::max<size_t>(
                    static_cast<size_t>(p.blocks * kv_heads * 32) * kernels::cache_row_bytes(type, dim), 1),
                0x7f);
    if (dim == 0) return cache;
    for (size_t s = 0; s < old.size(); ++s)
        for (int32_t cell = 0; cell < p.shape.sequences[s].past; ++cell)
            for (int32_t head = 0; head < kv_heads; ++head)
                write_cell(old[s][static_cast<size_t>(cell * kv_heads + head)], cache, page(p, s, cell, head),
                           cell % 32);
    return cache;
}

// Reads one cell of all heads, as the matrix products read it.
void read_values(const Problem &p, const Bytes &cache, CacheType type, int32_t dim, size_t sequence,
                 int32_t cell, reference::Row &to) {
    for (int32_t head = 0; head < p.shape.step.kv_heads; ++head) {
        const CacheCell found = read_cell(type, dim, cache, page(p, sequence, cell, head), cell % 32);
        for (int32_t d = 0; d < dim; ++d) to.push_back(value_of(found, d));
    }
}

void launch_narrow(Stream &stream, AttentionParams params, Way way, uint32_t blocks) {
    const CacheType k = params.k_cache.type, v = params.v_cache.type;
    const int32_t limit = way == Way::Decode ? 1 << 30 : way == Way::Prefill ? 0 : 16;
    params.min_rows = 0, params.max_rows = limit;
    simt::run_kernel(stream, attention_decode_kernel(k, v, params.dim_k, params.dim_v),
                     {blocks, attention_decode_shared(k, v, params.dim_k, params.dim_v)}, params);
    params.min_rows = limit, params.max_rows = 1 << 30;
    if (params.k != nullptr)
        simt::run_kernel(stream, attention_append_kernel(), {blocks, kAppendShared}, params);
    simt::run_kernel(stream, attention_prefill_kernel(k, v, params.dim_k, params.dim_v),
                     {blocks, attention_prefill_shared(k, v, params.dim_k, params.dim_v)}, params);
}

void launch_wide(Stream &stream, AttentionParams params, Way way, uint32_t blocks, int32_t items) {
    params.min_rows = 0, params.max_rows = 1 << 30;
    if (params.k != nullptr)
        simt::run_kernel(stream, attention_append_kernel(), {blocks, kAppendShared}, params);
    params.side_by_side = way == Way::Decode ? items : way == Way::Prefill ? 0 : items / 2;
    if (params.chosen != nullptr)
        simt::run_kernel(stream, attention_chosen_kernel(), {blocks, attention_chosen_shared()}, params);
    else
        simt::run_kernel(stream, attention_wide_kernel(), {blocks, attention_wide_shared()}, params);
}

void launch_held(Stream &stream, AttentionParams params, const std::vector<SequenceInfo> &sequences,
                 uint32_t blocks) {
    std::vector<DividedSequence> divided;
    std::vector<int32_t> places;
    std::vector<HeldSplit> held[2];
    int32_t place = 0, most_tokens = 0;
    for (const SequenceInfo &s : sequences) {
        const auto number = static_cast<int32_t>(divided.size());
        divided.push_back({number, static_cast<int32_t>(places.size()),
                           (s.past + s.count + kAttentionSplit - 1) / kAttentionSplit});
        for (int32_t split = 0; split < divided.back().splits; ++split, place += s.count) {
            held[split * kAttentionSplit / kernels::kRangeCells % 2].push_back({number, split, place});
            places.push_back(place);
        }
        most_tokens = std::max(most_tokens, s.count);
    }
    if (params.k != nullptr) {
        params.max_rows = 1 << 30;
        simt::run_kernel(stream, attention_append_kernel(), {blocks, kAppendShared}, params);
        params.k = params.v = nullptr;
    }
    params.most_rows = most_tokens * (params.heads / params.kv_heads);
    params.most_units = params.kv_heads * ((params.most_rows + kAttentionRows - 1) / kAttentionRows);
    const CacheType k = params.k_cache.type, v = params.v_cache.type;
    for (const std::vector<HeldSplit> &own : held) {
        if (own.empty()) continue;
        const Buffer<HeldSplit> list(stream, own, "held splits");
        params.held = list.data(), params.held_splits = static_cast<int32_t>(own.size());
        if (is_wide(params.latent != 0, params.dim_k, params.dim_v))
            simt::run_kernel(stream, attention_wide_held_kernel(), {blocks, attention_wide_shared()}, params);
        else
            simt::run_kernel(stream, attention_held_kernel(k, v, params.dim_k, params.dim_v),
                             {blocks, attention_decode_shared(k, v, params.dim_k, params.dim_v)}, params);
        stream.wait();
    }
    const Buffer<DividedSequence> all(stream, divided, "divided sequences");
    const Buffer<int32_t> of_splits(stream, places, "places");
    params.divided = all.data(), params.divided_sequences = static_cast<int32_t>(divided.size());
    params.places = of_splits.data();
    simt::run_kernel(stream, attention_join_kernel(), {blocks, 0}, params);
    stream.wait();
}

// Compares the output of decode, quantized by the blocks that complete it, with a separate quantization.
class PreparedOutput {
  public:
    PreparedOutput(Stream &stream, const AttentionParams &params, int32_t tokens)
        : stream_(stream),
          tokens_(tokens),
          width_(params.heads * params.dim_v),
          by_attention_(stream, zeros(), "prepared"),
          afterwards_(stream, zeros(), "prepared afterwards"),
          asked_(into(by_attention_, params)),
          expected_(into(afterwards_, params)),
          possible_(width_ % 32 == 0 &&
                    can_prepare(asked_, tokens, params.heads / params.kv_heads, params.dim_v)) {}

    bool possible() const { return possible_; }
    const QuantizeParams &asked() const { return asked_; }
    void check() const {
        simt::run_kernel(stream_, quantize_kernel(), {static_cast<uint32_t>(tokens_), kQuantizeShared},
                         expected_);
        REQUIRE(same_bits(by_attention_.read(), afterwards_.read()));
    }

  private:
    static constexpr ActivationForms kForms{true, false};
    Bytes zeros() const { return Bytes(static_cast<size_t>(activation_bytes(width_, tokens_, kForms)), 0); }
    QuantizeParams into(const Buffer<unsigned char> &memory, const AttentionParams &params) const {
        return {params.out,
                nullptr,
                nullptr,
                0,
                width_,
                params.out_stride,
                place_activations(memory.data(), width_, tokens_, kForms)};
    }

    Stream &stream_;
    int32_t tokens_, width_;
    Buffer<unsigned char> by_attention_, afterwards_;
    QuantizeParams asked_, expected_;
    bool possible_;
};

// --- the exact result ------------------------------------------------------------------------------------

reference::Row exact_head(const Problem &p, const float *x, int32_t dim, const std::vector<float> &norm,
                          int32_t position) {
    const auto &a = p.shape.step;
    reference::Row head(x, x + dim);
    const auto normalize = [&] {
        if (!norm.empty())
            head = reference::rms_norm(head, reference::to_row(norm), static_cast<double>(a.norm_eps));
    };
    if (!a.norm_after_rope) normalize();
    if (p.shape.rope) reference::rope(head, *p.shape.rope, position);
    if (a.norm_after_rope) normalize();
    return head;
}

// The queries of a token as the products read them.
reference::Row exact_queries(const Problem &p, size_t token, int32_t position) {
    const auto &a = p.shape.step;
    const CacheType type = p.shape.k_type;
    reference::Row q;
    for (int32_t head = 0; head < a.heads; ++head) {
        const float *from = &p.q[(token * static_cast<size_t>(a.heads) + static_cast<size_t>(head)) *
                                 static_cast<size_t>(a.head_dim_k)];
        reference::Row row = exact_head(p, from, a.head_dim_k, p.q_norm, position);
        for (double &x : row)
            if (!p.factors.empty()) x *= static_cast<double>(p.factors[token]);
        if (p.shape.rotates_k()) reference::hadamard(row);
        for (const double x : row) q.push_back(type == CacheType::BF16 ? round_bf16(x) : round_f16(x));
    }
    return q;
}

// Checks the appended cells, to the precision of their type.
void check_appended(const Problem &p, const Result &result, size_t sequence, int32_t cell, size_t token) {
    const auto &a = p.shape.step;
    for (int32_t head = 0; head < a.kv_heads; ++head) {
        const auto from = [&](const std::vector<float> &x, int32_t dim) {
            return &x[(token * static_cast<size_t>(a.kv_heads) + static_cast<size_t>(head)) *
                      static_cast<size_t>(dim)];
        };
        const size_t at = page(p, sequence, cell, head);
        reference::Row k = exact_head(p, from(p.k, a.head_dim_k), a.head_dim_k, p.k_norm, p.positions[token]);
        if (p.shape.rotates_k()) reference::hadamard(k);
        check_cell(read_cell(p.shape.k_type, a.head_dim_k, result.k_cache, at, cell % 32), k);
        if (p.shape.latent) continue;
        reference::Row v(from(p.v, a.head_dim_v), from(p.v, a.head_dim_v) + a.head_dim_v);
        if (p.shape.rotates_v()) reference::hadamard(v);
        check_cell(read_cell(p.shape.v_type, a.head_dim_v, result.v_cache, at, cell % 32), v);
    }
}

// [token][heads * dim_v], from the cache's content after the run.
std::vector<reference::Row> exact(const Problem &p, const Result &result) {
    const auto &a = p.shape.step;
    std::vector<reference::Row> rows;
    size_t token = 0;
    for (size_t s = 0; s < p.shape.sequences.size(); ++s) {
        const Sequence sequence = p.shape.sequences[s];
        reference::Row k, v;
        for (int32_t cell = 0; cell < sequence.past + sequence.count; ++cell) {
            read_values(p, result.k_cache, p.shape.k_type, a.head_dim_k, s, cell, k);
            if (!p.shape.latent) read_values(p, result.v_cache, p.shape.v_type, a.head_dim_v, s, cell, v);
        }
        for (int32_t cell = sequence.past; cell < sequence.past + sequence.count; ++cell, ++token) {
            check_appended(p, result, s, cell, token);
            const int32_t position = p.positions[token];
            const reference::Row q = exact_queries(p, token, position),
                                 sink_q =
                                     exact_queries(p, token, std::min(position, a.window + a.sink_cells - 1));
            const auto choice = static_cast<size_t>(p.shape.choice());
            const reference::Row chosen = reference::to_row(p.chosen);
            rows.push_back(reference::attention_heads(
                a, q, k, v, cell, reference::to_row(p.sinks), sink_q, reference::to_row(p.slopes),
                std::span(chosen).subspan(token * choice, choice), sequence.common_end()));
            const auto width = static_cast<size_t>(a.head_dim_v);
            for (size_t at = 0; at < rows.back().size() && p.shape.rotates_v(); at += width)
                reference::hadamard(std::span(rows.back()).subspan(at, width));
        }
    }
    return rows;
}

}  // namespace

void check_close(const Problem &p, const Result &result) {
    const std::vector<reference::Row> rows = exact(p, result);
    // p is rounded to 11 bits (BF16: 8), q may round to the other side of a tie, and rotations add errors.
    const bool coarse =
        p.shape.k_type == CacheType::BF16 || (!p.shape.latent && p.shape.v_type == CacheType::BF16);
    const double tolerance = coarse ? 1.6e-2 : 2.5e-3;
    size_t at = 0;
    for (size_t token = 0; token < rows.size(); ++token) {
        CAPTURE(token);
        double error = 0;
        for (const double x : rows[token]) {
            const double difference = std::abs(static_cast<double>(result.out[at++]) - x);
            error = difference <= error ? error : difference;  // keeps NaN
        }
        REQUIRE(error <= tolerance);
    }
}

namespace {

// The choice of the next token, which is in cell `own`.
void choose(Problem &p, testing::Random &random, int32_t own) {
    const int32_t block = p.shape.step.chosen_block;
    for (int32_t list = 0; list < p.shape.step.chosen_lists; ++list) {
        std::vector<int32_t> blocks(static_cast<size_t>(own / block) + 1);
        std::iota(blocks.rbegin(), blocks.rend(), 0);
        const size_t fixed = block > 1 ? 1 : 0;  // the token's own block
        for (size_t i = blocks.size(); i > 1 + fixed; --i)
            std::swap(blocks[i - 1], blocks[fixed + random.below(i - fixed)]);
        blocks.resize(std::min(blocks.size(), static_cast<size_t>(p.shape.top_k)));
        std::ranges::sort(blocks);
        blocks.resize(static_cast<size_t>(p.shape.top_k), -1);
        p.chosen.insert(p.chosen.end(), blocks.begin(), blocks.end());
    }
}

}  // namespace

Problem make_problem(const Shape &shape, uint64_t seed) {
    testing::Random random(seed);
    const auto &a = shape.step;
    const auto size = [](int64_t n) { return static_cast<size_t>(n); };
    Problem p{shape, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}};
    for (const Sequence &s : shape.sequences) {
        for (int32_t i = 0; i < s.count; ++i) p.positions.push_back(shape.first_position + s.past + i);
        const auto cells = [&](CacheType type, int32_t dim) {
            std::vector<CacheCell> all;
            for (int32_t i = 0; i < s.past * a.kv_heads; ++i) all.push_back(random_cell(random, type, dim));
            return all;
        };
        p.old_k.push_back(cells(shape.k_type, a.head_dim_k));
        p.old_v.push_back(cells(shape.v_type, shape.latent ? 0 : a.head_dim_v));
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
    for (int32_t i = 0; i < a.heads && shape.slopes; ++i) p.slopes.push_back(random.uniform() * 0.5f);
    if (shape.factors) p.factors = around_one(tokens);
    // Blocks in random order; entries beyond a sequence's end are invalid and must not be used.
    std::vector<int32_t> ids(size(p.blocks));
    std::iota(ids.begin(), ids.end(), 0);
    for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[random.below(i)]);
    p.tables.assign(shape.sequences.size() * size(p.table_stride), -1);
    size_t next = 0;
    for (size_t s = 0; s < shape.sequences.size(); ++s)
        for (int32_t b = 0; b < (shape.sequences[s].past + shape.sequences[s].count + 31) / 32; ++b)
            p.tables[s * size(p.table_stride) + size(b)] = ids[next++];
    for (const Sequence &s : shape.sequences)
        for (int32_t own = s.past; own < s.past + s.count && shape.top_k > 0; ++own) choose(p, random, own);
    return p;
}

Result run(const Problem &p, Way way, uint32_t blocks, const Result *filled) {
    const Shape &shape = p.shape;
    const auto &a = shape.step;
    Stream stream;
    const Buffer<float> q(stream, p.q, "q"), k(stream, p.k, "k"), v(stream, p.v, "v");
    const Buffer<float> out(stream, p.positions.size() * static_cast<size_t>(a.heads * a.head_dim_v), "out");
    const Buffer<unsigned char> k_cache(
        stream, filled ? filled->k_cache : old_cache(p, p.old_k, shape.k_type, a.head_dim_k), "K cache");
    const int32_t cached_v = shape.latent ? 0 : a.head_dim_v;
    const Buffer<unsigned char> v_cache(
        stream, filled ? filled->v_cache : old_cache(p, p.old_v, shape.v_type, cached_v), "V cache");
    std::vector<SequenceInfo> infos;
    int32_t first = 0, items = 0, tiles = 1;
    for (const Sequence &s : shape.sequences) {
        infos.push_back({first, s.count, s.past, 0, 0, s.common_end()});
        first += s.count;
        const int32_t mine = (s.count * (a.heads / a.kv_heads) + 15) / 16;
        tiles = std::max(tiles, mine);
        items += mine * a.kv_heads * ((s.past + s.count + 255) / 256 + (a.sink_cells + 255) / 256);
        if (shape.top_k > 0)  // the tiles of every token
            items += s.count * ((a.heads / a.kv_heads + 15) / 16) * a.kv_heads *
                     ((shape.top_k * a.chosen_block + 255) / 256);
    }
    const Buffer<SequenceInfo> sequences(stream, infos, "sequences");
    const Buffer<int32_t> count(stream, std::vector{static_cast<int32_t>(infos.size())}, "sequence count");
    const Buffer<int32_t> tables(stream, p.tables, "tables"), positions(stream, p.positions, "positions");
    const auto optional = [&](const std::vector<float> &x, const char *name) {
        return Buffer<float>(stream, x.empty() ? std::vector<float>{0} : x, name, Region::Weights);
    };
    const Buffer<float> q_norm = optional(p.q_norm, "q norm"), k_norm = optional(p.k_norm, "k norm");
    const Buffer<float> slopes = optional(p.slopes, "slopes");
    const Buffer<float> chosen(stream, p.chosen.empty() ? std::vector<float>{0} : p.chosen, "chosen cells");
    const Buffer<float> sinks = optional(p.sinks, "sinks"), factors = optional(p.factors, "factors");
    const Buffer<float> partial(stream, static_cast<size_t>(attention_partial_floats(items, a.head_dim_v)),
                                "partial");
    const Buffer<uint32_t> counters(
        stream,
        std::vector<uint32_t>(std::max(infos.size() * static_cast<size_t>(a.kv_heads * tiles), size_t(items)),
                              0),
        "counters");
    const Buffer<float> totals(stream, size_t{blocks} * kWideTotals, "totals");
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
    params.k_cache = cache_pages(k_cache.data(), shape.k_type, a.head_dim_k, shape.rotates_k());
    params.v_cache = shape.latent
                         ? params.k_cache
                         : cache_pages(v_cache.data(), shape.v_type, a.head_dim_v, shape.rotates_v());
    params.latent = shape.latent;
    params.sequences = sequences.data(), params.sequence_count = count.data();
    params.tables = tables.data(), params.table_stride = p.table_stride, params.positions = positions.data();
    params.q_factors = p.factors.empty() ? nullptr : factors.data();
    params.q_norm = p.q_norm.empty() ? nullptr : q_norm.data();
    params.k_norm = p.k_norm.empty() ? nullptr : k_norm.data();
    params.sinks = p.sinks.empty() ? nullptr : sinks.data();
    params.slopes = p.slopes.empty() ? nullptr : slopes.data();
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
    params.sink_cells = a.sink_cells, params.sink_position = a.window + a.sink_cells - 1;
    params.norm_after_rope = a.norm_after_rope;
    params.max_tiles = tiles;
    if (shape.top_k > 0) {
        params.chosen = chosen.data(), params.chosen_stride = shape.choice();
        params.chosen_count = shape.top_k, params.chosen_block = a.chosen_block;
        params.chosen_list = a.chosen_lists == 1 ? 0 : shape.top_k;
        params.tokens = p.tokens();
    }

    if (shape.latent) params.v = nullptr;
    if (filled) params.k = params.v = nullptr;

    const PreparedOutput prepared(stream, params, p.tokens());
    if (way == Way::Decode && !shape.wide() && !params.v_cache.rotated && prepared.possible())
        params.prepare = prepared.asked();
    simt::take_reports();
    if (way == Way::Held)
        launch_held(stream, params, infos, blocks);
    else if (shape.wide())
        launch_wide(stream, params, way, blocks, items);
    else
        launch_narrow(stream, params, way, blocks);
    if (params.v_cache.rotated)
        simt::run_kernel(stream, rotate_heads_kernel(), {blocks, kAppendShared},
                         {out.data(), params.out_stride, p.tokens(), a.heads, a.head_dim_v});
    Result result{out.read(), k_cache.read(), v_cache.read(), simt::take_reports()};
    for (const uint32_t c : counters.read()) REQUIRE(c == 0);
    if (params.prepare.x != nullptr) prepared.check();
    return result;
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

Problem tail_of(const Problem &p, const Result &whole, int32_t past) {
    const auto &a = p.shape.step;
    const int32_t count = p.shape.sequences[0].count;
    Problem tail = p;
    tail.shape.sequences = {{past, count - past}};
    tail.old_k.assign(1, {}), tail.old_v.assign(1, {});
    for (int32_t cell = 0; cell < past; ++cell)
        for (int32_t head = 0; head < a.kv_heads; ++head) {
            const size_t at = page(p, 0, cell, head);
            tail.old_k[0].push_back(read_cell(p.shape.k_type, a.head_dim_k, whole.k_cache, at, cell % 32));
            if (!p.shape.latent)
                tail.old_v[0].push_back(
                    read_cell(p.shape.v_type, a.head_dim_v, whole.v_cache, at, cell % 32));
        }
    const auto cut = [&](std::vector<float> &x, int32_t width) {
        x.erase(x.begin(), x.begin() + past * width);
        x.resize(static_cast<size_t>((count - past) * width));
    };
    cut(tail.q, a.heads * a.head_dim_k), cut(tail.k, a.kv_heads * a.head_dim_k),
        cut(tail.v, a.kv_heads * a.head_dim_v);
    cut(tail.chosen, p.shape.choice());
    tail.positions = std::vector<int32_t>(p.positions.begin() + past, p.positions.begin() + count);
    return tail;
}

Problem alone(const Problem &p, size_t sequence) {
    const auto &a = p.shape.step;
    const auto index = static_cast<std::ptrdiff_t>(sequence);
    std::ptrdiff_t first = 0;
    for (size_t s = 0; s < sequence; ++s) first += p.shape.sequences[s].count;
    const std::ptrdiff_t count = p.shape.sequences[sequence].count;
    const auto rows = [&](const auto &x, int32_t width) {
        return std::decay_t<decltype(x)>(x.begin() + first * width, x.begin() + (first + count) * width);
    };
    Problem one = p;
    one.shape.sequences = {p.shape.sequences[sequence]};
    one.old_k = {p.old_k[sequence]}, one.old_v = {p.old_v[sequence]};
    one.q = rows(p.q, a.heads * a.head_dim_k), one.k = rows(p.k, a.kv_heads * a.head_dim_k);
    one.v = rows(p.v, a.kv_heads * a.head_dim_v), one.positions = rows(p.positions, 1);
    one.chosen = rows(p.chosen, p.shape.choice());
    if (!p.factors.empty()) one.factors = rows(p.factors, 1);
    one.tables.assign(p.tables.begin() + index * p.table_stride,
                      p.tables.begin() + (index + 1) * p.table_stride);
    return one;
}

void check_shape(const Shape &shape, uint64_t seed) {
    CAPTURE(seed);
    CAPTURE(shape.step.heads);
    CAPTURE(shape.step.head_dim_k);
    CAPTURE(shape.step.head_dim_v);
    CAPTURE(static_cast<int>(shape.k_type));
    CAPTURE(static_cast<int>(shape.v_type));
    const Problem p = make_problem(shape, seed);
    const Result decode = run(p, Way::Decode), prefill = run(p, Way::Prefill);
    check_close(p, decode);
    CHECK(same_bits(decode.out, prefill.out));
    CHECK(same_bits(decode.k_cache, prefill.k_cache));
    CHECK(same_bits(decode.v_cache, prefill.v_cache));
}

void check_every_way(const Shape &shape, uint64_t seed) {
    constexpr int32_t kTokens = 300, kPast = 263;
    const Problem p = make_problem(shape, seed);
    const Result reference = run(p, Way::Prefill, 1);
    CHECK(same_bits(reference.out, run(p, Way::Split, 7).out));
    simt::settings().seed = 77;
    CHECK(same_bits(reference.out, run(p, Way::Decode, 5).out));
    simt::settings() = {};
    const Problem tail = tail_of(p, reference, kPast);
    const auto width = shape.step.heads * shape.step.head_dim_v;
    const std::vector<float> expected(reference.out.begin() + kPast * width,
                                      reference.out.begin() + kTokens * width);
    for (const Way way : {Way::Decode, Way::Prefill}) CHECK(same_bits(run(tail, way).out, expected));
}

}  // namespace runnel::tests
