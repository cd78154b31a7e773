#include "engine/decode/speculation/pass_costs.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "engine/decode/single_sequence.h"
#include "tests/support/random.h"
#include "tests/support/toy_rig.h"

using namespace runnel::decode;
using namespace runnel::testing;

namespace {

constexpr int32_t kVocab = kToyVocab;

}  // namespace

TEST_CASE("pass costs: measured values are interpolated and extrapolated linearly") {
    constexpr Pass kMeasured[] = {{1, 10}, {2, 14}, {4, 30}, {8, 38}, {2, 16}, {2, 15}};
    const PassCosts costs(kMeasured);
    CHECK(costs.seconds(1) == doctest::Approx(10));
    CHECK(costs.seconds(2) == doctest::Approx(15));  // the median
    CHECK(costs.seconds(3) == doctest::Approx(22.5));
    CHECK(costs.seconds(4) == doctest::Approx(30));
    CHECK(costs.seconds(6) == doctest::Approx(34));
    CHECK(costs.seconds(12) == doctest::Approx(46));
    CHECK(costs.seconds(32) == doctest::Approx(86));
    CHECK(costs.seconds(40) == doctest::Approx(102));
}

TEST_CASE("pass costs: never cheaper for more tokens, whatever was measured") {
    for (uint64_t seed = 0; seed < 200; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        std::vector<Pass> passes;
        for (uint64_t i = 0; i < 1 + random.below(12); ++i)
            passes.push_back({1 + static_cast<int32_t>(random.below(40)), 0.001 + random.uniform()});
        PassCosts costs(passes);
        for (int round = 0; round < 30; ++round) {
            for (int32_t n = 1; n < 60; ++n) {
                REQUIRE(costs.seconds(n) > 0);
                REQUIRE(costs.seconds(n + 1) >= costs.seconds(n) * (1 - 1e-12));  // rounding
            }
            costs.observe({1 + static_cast<int32_t>(random.below(50)), 0.001 + random.uniform()});
        }
    }
}

TEST_CASE("pass costs: passes of the answer correct the measured costs") {
    constexpr Pass kMeasured[] = {{1, 1}, {4, 2}, {16, 5}, {32, 9}};
    SUBCASE("one observation sets the unit") {
        PassCosts costs;
        const double shape = costs.seconds(8) / costs.seconds(1);
        costs.observe({8, 0.037});
        CHECK(costs.seconds(8) == doctest::Approx(0.037));
        CHECK(costs.seconds(1) == doctest::Approx(0.037 / shape));
    }
    SUBCASE("a size is corrected by its own passes, others by all; a disturbed pass is ignored") {
        PassCosts costs(kMeasured);
        for (int i = 0; i < 60; ++i) {
            costs.observe({1, i % 5 == 0 ? 40.0 : 1.5});
            costs.observe({4, i % 7 == 0 ? 0.01 : 2.5});
        }
        CHECK(costs.seconds(1) == doctest::Approx(1.5));
        CHECK(costs.seconds(4) == doctest::Approx(2.5));
        CHECK(costs.seconds(16) > 5 * 1.2);
        CHECK(costs.seconds(16) < 5 * 1.6);
    }
    SUBCASE("sizes that were not seen for long follow the others") {
        PassCosts costs(kMeasured);
        for (int i = 0; i < 10; ++i) costs.observe({16, 50});
        CHECK(costs.seconds(16) == doctest::Approx(50));
        for (int i = 0; i < 300; ++i) costs.observe({1, 1});
        CHECK(costs.seconds(16) == doctest::Approx(5));
    }
    SUBCASE("invalid times and long prompts are ignored") {
        PassCosts costs(kMeasured);
        for (int i = 0; i < 20; ++i) {
            costs.observe({0, 1});
            costs.observe({512, 1});
            costs.observe({4, 0});
            costs.observe({4, -1});
        }
        CHECK(costs.seconds(4) == doctest::Approx(2));
    }
}

