#include "kernels/cuda/select/select.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/simt/buffer.h"
#include "tests/simt/run_kernel.h"
#include "tests/simt/simt.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"

using namespace runnel;
using namespace runnel::kernels::cuda;
using runnel::kernels::TopLogit;
using simt::Buffer;

namespace {

struct Logits {
    int32_t rows, vocab;
    std::vector<float> values;
    float at(int32_t row, int32_t token) const {
        return values[static_cast<size_t>(row) * static_cast<size_t>(vocab) + static_cast<size_t>(token)];
    }
};

// Coarse values, so that many are equal.
Logits random_logits(testing::Random &random, int32_t rows, int32_t vocab, bool coarse) {
    Logits l{rows, vocab, {}};
    for (int64_t i = 0; i < int64_t{rows} * vocab; ++i) {
        const float x = random.normal() * 4;
        l.values.push_back(coarse ? std::rint(x) * 0.5f : x);
    }
    return l;
}

// The tokens of a row in the order of select.h.
std::vector<int32_t> sorted(const Logits &l, int32_t row) {
    std::vector<int32_t> tokens(static_cast<size_t>(l.vocab));
    for (int32_t i = 0; i < l.vocab; ++i) tokens[static_cast<size_t>(i)] = i;
    std::stable_sort(tokens.begin(), tokens.end(), [&](int32_t a, int32_t b) {
        const float x = l.at(row, a), y = l.at(row, b);
        return x > y;
    });
    return tokens;
}

std::vector<int32_t> argmax(const Logits &l, int32_t blocks_per_row, int replays = 1) {
    Stream stream;
    const Buffer<float> logits(stream, l.values, "logits");
    const auto rows = static_cast<size_t>(l.rows);
    const Buffer<uint64_t> best(stream, std::vector<uint64_t>(rows, 0), "best");
    const Buffer<uint32_t> counters(stream, std::vector<uint32_t>(rows, 0), "counters");
    const PinnedMemory first(rows * sizeof(TopLogit));
    for (int i = 0; i < replays; ++i)
        simt::run_kernel(stream, argmax_kernel(),
                         {static_cast<uint32_t>(l.rows * blocks_per_row), kArgmaxShared},
                         {logits.data(), l.vocab, l.vocab, blocks_per_row, best.data(), counters.data(),
                          first.as<TopLogit>()});
    stream.wait();
    std::vector<int32_t> tokens;
    for (int32_t row = 0; row < l.rows; ++row) {
        const TopLogit c = first.as<TopLogit>()[row];
        CHECK(std::memcmp(&c.logit, &l.values[static_cast<size_t>(row * l.vocab + c.token)], 4) == 0);
        tokens.push_back(c.token);
    }
    return tokens;
}

struct Chosen {
    std::vector<TopLogit> candidates;
    std::vector<RowSummary> summaries;
};

Chosen candidates(const Logits &l, int32_t k) {
    Stream stream;
    const Buffer<float> logits(stream, l.values, "logits");
    const int32_t chunks = (l.vocab + kSelectChunk - 1) / kSelectChunk;
    const auto rows = static_cast<size_t>(l.rows), parts = rows * static_cast<size_t>(chunks);
    const Buffer<uint64_t> keys(stream, parts * static_cast<size_t>(k), "keys");
    const Buffer<RowSummary> partial(stream, parts, "partial"), summaries(stream, rows, "summaries");
    const Buffer<TopLogit> out(stream, rows * static_cast<size_t>(k), "candidates");
    stream.fill(out.data(), 0, rows * static_cast<size_t>(k) * sizeof(TopLogit));
    const CandidateParams params{logits.data(), l.vocab,        l.vocab,    chunks,          k,
                                 keys.data(),   partial.data(), out.data(), summaries.data()};
    simt::run_kernel(stream, candidate_chunk_kernel(), {static_cast<uint32_t>(parts), candidate_shared()},
                     params);
    simt::run_kernel(stream, candidate_row_kernel(), {static_cast<uint32_t>(l.rows), candidate_shared()},
                     params);
    return {out.read(), summaries.read()};
}

}  // namespace

TEST_CASE("cuda select: argmax takes the first of the largest, whatever the grid") {
    testing::Random random(21);
    for (const int32_t vocab : {1, 31, 1000, 5003})
        for (const bool coarse : {false, true}) {
            CAPTURE(vocab);
            const Logits l = random_logits(random, 3, vocab, coarse);
            for (const int32_t blocks : {1, 2, 7}) {
                const auto tokens = argmax(l, blocks, 2);
                for (int32_t row = 0; row < 3; ++row)
                    CHECK(tokens[static_cast<size_t>(row)] == sorted(l, row)[0]);
            }
        }
}

TEST_CASE("cuda select: zeros of both signs are equal, and values that are not finite come first") {
    const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
    CHECK(argmax({1, 4, {-0.0f, 0.0f, -1, 0.0f}}, 1)[0] == 0);
    CHECK(argmax({1, 3, {-1, -0.0f, 0.0f}}, 1)[0] == 1);
    for (const float odd : {nan, -nan, inf, -inf}) {
        CHECK(argmax({1, 4, {7, 3e38f, odd, -5}}, 2)[0] == 2);
        for (const int32_t k : {1, 3})
            CHECK(!std::isfinite(candidates({1, 4, {7, 3e38f, odd, -5}}, k).candidates[0].logit));
    }
    CHECK(argmax({1, 2, {nan, inf}}, 1)[0] == 0);
    CHECK(argmax({1, 2, {-3.4028235e38f, -3.4028235e38f}}, 1)[0] == 0);
}

TEST_CASE("cuda select: candidates are the sorted head of the row, and the summary is that of the row") {
    testing::Random random(22);
    for (const int32_t vocab : {1, 40, 256, 4096, 9001})
        for (const int32_t k : {1, 5, 256})
            for (const bool coarse : {false, true}) {
                CAPTURE(vocab);
                CAPTURE(k);
                const Logits l = random_logits(random, 2, vocab, coarse);
                const Chosen chosen = candidates(l, k);
                for (int32_t row = 0; row < 2; ++row) {
                    const auto order = sorted(l, row);
                    for (int32_t i = 0; i < std::min(k, vocab); ++i) {
                        const TopLogit c = chosen.candidates[static_cast<size_t>(row * k + i)];
                        REQUIRE(c.token == order[static_cast<size_t>(i)]);
                        REQUIRE(c.logit == l.at(row, c.token));
                    }
                    const RowSummary summary = chosen.summaries[static_cast<size_t>(row)];
                    CHECK(summary.largest == l.at(row, order[0]));
                    const float *first = l.values.data() + int64_t{row} * vocab;
                    const double exact =
                        reference::log_sum_exp(reference::to_row({first, static_cast<size_t>(vocab)}));
                    CHECK(double{summary.largest} + std::log(double{summary.sum}) ==
                          doctest::Approx(exact).epsilon(1e-6));
                }
            }
}
