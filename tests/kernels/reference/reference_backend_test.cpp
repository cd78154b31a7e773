// The reference fulfills the contract of a Backend: a token's logits depend only on its sequence. Results of
// other programs show that they are right (tests/engine/model/families_test.cpp).
#include "kernels/reference/reference_backend.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cpu/route.h"
#include "kernels/reference/operations.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels;
using tests::TinyProgram;
using tests::TinyShape;

namespace {

constexpr int32_t kVocab = 50, kTokens = 70, kBlocks = 3;

std::vector<int32_t> random_tokens(size_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> tokens(count);
    for (int32_t &t : tokens) t = static_cast<int32_t>(random() % kVocab);
    return tokens;
}

TinyProgram random_program(uint32_t seed) {
    TinyShape shape{.varied = seed % 2 == 1};
    shape.window = seed % 3 == 0 ? 7 : 0;
    shape.head_norm = seed % 4 == 0, shape.bias = seed % 4 < 2;
    if (seed % 4 == 2) shape.experts = {.count = 6, .routing = {.used = 2}, .biases = true, .shared = true};
    return {shape, seed};
}

// Sequences in one cache, each with its own blocks, fed side by side.
class Runner {
  public:
    Runner(const Program &program, CacheType type = CacheType::F16)
        : program_(program), backend_(reference::make_reference_backend()) {
        backend_->load(program, {{2 * kBlocks}, type, type}, 2 * kTokens);
        for (int32_t i = 0; i < kBlocks; ++i) tables_[0].push_back(2 * kBlocks - 1 - 2 * i);
        for (int32_t i = 0; i < kBlocks; ++i) tables_[1].push_back(2 * i);
    }
    Backend &backend() { return *backend_; }
    const std::vector<BlockId> &table(size_t sequence) const { return tables_[sequence]; }

    // Logits of the next `counts[i]` tokens of each sequence, all rows; empty when `cancel` is set.
    std::vector<float> feed(const std::vector<int32_t> (&texts)[2], const std::vector<int32_t> &counts,
                            const std::atomic<bool> *cancel = nullptr) {
        std::vector<int32_t> tokens, positions;
        std::vector<SequenceSpan> spans;
        for (size_t s = 0; s < counts.size(); ++s) {
            if (counts[s] == 0) continue;
            spans.push_back({static_cast<int32_t>(tokens.size()), counts[s], past_[s], {tables_[s]}});
            for (int32_t i = 0; i < counts[s]; ++i) {
                positions.push_back(past_[s]);
                tokens.push_back(texts[s][static_cast<size_t>(past_[s]++)]);
            }
        }
        std::vector<int32_t> rows(tokens.size());
        std::iota(rows.begin(), rows.end(), 0);
        std::vector<float> logits(rows.size() * kVocab);
        if (!backend_->execute({tokens, positions, spans, rows, cancel}, logits)) return {};
        return logits;
    }

  private:
    const Program &program_;
    std::unique_ptr<Backend> backend_;
    std::vector<BlockId> tables_[2];
    int32_t past_[2] = {};
};

}  // namespace

TEST_CASE("reference: logits depend neither on chunks, nor on pages, nor on other sequences") {
    for (uint32_t seed = 1; seed <= 12; ++seed) {
        CAPTURE(seed);
        const TinyProgram tiny = random_program(seed);
        const std::vector<int32_t> texts[2] = {random_tokens(kTokens, seed),
                                               random_tokens(kTokens, seed + 99)};
        const std::vector<float> expected[2] = {reference::logits_of(tiny.program(), texts[0]),
                                                reference::logits_of(tiny.program(), texts[1])};
        Runner runner(tiny.program());
        std::mt19937 random(seed);
        int32_t past[2] = {};
        while (past[0] < kTokens || past[1] < kTokens) {
            std::vector<int32_t> counts;
            for (const int32_t p : past)
                counts.push_back(std::min(kTokens - p, static_cast<int32_t>(random() % 20)));
            if (counts[0] + counts[1] == 0) continue;
            const std::vector<float> logits = runner.feed(texts, counts);
            auto row = logits.begin();
            for (const size_t s : {0u, 1u}) {
                const auto begin = expected[s].begin() + past[s] * kVocab;
                REQUIRE(std::equal(begin, begin + counts[s] * kVocab, row));
                row += counts[s] * kVocab;
                past[s] += counts[s];
            }
        }
    }
}

