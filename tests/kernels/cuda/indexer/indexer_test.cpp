// The kernels of the lightning indexer alone: queries, scores and choice.
#include "kernels/cuda/indexer/indexer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "tests/kernels/chosen_blocks.h"
#include "tests/kernels/cuda/attention/attention_problem.h"
#include "tests/simt/buffer.h"
#include "tests/simt/run_kernel.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"

using namespace runnel;
using namespace runnel::kernels::cuda;
using runnel::kernels::CacheType;
using simt::Buffer;
using tests::CacheCell;
using tests::rope_table;
using tests::same_bits;
using tests::Sequence;

namespace {

// A batch of an indexer on the host. q is rotated already, and the keys are in the cache.
struct Batch {
    int32_t heads, dim, top_k;
    std::vector<Sequence> sequences;
    std::vector<float> q, weights;
    std::vector<std::vector<CacheCell>> keys;  // of each sequence
    std::vector<int32_t> tables;
    int32_t table_stride = 1, blocks = 0;
    bool per_head = false;  // a list for each head, without weights
    int32_t block = 1, local = 0;
    bool pooled = false;

    kernels::Indexer step() const {
        kernels::Indexer step{};
        step.weights = per_head ? kernels::kNoSlot : 0;
        step.heads = heads, step.head_dim = dim, step.top_k = top_k;
        step.block = block, step.local = local, step.pooled = pooled;
        return step;
    }
    int32_t lists() const { return step().lists(); }
    size_t tokens() const { return weights.size() / static_cast<size_t>(heads); }
    int32_t most_cells() const { return table_stride * 32; }
};

Batch make_batch(int32_t heads, int32_t dim, int32_t top_k, std::vector<Sequence> sequences, uint64_t seed) {
    testing::Random random(seed);
    Batch b{heads, dim, top_k, std::move(sequences), {}, {}, {}, {}};
    std::vector<int32_t> ids;
    for (const Sequence &s : b.sequences) {
        for (int32_t i = 0; i < s.count * heads * dim; ++i) b.q.push_back(random.normal());
        for (int32_t i = 0; i < s.count * heads; ++i) b.weights.push_back(random.normal());
        b.keys.emplace_back();
        for (int32_t i = 0; i < s.past + s.count; ++i)
            b.keys.back().push_back(tests::random_cell(random, CacheType::F16, dim));
        const int32_t blocks = (s.past + s.count + 31) / 32;
        b.table_stride = std::max(b.table_stride, blocks);
        b.blocks += blocks;
    }
    for (int32_t i = 0; i < b.blocks; ++i) ids.push_back(i);
    for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[random.below(i)]);
    b.tables.assign(b.sequences.size() * static_cast<size_t>(b.table_stride), -1);
    for (size_t s = 0, next = 0; s < b.sequences.size(); ++s)
        for (int32_t i = 0; 32 * i < b.sequences[s].past + b.sequences[s].count; ++i)
            b.tables[s * static_cast<size_t>(b.table_stride) + static_cast<size_t>(i)] = ids[next++];
    return b;
}

// One sequence of a batch.
Batch alone(const Batch &b, size_t sequence) {
    Batch one = b;
    const auto at = static_cast<std::ptrdiff_t>(sequence);
    std::ptrdiff_t first = 0;
    for (size_t s = 0; s < sequence; ++s) first += b.sequences[s].count;
    const std::ptrdiff_t end = first + b.sequences[sequence].count;
    one.sequences = {b.sequences[sequence]}, one.keys = {b.keys[sequence]};
    one.q.assign(b.q.begin() + first * b.heads * b.dim, b.q.begin() + end * b.heads * b.dim);
    one.weights.assign(b.weights.begin() + first * b.heads, b.weights.begin() + end * b.heads);
    one.tables.assign(b.tables.begin() + at * b.table_stride, b.tables.begin() + (at + 1) * b.table_stride);
    return one;
}

struct Result {
    std::vector<float> scores;  // of cells: [token][lists()][most_cells()], NaN where none was written
    std::vector<float> chosen;  // [token][lists()][top_k]
};

