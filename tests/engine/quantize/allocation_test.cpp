// Allocation under a budget, against all combinations.
#include "engine/quantize/allocation.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/support/random.h"

using namespace runnel;
using namespace runnel::quantize;
using namespace runnel::testing;

namespace {

using Items = std::vector<std::vector<AllocationOption>>;

struct Total {
    uint64_t bytes = 0;
    double cost = 0;
};

Total total(const Items &items, const std::vector<size_t> &chosen) {
    Total sum;
    for (size_t i = 0; i < items.size(); ++i)
        sum.bytes += items[i][chosen[i]].bytes, sum.cost += items[i][chosen[i]].cost;
    return sum;
}

// The least cost of all combinations within the budget; negative if none fits.
double best_cost(const Items &items, uint64_t budget) {
    double best = -1;
    std::vector<size_t> chosen(items.size());
    for (;;) {
        const Total sum = total(items, chosen);
        if (sum.bytes <= budget && (best < 0 || sum.cost < best)) best = sum.cost;
        size_t i = 0;
        while (i < items.size() && ++chosen[i] == items[i].size()) chosen[i++] = 0;
        if (i == items.size()) return best;
    }
}

// Costs fall with the bytes, roughly, as errors do.
Items random_items(Random &random) {
    Items items(1 + random.below(6));
    for (auto &options : items) {
        const uint64_t weights = 1 + random.below(50);
        const double slope = 0.1 + double{random.uniform()};
        for (size_t k = 1 + random.below(5); k > 0; --k) {
            const uint64_t bits = 1 + random.below(8);
            options.push_back(
                {weights * bits, slope * (0.5 + double{random.uniform()}) / double(1u << 2 * bits)});
        }
    }
    return items;
}

}  // namespace

TEST_CASE("allocation: within the budget, and nearly always the best of all combinations") {
    int instances = 0, best = 0;
    for (uint64_t seed = 1; seed <= 600; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        const Items items = random_items(random);
        uint64_t smallest = 0, largest = 0;
        double widest = 0;  // the largest difference of cost within an item
        for (const auto &options : items) {
            const auto [few, many] = std::ranges::minmax_element(options, {}, &AllocationOption::bytes);
            const auto [low, high] = std::ranges::minmax_element(options, {}, &AllocationOption::cost);
            smallest += few->bytes, largest += many->bytes;
            widest = std::max(widest, high->cost - low->cost);
        }
        if (smallest > 0) CHECK_FALSE(allocate(items, smallest - 1));
        const uint64_t budget = smallest + random.below(largest - smallest + 1);
        const auto chosen = allocate(items, budget);
        REQUIRE(chosen);
        const Total sum = total(items, *chosen);
        CHECK(sum.bytes <= budget);
        const double expected = best_cost(items, budget);
        REQUIRE(expected >= 0);
        CHECK(sum.cost >= expected - 1e-12);
        CHECK(sum.cost <= expected + widest + 1e-12);
        ++instances;
        best += sum.cost <= expected + 1e-12;
    }
    CHECK(best > instances * 95 / 100);
}

TEST_CASE("allocation: at the size of a Lagrange solution the result is the best") {
    for (uint64_t seed = 1; seed <= 200; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        const Items items = random_items(random);
        // The minimum of cost + price * bytes is the best for its own size, whatever the price.
        const double price = 0.02 * double{random.uniform()} * double{random.uniform()};
        uint64_t budget = 0;
        double cost = 0;
        for (const auto &options : items) {
            const auto least = std::ranges::min_element(options, {}, [&](const AllocationOption &o) {
                return o.cost + price * static_cast<double>(o.bytes);
            });
            budget += least->bytes, cost += least->cost;
        }
        const auto chosen = allocate(items, budget);
        REQUIRE(chosen);
        CHECK(total(items, *chosen).cost <= cost + 1e-12);
    }
}

TEST_CASE("allocation: equal items and a budget beyond the largest") {
    const Items items(3, {{10, 1.0}, {20, 0.5}, {20, 0.5}, {30, 0.7}});
    CHECK(*allocate(items, 1000) == std::vector<size_t>{1, 1, 1});
    CHECK(*allocate(items, 49) == std::vector<size_t>{1, 0, 0});  // the earlier item first
    CHECK(*allocate(items, 30) == std::vector<size_t>{0, 0, 0});
    CHECK_FALSE(allocate(items, 29));
    CHECK(allocate({}, 0)->empty());
}
