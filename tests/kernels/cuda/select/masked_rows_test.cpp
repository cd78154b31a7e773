// Batches with masks on the emulated device, compared with a selection from full rows of logits.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/linear/linear.h"
#include "tests/kernels/cuda/sequence_runner.h"
#include "tests/simt/simt.h"
#include "tests/support/random.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels;
using namespace runnel::tests;
using runnel::testing::Random;
using Masks = std::vector<std::vector<uint64_t>>;  // of each row; an empty one allows all

namespace {

constexpr int32_t kVocab = 131;  // the last word of a mask is partly used
constexpr float kNone = -std::numeric_limits<float>::infinity();

// Random masks for some of the rows, with between one and all tokens.
Masks random_masks(Random &random, int32_t rows) {
    Masks masks(static_cast<size_t>(rows));
    for (std::vector<uint64_t> &mask : masks) {
        const uint64_t kind = random.below(4);
        if (kind == 0) continue;
        mask.resize((kVocab + 63) / 64);
        mask[1] |= uint64_t{1} << random.below(64);
        for (uint64_t token = 0; token < kVocab; ++token)
            if (random.below(kind * kind * kind) == 0) mask[token / 64] |= uint64_t{1} << token % 64;
    }
    return masks;
}

bool is_allowed(const std::vector<uint64_t> &mask, int32_t token) {
    const auto t = static_cast<size_t>(token);
    return mask.empty() || (mask[t / 64] >> t % 64 & 1) != 0;
}

// One sequence from its first cell on. Every call computes the same tokens.
class MaskedBatch {
  public:
    MaskedBatch(Backend &backend, std::vector<int32_t> tokens)
        : backend_(backend), tokens_(std::move(tokens)) {
        positions_.resize(tokens_.size());
        std::iota(positions_.begin(), positions_.end(), 0);
        table_.resize(kBlocks);
        std::iota(table_.begin(), table_.end(), 0);
        logits_.resize(tokens_.size() * kVocab);
        REQUIRE(backend_.execute(batch({}), logits_));
    }

    // Checks the candidates of all rows.
    void check(const Masks &masks, int32_t count) {
        CAPTURE(count);
        std::vector<TokenMask> spans(masks.begin(), masks.end());
        std::vector<TopLogit> found(tokens_.size() * static_cast<size_t>(count));
        std::vector<ExpSum> sums(tokens_.size());
        REQUIRE(backend_.execute(batch(spans), count, found, sums));
        for (size_t row = 0; row < tokens_.size(); ++row) {
            CAPTURE(row);
            const std::vector<uint64_t> mask = masks.empty() ? std::vector<uint64_t>{} : masks[row];
            std::vector<TopLogit> expected;
            for (int32_t t = 0; t < kVocab; ++t)
                expected.push_back(
                    {t, is_allowed(mask, t) ? logits_[row * kVocab + static_cast<size_t>(t)] : kNone});
            std::stable_sort(expected.begin(), expected.end(),
                             [](const TopLogit &a, const TopLogit &b) { return a.logit > b.logit; });
            for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
                const TopLogit &one = found[row * static_cast<size_t>(count) + i];
                CHECK(one.token == expected[i].token);
                CHECK(std::memcmp(&one.logit, &expected[i].logit, sizeof(float)) == 0);
            }
            double sum = 0;
            for (const TopLogit &one : expected)
                sum += std::exp(double{one.logit} - double{expected[0].logit});
            if (count > 1)
                CHECK(sums[row].relative_to(expected[0].logit) == doctest::Approx(sum).epsilon(1e-6));
        }
    }

  private:
    Batch batch(std::span<const TokenMask> masks) {
        span_ = {0, static_cast<int32_t>(tokens_.size()), 0, {table_}};
        return {tokens_, positions_, {&span_, 1}, positions_, nullptr, 0, masks};
    }

    Backend &backend_;
    std::vector<int32_t> tokens_, positions_;
    std::vector<BlockId> table_;
    SequenceSpan span_{};
    std::vector<float> logits_;
};

struct Loaded {
    TinyProgram tiny{{.layers = 1, .width = 32, .feed_forward = 32, .vocab = kVocab}, 71};
    std::unique_ptr<Backend> backend = cuda::make_cuda_backend(0);
    Loaded() { backend->load(tiny.program(), {{kBlocks}}, kMaxTokens); }
    MaskedBatch batch(int32_t rows) {
        return {*backend, random_tokens(static_cast<size_t>(rows), kVocab, 72)};
    }
};

}  // namespace

TEST_CASE("cuda backend: masks of more rows than a launch takes, some of them without") {
    Loaded loaded;
    Random random(73);
    for (const int32_t rows : {2 * cuda::kLinearTokens, 2 * cuda::kLinearTokens + 1}) {
        CAPTURE(rows);
        MaskedBatch batch = loaded.batch(rows);
        for (const int32_t count : {1, 9}) {
            Masks masks = random_masks(random, rows);
            batch.check(masks, count);
            // All rows of a launch have a mask, and none of the next one's.
            for (size_t row = 0; row < masks.size(); ++row)
                if (row < cuda::kLinearTokens)
                    masks[row] = {0, uint64_t{1} << row, 1};
                else
                    masks[row].clear();
            batch.check(masks, count);
            batch.check({}, count);
        }
    }
}

TEST_CASE("cuda backend: a graph that is replayed reads the masks of its batch") {
    Loaded loaded;
    Random random(74);
    for (const int32_t rows : {1, 5, cuda::kLinearTokens}) {
        CAPTURE(rows);
        MaskedBatch batch = loaded.batch(rows);
        for (int round = 0; round < 5; ++round) {
            CAPTURE(round);
            batch.check(random_masks(random, rows), round % 2 ? 1 : 7);
            if (round % 2) batch.check({}, 7);  // in a graph of its own
        }
    }
}

TEST_CASE("cuda backend: the masks of a launch's rows go up in one copy, those of the rows that have one") {
    if (!simt::emulated()) return;
    Loaded loaded;
    constexpr int32_t kRows = 2 * cuda::kLinearTokens + 1;
    constexpr size_t kBytes = (kVocab + 63) / 64 * sizeof(uint64_t);
    MaskedBatch batch = loaded.batch(kRows);
    const auto traffic_of = [&](const Masks &masks) {
        simt::take_host_traffic();
        batch.check(masks, 3);
        return simt::take_host_traffic();
    };
    const simt::HostTraffic plain = traffic_of({});
    Masks masks(kRows);
    for (const size_t row : {0, 3, 4, 20}) masks[row] = {1, 2, 1};
    const simt::HostTraffic masked = traffic_of(masks);
    CHECK(masked.to_device == plain.to_device + 3);
    CHECK(masked.bytes_to_device ==
          plain.bytes_to_device + 3 * cuda::kLinearTokens * sizeof(int32_t) + 4 * kBytes);
}