TEST_CASE("pass costs: measured at the end of a sequence, which does not change") {
    ToyRig rig({.context = 400, .batch = 64});
    SingleSequence session(rig.executor);
    REQUIRE(session.feed(std::vector<TokenId>(100, 7)));
    const std::vector<float> logits(session.logits().begin(), session.logits().end());
    // A pass takes at least from `begin` to `end`, and at most from the end of the previous pass to the
    // beginning of the next. On a machine of any load, the measured time lies between these bounds.
    using Clock = std::chrono::steady_clock;
    struct Span {
        int32_t tokens, past;
        Clock::time_point begin, end;
    };
    std::vector<Span> passes;
    rig.backend->on_execute = [&](const runnel::kernels::Batch &batch) {
        REQUIRE(batch.sequences.size() == 1);
        CHECK(batch.logit_rows.size() == batch.tokens.size());
        const Clock::time_point begin = Clock::now();
        std::this_thread::sleep_for(std::chrono::microseconds(1000 + 250 * batch.tokens.size()));
        passes.push_back({batch.sequences[0].count, batch.sequences[0].past, begin, Clock::now()});
    };
    constexpr double kSteps = 60;
    const PassCosts costs = measure_pass_costs(session.sequence(), kSteps);
    const Clock::time_point over = Clock::now();
    for (const Span &pass : passes) {
        CHECK(pass.past == 100);
        CHECK(pass.tokens <= 32);
    }
    REQUIRE(passes.size() >= 3);  // the first is not counted
    CHECK(passes[0].tokens == 1);
    CHECK(passes[1].tokens == 1);
    CHECK(passes[2].tokens == 4);
    const auto seconds = [](Clock::time_point from, Clock::time_point to) {
        return std::chrono::duration<double>(to - from).count();
    };
    std::vector<Pass> least, most;
    double spent = 0;  // lower bound
    for (size_t i = 1; i < passes.size(); ++i) {
        const Clock::time_point next = i + 1 < passes.size() ? passes[i + 1].begin : over;
        least.push_back({passes[i].tokens, seconds(passes[i].begin, passes[i].end)});
        most.push_back({passes[i].tokens, seconds(passes[i - 1].end, next)});
        CAPTURE(i);
        if (i > 2) CHECK(spent < kSteps * most[0].seconds);  // otherwise this pass would not have begun
        spent += least.back().seconds;
    }
    // The next size, 8 tokens, costs less than 4 plain steps on the common machine.
    if (most[0].seconds * 5 + most[1].seconds < (kSteps - 1) * least[0].seconds) CHECK(passes.size() > 3);
    for (const int32_t tokens : {1, 4}) {
        CHECK(costs.seconds(tokens) >= PassCosts(least).seconds(tokens));
        CHECK(costs.seconds(tokens) <= PassCosts(most).seconds(tokens));
    }
    CHECK(session.tokens().size() == 100);
    CHECK(std::ranges::equal(session.logits(), logits));
    rig.backend->on_execute = {};
    REQUIRE(session.feed(std::vector<TokenId>(1, 3)));  // the toy checks tables and cells
}

TEST_CASE("pass costs: sizes without room or time are not measured") {
    const auto sizes = [](ToyRig &rig, const SingleSequence &session, const StopRequest *stop) {
        rig.backend->records.clear();
        const PassCosts costs = measure_pass_costs(session.sequence(), 40, stop);
        CHECK(costs.seconds(8) >= costs.seconds(1));
        size_t most = 0;
        for (const ToyBackend::Record &record : rig.backend->records) most = std::max(most, record.tokens);
        return most;
    };
    ToyRig rig({.context = 64, .batch = 16});
    SingleSequence session(rig.executor);
    const size_t all = sizes(rig, session, nullptr);
    CHECK((all >= 4 && all <= 16));  // 16: the batch limits it; fewer: on a busy machine, the time does
    REQUIRE(session.feed(std::vector<TokenId>(58, 1)));
    CHECK(sizes(rig, session, nullptr) <= 6);  // the context limits it
    REQUIRE(session.feed(std::vector<TokenId>(6, 1)));
    CHECK(sizes(rig, session, nullptr) == 0);
    session.truncate(10);
    StopRequest stop;
    stop.request(StopRequest::Reason::Interrupt);
    CHECK(sizes(rig, session, &stop) <= 1);
    CHECK(session.tokens().size() == 10);
}
