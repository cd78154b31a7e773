// Percentiles and fits, compared with their definitions.
#include "engine/measure/percentile.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "engine/measure/batching.h"
#include "engine/measure/naive.h"
#include "engine/measure/roofline.h"

namespace runnel::measure {
namespace {

TEST_CASE("percentile: equals nearest rank by counting") {
    CHECK(percentile({7}, 50) == 7);
    CHECK(percentile({4, 1, 3, 2}, 50) == 2);
    CHECK(percentile({4, 1, 3, 2}, 75) == 3);
    CHECK(percentile({4, 1, 3, 2}, 76) == 4);
    const unsigned seed = 8;
    CAPTURE(seed);
    std::mt19937 random(seed);
    for (int round = 0; round < 200; ++round) {
        std::vector<double> values(1 + random() % 150);
        for (double &value : values) value = static_cast<double>(random() % 40);
        for (const double percent : {1.0, 50.0, 95.0, 99.0, 100.0}) {
            const double found = percentile(values, percent);
            size_t at_most = 0, below = 0;
            for (const double value : values) at_most += value <= found, below += value < found;
            const double wanted = percent / 100 * static_cast<double>(values.size());
            CHECK(static_cast<double>(at_most) >= wanted - 1e-6);
            CHECK(static_cast<double>(below) < wanted + 1e-6);
        }
    }
}

TEST_CASE("naive: the exponent and the crossing of times given by a formula are found") {
    std::vector<double> x, y;
    for (int i = 1; i < 50; ++i) x.push_back(i), y.push_back(3 * std::pow(i, 1.75));
    CHECK(growth_exponent(x, y) == doctest::Approx(1.75));
    NaiveComparison compared;
    for (int64_t length = 1; length <= 100; ++length)
        compared.steps.push_back({length, 0.5, 0.01 * static_cast<double>(length * length), {}, {}});
    CHECK(compared.cached_exponent() == doctest::Approx(0));
    CHECK(compared.naive_exponent() == doctest::Approx(2));
    CHECK(compared.cached_seconds() == doctest::Approx(50));
    CHECK(compared.naive_seconds() == doctest::Approx(0.01 * 338350));
    CHECK(compared.slower_from(2) == 11);  // 0.01 * 11^2 > 1
    CHECK(compared.slower_from(1e6) == 0);
    compared.steps[60].naive = 0;
    CHECK(compared.slower_from(2) == 62);
}

TEST_CASE("batching: arrivals are a Poisson process, and the rate only scales them") {
    constexpr int kCount = 4000;
    const std::vector<double> one = arrivals(kCount, 1, 7), ten = arrivals(kCount, 10, 7);
    REQUIRE(one.size() == kCount);
    CHECK(one[0] == 0);
    CHECK(arrivals(3, 0, 7) == std::vector<double>{0, 0, 0});
    double sum = 0, squares = 0;
    int longer = 0;  // than the mean gap: e^-1 of an exponential distribution
    for (size_t i = 1; i < one.size(); ++i) {
        const double gap = one[i] - one[i - 1];
        REQUIRE(gap >= 0);
        sum += gap, squares += gap * gap, longer += gap > 1;
        CHECK(ten[i] == doctest::Approx(one[i] / 10));
    }
    CHECK(sum / (kCount - 1) == doctest::Approx(1).epsilon(0.05));
    CHECK(squares / (kCount - 1) == doctest::Approx(2).epsilon(0.1));
    CHECK(longer / static_cast<double>(kCount - 1) == doctest::Approx(std::exp(-1)).epsilon(0.05));
    CHECK(arrivals(10, 1, 8) != arrivals(10, 1, 7));
}

TEST_CASE("roofline: the roof, its ridge and the share of decode follow the formulas") {
    Roofline roofline;
    roofline.bandwidth = 20e9, roofline.multiply_rate = 800e9;
    roofline.first_token = 2, roofline.steps = {0.5, 0.5, 1};
    CHECK(roofline.ridge() == 40);
    CHECK(roofline.roof(2) == 40e9);
    CHECK(roofline.roof(40) == 800e9);
    CHECK(roofline.roof(1000) == 800e9);
    CHECK(roofline.decode_share() == 0.5);
}

}  // namespace
}  // namespace runnel::measure
