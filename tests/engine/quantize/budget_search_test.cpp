// The smallest budget that keeps a limit.
#include "engine/quantize/budget_search.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "tests/support/random.h"

using namespace runnel;
using namespace runnel::quantize;

TEST_CASE("budget search: finds the smallest budget to within a step, from any start") {
    for (uint64_t seed = 1; seed <= 500; ++seed) {
        CAPTURE(seed);
        testing::Random random(static_cast<unsigned>(seed));
        const uint64_t low = random.below(1000), high = low + random.below(100'000);
        const uint64_t answer = low + random.below(high - low + 1), step = 1 + random.below(200);
        int tries = 0;
        const auto damage = [&](uint64_t budget) {
            REQUIRE(budget >= low);
            REQUIRE(budget <= high);
            ++tries;
            return budget >= answer ? 0.5 : 2.0;
        };
        const auto found = smallest_budget({low, high, random.below(200'000), step}, 1, damage);
        REQUIRE(found);
        CHECK(*found >= answer);
        CHECK(*found < answer + step + (answer == low ? 1 : 0));
        CHECK(tries <= 40);
    }
}

TEST_CASE("budget search: with a noisy damage, the result kept the limit when it was tried") {
    for (uint64_t seed = 1; seed <= 500; ++seed) {
        CAPTURE(seed);
        testing::Random random(static_cast<unsigned>(seed));
        std::map<uint64_t, double> tried;
        const auto damage = [&](uint64_t budget) {
            const double value =
                1000.0 - static_cast<double>(budget) + static_cast<double>(random.below(400));
            return tried[budget] = value;
        };
        const auto found = smallest_budget({0, 1000, random.below(1000), 1 + random.below(20)}, 300, damage);
        if (found)
            CHECK(tried.at(*found) <= 300);
        else
            CHECK(tried.at(1000) > 300);
    }
}

TEST_CASE("budget search: a limit that the largest budget does not keep has no answer") {
    int tries = 0;
    const auto never = [&](uint64_t) { return ++tries, 5.0; };
    CHECK_FALSE(smallest_budget({10, 20, 12, 1}, 4, never));
    CHECK(tries <= 4);
    CHECK(smallest_budget({7, 7, 0, 1}, 5, never) == 7);
}
