// Selection on the host, and sums that do not depend on the order of their terms.
#include "kernels/row_selection.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/random.h"
#include "tests/support/reference.h"

using namespace runnel;
using namespace runnel::kernels;
using runnel::testing::Random;

namespace {

constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN(),
                kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> random_row(Random &random, size_t vocab, float scale, bool coarse) {
    std::vector<float> logits(vocab);
    for (float &l : logits) {
        l = random.normal() * scale;
        if (coarse) l = std::rint(l) * 0.5f;
    }
    return logits;
}

// About one token in `one_in`, but at least one.
std::vector<uint64_t> random_bits(Random &random, size_t vocab, uint64_t one_in) {
    std::vector<uint64_t> mask((vocab + 63) / 64);
    const uint64_t always = random.below(vocab);
    for (uint64_t token = 0; token < vocab; ++token)
        if (token == always || random.below(one_in) == 0) mask[token / 64] |= uint64_t{1} << token % 64;
    return mask;
}
bool allows(TokenMask mask, size_t token) {
    return mask.empty() || (mask[token / 64] >> token % 64 & 1) != 0;
}

std::vector<TopLogit> selection_of(std::span<const float> logits, TokenMask mask, size_t count) {
    std::vector<TopLogit> found(count);
    select_candidates(logits, mask, found);
    return found;
}

bool same_candidate(const TopLogit &a, const TopLogit &b) {
    return a.token == b.token && (a.logit == b.logit || (std::isnan(a.logit) && std::isnan(b.logit)));
}

}  // namespace

TEST_CASE("row selection: the sorted head of a row, with a mask or without") {
    Random random(3);
    for (const size_t vocab : {1, 64, 131, 1000})
        for (const bool coarse : {false, true})
            for (const uint64_t one_in : {0, 1, 3, 300}) {
                CAPTURE(vocab);
                CAPTURE(one_in);
                const std::vector<float> logits = random_row(random, vocab, 3, coarse);
                const auto mask = one_in == 0 ? std::vector<uint64_t>() : random_bits(random, vocab, one_in);
                std::vector<TopLogit> all;
                for (size_t t = 0; t < vocab; ++t)
                    all.push_back({static_cast<int32_t>(t), allows(mask, t) ? logits[t] : -kInfinity});
                std::ranges::stable_sort(all, std::greater(), &TopLogit::logit);
                for (const size_t count : {size_t{1}, vocab / 2 + 1, vocab})
                    CHECK(std::ranges::equal(selection_of(logits, mask, count), std::span(all).first(count),
                                             same_candidate));
            }
}

TEST_CASE("row selection: the first logit that is not finite is the first candidate, also outside the mask") {
    const std::vector<uint64_t> mask = {0b01011};
    for (const float odd : {kNotANumber, -kNotANumber, kInfinity, -kInfinity})
        for (const size_t count : {1, 2, 5})
            for (const TokenMask allowed : {TokenMask(), TokenMask(mask)}) {
                const TopLogit first =
                    selection_of(std::vector<float>{7, 3e38f, odd, -5, odd}, allowed, count)[0];
                CHECK(first.token == 2);
                CHECK(std::isnan(first.logit));
            }
    // Refused tokens are not that.
    CHECK(selection_of(std::vector<float>{1, 2}, std::vector<uint64_t>{0}, 1)[0].logit == -kInfinity);
}

TEST_CASE("row selection: parts of a row, joined, are the whole one's candidates and sum") {
    Random random(4);
    for (int round = 0; round < 60; ++round) {
        CAPTURE(round);
        const size_t vocab = 1 + random.below(400), count = 1 + random.below(vocab);
        std::vector<float> logits = random_row(random, vocab, round % 7 == 0 ? 40 : 3, round % 2 == 0);
        const auto mask =
            round % 3 == 0 ? std::vector<uint64_t>() : random_bits(random, vocab, 1 + random.below(50));
        const bool odd = round % 10 == 9;
        if (odd)
            logits[random.below(vocab)] = logits[random.below(vocab)] =
                std::vector{kNotANumber, kInfinity, -kInfinity}[random.below(3)];
        std::vector<std::vector<TopLogit>> parts;
        ExpSum sum;
        for (size_t begin = 0; begin < vocab;) {
            const size_t size = 1 + random.below(std::min<size_t>(vocab - begin, 90));
            const std::span<const float> part = std::span(logits).subspan(begin, size);
            std::vector<uint64_t> memory;
            const TokenMask own =
                part_of_mask(mask, {static_cast<int64_t>(begin), static_cast<int64_t>(begin + size)}, memory);
            CHECK(own.empty() == mask.empty());
            parts.push_back(selection_of(part, own, std::min(count, size)));
            for (TopLogit &one : parts.back()) one.token += static_cast<int32_t>(begin);
            sum.add(sum_of_exp(part, own));
            begin += size;
        }
        std::vector<std::span<const TopLogit>> lists(parts.begin(), parts.end());
        std::vector<TopLogit> joined(count);
        join_candidates(lists, joined);
        const std::vector<TopLogit> expected = selection_of(logits, mask, count);
        if (odd) {
            CHECK(same_candidate(joined[0], expected[0]));
        } else {
            CHECK(std::ranges::equal(joined, expected, same_candidate));
            CHECK(sum == sum_of_exp(logits, mask));
        }
    }
}

TEST_CASE(
    "row selection: a sum of exponentials has the same bits in every order, and the value of double "
    "precision") {
    Random random(5);
    for (const float scale : {0.0f, 1.0f, 8.0f, 60.0f, 3000.0f}) {
        CAPTURE(scale);
        std::vector<float> logits = random_row(random, 500, scale, false);
        for (float &l : logits) l += scale * 0.3f;
        const ExpSum sum = sum_of_exp(logits, {});
        const float largest = *std::ranges::max_element(logits);
        const double exact = reference::log_sum_exp(reference::to_row(logits)) - double{largest};
        CHECK(sum.relative_to(largest) == doctest::Approx(std::exp(exact)).epsilon(6e-7));
        for (int round = 0; round < 5; ++round) {
            std::shuffle(logits.begin(), logits.end(), std::mt19937(static_cast<uint32_t>(round)));
            ExpSum again;
            for (const float l : logits) again.add(l);
            CHECK(again == sum);
        }
    }
    // Many equal terms, a term far below, and extreme ones.
    CHECK(sum_of_exp(std::vector<float>(1 << 18, -3.0f), {}).relative_to(-3.0f) == 1 << 18);
    CHECK(sum_of_exp(std::vector<float>{0, -100}, {}).relative_to(0) == 1);
    CHECK(sum_of_exp(std::vector<float>{3e38f, -3e38f, 1}, {}).relative_to(3e38f) == 1);
    CHECK(sum_of_exp(std::vector<float>{-3e38f}, {}).relative_to(-3e38f) == 1);
    CHECK(sum_of_exp(std::vector<float>{1, 2}, std::vector<uint64_t>{0}).relative_to(-kInfinity) == 0);
}

TEST_CASE("row selection: the exponential of every logit is within 4e-7") {
    double worst = 0;
    for (double x = -10000; x < 10000; x += 0.37) {
        const auto f = static_cast<float>(x);
        const ExpPower power = exp_power(f);
        CHECK(power.mantissa > 0.7 * (1 << 24));
        CHECK(power.mantissa < 1.42 * (1 << 24));
        const double log = std::log(double(power.mantissa) / (1 << 24)) + power.exponent * std::log(2.0);
        worst = std::max(worst, std::abs(log - double{f}));
    }
    CHECK(worst < 4e-7);
}