// Scores and choices, in turns. scores: in place of those that the kernel computes.
Result run(const Batch &b, uint32_t blocks = 3, int32_t turn = kIndexTurn,
           const std::optional<std::vector<float>> &given = {}) {
    Stream stream;
    std::vector<unsigned char> cells(
        static_cast<size_t>(b.blocks) * 32 * kernels::cache_row_bytes(CacheType::F16, b.dim), 0x7f);
    for (size_t s = 0; s < b.keys.size(); ++s)
        for (size_t cell = 0; cell < b.keys[s].size(); ++cell)
            tests::write_cell(
                b.keys[s][cell], cells,
                static_cast<size_t>(b.tables[s * static_cast<size_t>(b.table_stride) + cell / 32]),
                static_cast<int32_t>(cell % 32));
    std::vector<SequenceInfo> infos;
    int32_t tokens = 0;
    for (const Sequence &s : b.sequences) infos.push_back({tokens, s.count, s.past}), tokens += s.count;
    const auto width = static_cast<size_t>(b.most_cells());
    const Buffer<unsigned char> cache(stream, cells, "index keys");
    const Buffer<SequenceInfo> sequences(stream, infos, "sequences");
    const Buffer<int32_t> count(stream, std::vector{static_cast<int32_t>(infos.size())}, "sequence count");
    const Buffer<int32_t> tables(stream, b.tables, "tables");
    const Buffer<float> q(stream, b.q, "q"), weights(stream, b.weights, "weights");
    const Buffer<float> chosen(stream, b.tokens() * static_cast<size_t>(b.lists() * b.top_k), "chosen");
    IndexParams p{};
    p.q = q.data(), p.q_stride = b.heads * b.dim;
    if (!b.per_head) p.weights = weights.data(), p.weights_stride = b.heads;
    p.keys = cache_pages(cache.data(), CacheType::F16, b.dim, true);
    p.sequences = sequences.data(), p.sequence_count = count.data();
    p.tables = tables.data(), p.table_stride = b.table_stride;
    p.chosen = chosen.data(), p.chosen_stride = b.lists() * b.top_k;
    p.scores_stride = b.most_cells();
    p.heads = b.heads, p.top_k = b.top_k;
    p.lists = b.lists(), p.block = b.block, p.local = b.local;
    p.pooled = b.pooled, p.all_cells = b.step().all_cells();
    const size_t of_token = width * static_cast<size_t>(b.lists());
    Result result;
    for (p.first = 0; p.first < tokens; p.first = p.end) {
        p.end = std::min(tokens, p.first + turn);
        const size_t at = static_cast<size_t>(p.first) * of_token,
                     size = static_cast<size_t>(turn) * of_token;
        std::vector<float> before(size, NAN);
        if (given)
            std::copy_n(given->begin() + static_cast<std::ptrdiff_t>(at), std::min(size, given->size() - at),
                        before.begin());
        const Buffer<float> scores(stream, before, "scores");
        p.scores = scores.data();
        if (!given) simt::run_kernel(stream, index_scores_kernel(), {blocks, index_scores_shared()}, p);
        const std::vector<float> after = scores.read();  // the choice replaces some of them
        simt::run_kernel(stream, index_choice_kernel(), {blocks, index_choice_shared()}, p);
        stream.wait();
        result.scores.insert(result.scores.end(), after.begin(),
                             after.begin() + (p.end - p.first) * static_cast<std::ptrdiff_t>(of_token));
    }
    result.chosen = chosen.read();
    return result;
}

// Calls f(token, sequence, cells of the token).
template <class F>
void for_tokens(const Batch &b, const F &f) {
    size_t token = 0;
    for (size_t s = 0; s < b.sequences.size(); ++s)
        for (int32_t i = 0; i < b.sequences[s].count; ++i)
            f(token++, s, static_cast<size_t>(b.sequences[s].past + i + 1));
}

