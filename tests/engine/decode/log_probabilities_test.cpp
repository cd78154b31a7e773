#include "engine/decode/log_probabilities.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

using namespace runnel::decode;
using runnel::text::TokenId;

TEST_CASE("log-probabilities: log softmax in double, with ranks and the most probable tokens in order") {
    for (uint32_t seed = 0; seed < 200; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        const bool ties = seed % 2 == 0;
        std::vector<float> logits(1 + rng() % 300);
        for (float &l : logits)
            l = ties ? static_cast<float>(rng() % 7) : static_cast<float>(rng() % 100000) / 1000 - 60;
        if (seed % 5 == 0) logits[rng() % logits.size()] = 3e38f;
        const long double top = static_cast<long double>(*std::ranges::max_element(logits));
        long double sum = 0;
        for (const float l : logits) sum += std::exp(static_cast<long double>(l) - top);
        const auto expected = [&](TokenId id) {
            return static_cast<double>(static_cast<long double>(logits[static_cast<size_t>(id)]) - top -
                                       std::log(sum));
        };
        std::vector<TokenId> order(logits.size());
        std::iota(order.begin(), order.end(), 0);
        std::ranges::stable_sort(order, [&](TokenId a, TokenId b) {
            return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
        });
        const auto id = static_cast<TokenId>(rng() % logits.size());
        const auto wanted = static_cast<int32_t>(rng() % 25);
        const TokenLogProbabilities got = log_probabilities(logits, id, wanted);
        CHECK(got.token.id == id);
        CHECK(got.token.log_probability == doctest::Approx(expected(id)).epsilon(1e-12));
        CHECK(order[static_cast<size_t>(got.token.rank) - 1] == id);
        REQUIRE(got.top.size() == std::min(static_cast<size_t>(wanted), logits.size()));
        for (size_t i = 0; i < got.top.size(); ++i) {
            CHECK(got.top[i].id == order[i]);
            CHECK(got.top[i].rank == static_cast<int32_t>(i) + 1);
            CHECK(got.top[i].log_probability == doctest::Approx(expected(order[i])).epsilon(1e-12));
        }
    }
}