TEST_CASE("reference: a branch with shared tokens equals a separate sequence") {
    const TinyProgram tiny = random_program(5);
    std::vector<int32_t> texts[2] = {random_tokens(40, 1), {}};
    const std::vector<float> main_line = reference::logits_of(tiny.program(), texts[0]);
    std::vector<int32_t> other(texts[0].begin(),
                               texts[0].begin() + 36);  // 33 that are fed and 3 shared ones, then its own
    other.push_back(7), other.push_back(8);
    const std::vector<float> side_line = reference::logits_of(tiny.program(), other);
    Runner runner(tiny.program());
    runner.feed(texts, {33});
    runner.backend().copy_blocks(0, std::vector<BlockCopy>{{runner.table(0)[1], runner.table(1)[1]}});
    const std::vector<BlockId> branch{runner.table(0)[0], runner.table(1)[1]};
    std::vector<int32_t> tokens(texts[0].begin() + 33, texts[0].begin() + 38), positions{33, 34, 35, 36, 37};
    tokens.insert(tokens.end(), {7, 8});
    positions.insert(positions.end(), {36, 37});
    std::vector<int32_t> rows(tokens.size());
    std::iota(rows.begin(), rows.end(), 0);
    const SequenceSpan spans[] = {{0, 5, 33, {runner.table(0)}}, {5, 2, 36, {branch}, 3, 0}};
    std::vector<float> logits(rows.size() * kVocab);
    REQUIRE(runner.backend().execute({tokens, positions, spans, rows}, logits));
    CHECK(std::equal(logits.begin(), logits.begin() + 5 * kVocab, main_line.begin() + 33 * kVocab));
    CHECK(std::equal(logits.begin() + 5 * kVocab, logits.end(), side_line.begin() + 36 * kVocab));
}

TEST_CASE("reference: SparseMixer gives a chosen expert the weight 1, or less if worse ones are within 2%") {
    const Routing routing{.score = Routing::Score::SparseMixer, .used = 2};
    const struct {
        std::vector<float> logits;
        int32_t first, second;
        double weight, other_weight;
    } cases[] = {{{1, 5, 4.7f, 3}, 1, 2, 1, 1},
                 {{1, 5, 4.95f, 4.88f}, 1, 2, 1 / (1 + std::exp(-0.05)), 1 / (1 + std::exp(-0.07))},
                 {{3, 3, 3, 1}, 0, 1, 1.0 / 3, 1.0 / 2},
                 {{-2, -1.99f, -5}, 0, 1, 1, 1 / (1 + std::exp(-0.01))}};
    for (const auto &c : cases) {
        const std::vector<double> logits(c.logits.begin(), c.logits.end());
        const auto exact = reference::route(logits, {}, routing);
        std::vector<float> scratch(cpu::route_scratch(std::ssize(c.logits))), weights(2);
        std::vector<int32_t> chosen(2);
        cpu::route(routing, c.logits, nullptr, cpu::vector_scalar(), scratch.data(), chosen.data(),
                   weights.data());
        for (size_t i = 0; i < 2; ++i) {
            CHECK(static_cast<int32_t>(exact[i].first) == (i == 0 ? c.first : c.second));
            CHECK(chosen[i] == (i == 0 ? c.first : c.second));
            const doctest::Approx weight = doctest::Approx(i == 0 ? c.weight : c.other_weight).epsilon(1e-6);
            CHECK(exact[i].second == weight);
            CHECK(weights[i] == weight);
        }
    }
}

TEST_CASE("reference: blocks are saved and restored, batches cancelled, unsupported programs refused") {
    const TinyProgram tiny({.layers = 1}, 3);
    const std::vector<int32_t> texts[2] = {random_tokens(kTokens, 1), random_tokens(kTokens, 2)};
    Runner runner(tiny.program(), CacheType::BF16);
    runner.feed(texts, {32});
    std::vector<std::byte> kept(cache_block_bytes(tiny.program(), 0, CacheType::BF16, CacheType::BF16));
    runner.backend().read_block(0, runner.table(0)[0], kept);
    const std::vector<float> expected = runner.feed(texts, {1});
    // The same 32 tokens, from the saved block.
    Runner other(tiny.program(), CacheType::BF16);
    other.feed(texts, {32});
    other.backend().write_block(0, other.table(0)[0], std::vector<std::byte>(kept.size()));
    other.backend().write_block(0, other.table(0)[0], kept);
    CHECK(other.feed(texts, {1}) == expected);
    const std::atomic<bool> cancel{true};
    CHECK(other.feed(texts, {1}, &cancel).empty());
    CHECK_THROWS_AS(reference::make_reference_backend()->load(tiny.program(), {{1}, CacheType::Q8_0}, 1),
                    BackendError);
    Program share = tiny.program();
    share.parts = share.whole_parts();
    CHECK_THROWS_AS(reference::make_reference_backend()->load(share, {{1}}, 1), BackendError);
}