void check_choices(const Batch &b, const Result &result) {
    for_tokens(b, [&](size_t token, size_t, size_t cells) {
        CAPTURE(token);
        const auto lists = static_cast<size_t>(b.lists()), top_k = static_cast<size_t>(b.top_k);
        for (size_t i = token * lists; i < (token + 1) * lists; ++i) {
            const auto scores =
                std::span(result.scores).subspan(i * static_cast<size_t>(b.most_cells()), cells);
            CHECK(std::ranges::equal(std::span(result.chosen).subspan(i * top_k, top_k),
                                     tests::chosen_blocks(b.step(), scores)));
        }
    });
}

// Scores against double precision; those of tokens that choose all cells are not computed.
void check_scores(const Batch &b, const Result &result) {
    const auto dim = static_cast<size_t>(b.dim), heads = static_cast<size_t>(b.heads);
    const auto lists = static_cast<size_t>(b.lists()), width = static_cast<size_t>(b.most_cells());
    const auto most = static_cast<size_t>(b.step().all_cells());
    for_tokens(b, [&](size_t token, size_t s, size_t cells) {
        double worst = 0;
        for (size_t at = token * lists * width; at < (token + 1) * lists * width; ++at) {
            const size_t list = at / width % lists, cell = at % width;
            const float score = result.scores[at];
            if (cell >= cells || cells <= most) {
                REQUIRE(std::isnan(score));
                continue;
            }
            double sum = 0, size = 0;
            for (size_t h = b.per_head ? list : 0; h < (b.per_head ? list + 1 : heads); ++h) {
                double dot = 0;
                for (size_t d = 0; d < dim; ++d)
                    dot += tests::round_f16(b.q[(token * heads + h) * dim + d]) *
                           tests::value_of(b.keys[s][cell], static_cast<int32_t>(d));
                const double weight = b.per_head ? 1 : b.weights[token * heads + h];
                sum += b.per_head ? dot : weight * std::max(dot, 0.0);
                size += std::abs(weight) * std::max(std::abs(dot), std::sqrt(static_cast<double>(dim)));
            }
            worst = std::max(worst, std::abs(sum - double{score}) / size);
        }
        CHECK(worst < 1e-5);
    });
}

}  // namespace

TEST_CASE("cuda indexer: scores agree with double precision, and the largest are chosen") {
    for (uint64_t seed = 1; seed <= 14; ++seed) {
        CAPTURE(seed);
        testing::Random random(seed);
        const auto below = [&](uint64_t n) { return static_cast<int32_t>(random.below(n)); };
        constexpr int32_t kDims[] = {64, 128, 128, 40, 8};
        const int32_t heads = seed % 3 == 0 ? 60 + below(80) : 1 + below(20), dim = kDims[seed % 5];
        Batch b =
            make_batch(heads, dim, 1 + below(seed % 2 ? 20 : 90),
                       {{below(600), 1 + below(3)}, {0, 1 + below(20)}, {below(40), 1 + below(9)}}, seed);
        b.per_head = seed % 4 == 1;
        if (seed % 3 == 1) {
            b.block = seed % 2 ? 33 + below(30) : 2 + below(30);
            b.top_k = 3 + below(4), b.local = 1 + below(2);
            if (seed % 2) b.pooled = true, b.local = 0;
        }
        CAPTURE(b.block);
        CAPTURE(heads);
        CAPTURE(dim);
        CAPTURE(b.top_k);
        const Result result = run(b);
        check_scores(b, result);
        check_choices(b, result);
    }
}

TEST_CASE("cuda indexer: scores and choices do not depend on the batch, grid, turns or order of blocks") {
    for (const bool in_blocks : {false, true}) {
        CAPTURE(in_blocks);
        Batch b = in_blocks ? make_batch(3, 64, 4, {{290, 7}, {25, 1}, {100, 12}}, 21)
                            : make_batch(12, 64, 30, {{0, 70}, {290, 7}, {25, 1}, {100, 12}}, 20);
        if (in_blocks) b.per_head = true, b.block = 24, b.local = 2;
        const Result result = run(b);
        check_choices(b, result);
        for (const auto &[blocks, turn] : {std::pair{1u, 64}, {50u, 64}, {3u, 1}, {2u, 7}}) {
            const Result other = run(b, blocks, turn);
            CHECK(same_bits(other.scores, result.scores));
            CHECK(same_bits(other.chosen, result.chosen));
        }
        simt::settings().seed = 5;
        CHECK(same_bits(run(b).scores, result.scores));
        simt::settings() = {};
        size_t at = 0;
        for (size_t s = 0; s < b.sequences.size(); ++s) {
            const Result one = run(alone(b, s), 2);
            CHECK(std::equal(one.chosen.begin(), one.chosen.end(),
                             result.chosen.begin() + static_cast<std::ptrdiff_t>(at)));
            at += one.chosen.size();
        }
    }
}

TEST_CASE("cuda indexer: among equal scores the lower cells are chosen; NaN is below all") {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for (uint64_t seed = 30; seed < 50; ++seed) {
        CAPTURE(seed);
        testing::Random random(seed);
        const auto below = [&](uint64_t n) { return static_cast<int32_t>(random.below(n)); };
        const int32_t past = seed % 4 == 0 ? 5000 + below(4000) : below(700);
        Batch b = make_batch(1, 8, 1 + below(seed % 2 ? 40 : 600), {{past, 2}}, seed);
        // Also more blocks than the threads that look for their largest scores.
        if (seed % 4 < 2) b.block = 2 + below(30), b.top_k = 1 + below(12), b.local = 1;
        if (seed % 4 == 1) b.pooled = true, b.local = 0;
        std::vector<float> scores(2 * static_cast<size_t>(b.most_cells()));
        for (float &x : scores) {
            x = random.normal() * (seed % 5 == 0 ? 1e-30f : 1);
            if (seed % 2) x = std::rint(x * 2) / 2;
            if (seed % 3 == 0 && random.below(8) == 0)
                x = std::vector{NAN, kInfinity, -kInfinity, -0.0f}[random.below(4)];
            if (seed == 31) x = 1;
        }
        check_choices(b, run(b, 2, kIndexTurn, scores));
    }
}

TEST_CASE("cuda indexer: queries are rotated by RoPE and the Hadamard matrix") {
    testing::Random random(60);
    for (const int32_t dim : {8, 48, 64, 128}) {
        CAPTURE(dim);
        constexpr int32_t kTokens = 5, kHeads = 3;
        const int32_t stride = kHeads * dim + 4;
        std::vector<float> q(static_cast<size_t>(kTokens * stride));
        for (float &x : q) x = random.normal();
        const auto rope = rope_table(
            dim == 64 ? kernels::RopeTable::Pairs::Adjacent : kernels::RopeTable::Pairs::Halves, 8);
        std::vector<uint64_t> turns;
        for (const double f : rope.inv_freq) turns.push_back(rope_turns(f));
        const std::vector<int32_t> positions = {0, 7, 100, 8, 30000};
        Stream stream;
        const Buffer<float> device(stream, q, "q");
        const Buffer<uint64_t> table(stream, turns, "rope", Region::Weights);
        const Buffer<int32_t> at(stream, positions, "positions");
        simt::run_kernel(
            stream, index_queries_kernel(), {2, index_queries_shared()},
            {device.data(),
             at.data(),
             stride,
             {table.data(), 1,
              rope.pairs == kernels::RopeTable::Pairs::Adjacent ? RopePairs::Adjacent : RopePairs::Halves, 0,
              8},
             kTokens,
             kHeads,
             dim});
        const std::vector<float> got = device.read();
        for (int32_t t = 0; t < kTokens; ++t)
            for (int32_t head = 0; head < kHeads; ++head) {
                const size_t from = static_cast<size_t>(t * stride + head * dim);
                reference::Row row(q.begin() + static_cast<std::ptrdiff_t>(from),
                                   q.begin() + static_cast<std::ptrdiff_t>(from) + dim);
                kernels::reference::rope(row, rope, positions[static_cast<size_t>(t)]);
                kernels::reference::hadamard(row, static_cast<size_t>(dim));
                for (size_t d = 0; d < row.size(); ++d)
                    REQUIRE(double{got[from + d]} == doctest::Approx(row[d]).epsilon(1e-5).scale(1));
            }
    }
}
