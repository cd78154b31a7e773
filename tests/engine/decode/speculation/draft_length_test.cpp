#include "engine/decode/speculation/draft_length.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "tests/support/random.h"

using namespace runnel::decode;
using runnel::testing::Random;

namespace {

// Two cores with AVX2, 1.1 billion weights in Q4_K: a plain step is the unit of time.
constexpr Pass kTable[] = {{1, 1}, {2, 1.5}, {4, 2.6}, {8, 3.7}, {16, 5.8}, {32, 9.4}};
// A device on which 16 tokens cost little more than one.
constexpr Pass kFlat[] = {{1, 1}, {2, 1.02}, {4, 1.05}, {8, 1.1}, {16, 1.3}, {32, 2}};

// A drafted token: its true probability of being accepted, and the probability that the source reports.
struct Odds {
    double accepted;
    float said = 1;
};
using Source = std::function<Odds(Random &random, int pass)>;

Source constant(double acceptance) {
    return [=](Random &, int) { return Odds{acceptance}; };
}

struct Outcome {
    double tokens = 0, seconds = 0;
    std::vector<double> rates{};  // after every pass: tokens per second so far
    double rate() const { return tokens / seconds; }
};

Outcome simulate(const PassCosts &costs, const Source &source, int passes, DraftLengthOptions options,
                 uint64_t seed, double draft_seconds = 0) {
    Random random(seed);
    DraftLength length(options);
    Outcome out;
    for (int pass = 0; pass < passes; ++pass) {
        DraftLength::Round round;
        round.asked = length.ask(costs, 1000);
        std::vector<Odds> odds;
        std::vector<float> said;
        for (int32_t i = 0; i < round.asked; ++i) {
            odds.push_back(source(random, pass));
            said.push_back(odds.back().said);
        }
        round.probabilities = said;
        round.draft_seconds = draft_seconds * round.asked;
        round.verified = length.keep(costs, said);
        while (round.accepted < round.verified &&
               random.uniform() < odds[static_cast<size_t>(round.accepted)].accepted)
            ++round.accepted;
        out.tokens += 1 + round.accepted;
        out.seconds += costs.seconds(1 + round.verified) + round.draft_seconds;
        length.record(costs, round);
        out.rates.push_back(out.rate());
    }
    return out;
}

// Expected tokens per second with the best fixed length.
double best_fixed(const PassCosts &costs, double acceptance, int32_t most, double draft_seconds = 0) {
    double best = 0;
    for (int32_t k = 0; k <= most; ++k) {
        double tokens = 0;
        for (int32_t i = 0; i <= k; ++i) tokens += std::pow(acceptance, i);
        best = std::max(best, tokens / (costs.seconds(1 + k) + k * draft_seconds));
    }
    return best;
}

}  // namespace

TEST_CASE("draft length: at a constant acceptance, within 3% of the best fixed length") {
    for (const auto &table : {std::span<const Pass>(kTable), std::span<const Pass>(kFlat)})
        for (const double drafting : {0.0, 0.05, 0.2}) {
            const PassCosts costs(table);
            for (int tenths = 0; tenths <= 20; ++tenths) {
                const double acceptance = tenths / 20.0;
                double tokens = 0, seconds = 0;
                for (uint64_t seed = 0; seed < 5; ++seed) {
                    const Outcome out =
                        simulate(costs, constant(acceptance), 3000, {.most = 24}, seed, drafting);
                    tokens += out.tokens;
                    seconds += out.seconds;
                }
                CAPTURE(acceptance);
                CAPTURE(drafting);
                CAPTURE(table[1].seconds);
                const double best = best_fixed(costs, acceptance, 24, drafting);
                CHECK(tokens / seconds >= 0.97 * best);
            }
        }
}

TEST_CASE("draft length: a source that is always wrong costs less than 3%") {
    for (const auto &table : {std::span<const Pass>(kTable), std::span<const Pass>(kFlat)})
        for (const double drafting : {0.0, 0.1, 0.5})
            for (const float said : {1.0f, 0.9f, 0.3f})
                for (uint64_t seed = 0; seed < 3; ++seed) {
                    // With any reported probability: always the same, or a different one for every token.
                    const Source sure = [=](Random &, int) { return Odds{0, said}; };
                    const Source varied = [](Random &random, int) { return Odds{0, random.uniform()}; };
                    for (const Source &source : {sure, varied}) {
                        const Outcome out = simulate(PassCosts(table), source, 1000, {}, seed, drafting);
                        CAPTURE(drafting);
                        CAPTURE(said);
                        CHECK(out.tokens == 1000);
                        CHECK(out.rates[127] > 0.97);
                        CHECK(out.rates[255] > 0.97);
                        CHECK(out.rates[999] > 0.98);
                    }
                }
}

TEST_CASE("draft length: badly measured costs keep the loss below its bound") {
    // A pass of 2 tokens costs 4% more than one of 1, and measurements on this machine take up to half as
    // long again.
    constexpr Pass kTrue[] = {{1, 1}, {2, 1.04}, {4, 1.13}, {8, 1.8}, {16, 3.7}, {32, 6.3}};
    const PassCosts truth(kTrue);
    double tokens = 0, seconds = 0;
    for (uint64_t seed = 0; seed < 60; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        const auto took = [&](int32_t size) {
            const double disturbed = random.uniform();
            return truth.seconds(size) * (1 + 0.5 * disturbed * disturbed);
        };
        std::vector<Pass> measured;
        for (const int32_t size : {1, 4, 8, 2, 1, 4}) measured.push_back({size, took(size)});
        PassCosts costs(measured);
        DraftLength length({});
        double spent = 0;
        for (int pass = 0; pass < 120; ++pass) {
            const std::vector<float> said(static_cast<size_t>(length.ask(costs, 1000)), 1.0f);
            DraftLength::Round round{.asked = static_cast<int32_t>(said.size()), .probabilities = said};
            round.verified = length.keep(costs, said);
            spent += truth.seconds(1 + round.verified);
            costs.observe({1 + round.verified, took(1 + round.verified)});
            length.record(costs, round);
        }
        CHECK(120 / spent > 0.97);
        tokens += 120;
        seconds += spent;
    }
    CHECK(tokens / seconds > 0.98);
}

TEST_CASE("draft length: at every moment of any text the loss stays below its bound") {
    for (uint64_t seed = 0; seed < 40; ++seed) {
        CAPTURE(seed);
        Random shape(seed + 1000);
        std::vector<double> stretches(20);  // acceptances of 100 passes each, low on the whole
        for (double &a : stretches) a = shape.below(3) == 0 ? shape.uniform() : 0.3 * shape.uniform();
        const Source source = [&](Random &, int pass) {
            return Odds{stretches[static_cast<size_t>(pass / 100)]};
        };
        const Outcome out = simulate(PassCosts(kTable), source, 2000, {}, seed, 0.1);
        for (size_t pass = 100; pass < out.rates.size(); ++pass) REQUIRE(out.rates[pass] > 0.97);
    }
}

TEST_CASE("draft length: follows a change of acceptance within 50 passes") {
    const PassCosts costs(kTable);
    double up = 0, down = 0;
    constexpr int kSeeds = 20;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
        const auto changing = [&](double before, double after) {
            Random random(seed);
            DraftLength length({});
            double tokens = 0, seconds = 0;
            for (int pass = 0; pass < 700; ++pass) {
                const double acceptance = pass < 500 ? before : after;
                std::vector<float> said(static_cast<size_t>(length.ask(costs, 1000)), 1.0f);
                DraftLength::Round round{.asked = static_cast<int32_t>(said.size()), .probabilities = said};
                round.verified = length.keep(costs, said);
                while (round.accepted < round.verified && random.uniform() < acceptance) ++round.accepted;
                length.record(costs, round);
                if (pass < 550) continue;
                tokens += 1 + round.accepted;
                seconds += costs.seconds(1 + round.verified);
            }
            return tokens / seconds;
        };
        up += changing(0.05, 0.9) / kSeeds;
        down += changing(0.95, 0.05) / kSeeds;
    }
    CHECK(up > 0.9 * best_fixed(costs, 0.9, 16));
    CHECK(down > 0.97);
}

TEST_CASE("draft length: uses the probability that the source reports for every token") {
    // Long runs of right and of wrong drafts alternate. The source can tell them apart, although its
    // probabilities are far from the truth.
    const PassCosts costs(kTable);
    const Source knowing = [](Random &, int pass) {
        return pass % 2 == 0 ? Odds{0.95, 0.7f} : Odds{0.1, 0.5f};
    };
    const Source silent = [](Random &, int pass) { return pass % 2 == 0 ? Odds{0.95} : Odds{0.1}; };
    const double told = simulate(costs, knowing, 3000, {}, 1).rate();
    const double untold = simulate(costs, silent, 3000, {}, 1).rate();
    CHECK(told > 1.25 * untold);
    // The harmonic mean: good and plain passes alternate.
    double tokens = 0;
    for (int i = 0; i <= 16; ++i) tokens += std::pow(0.95, i);
    CHECK(told > 0.93 * (tokens + 1) / (costs.seconds(17) + 1));
}

TEST_CASE("draft length: keeps to the given options") {
    const PassCosts costs(kTable);
    const std::vector<float> said(40, 1.0f);
    SUBCASE("the largest and the smallest length") {
        for (uint64_t seed = 0; seed < 20; ++seed) {
            Random random(seed);
            const DraftLengthOptions options{.least = static_cast<int32_t>(random.below(5)),
                                             .most = static_cast<int32_t>(random.below(20))};
            DraftLength length(options);
            for (int pass = 0; pass < 300; ++pass) {
                const auto room = static_cast<int32_t>(random.below(12));
                DraftLength::Round round{.asked = length.ask(costs, room)};
                REQUIRE(round.asked <= std::min(room, options.most));
                REQUIRE((round.asked == 0 || round.asked >= options.least));
                round.probabilities =
                    std::span(said).first(random.below(static_cast<uint64_t>(round.asked) + 1));
                round.verified = length.keep(costs, round.probabilities);
                REQUIRE(round.verified <= static_cast<int32_t>(round.probabilities.size()));
                REQUIRE((round.verified == 0 || round.verified >= options.least));
                round.accepted =
                    static_cast<int32_t>(random.below(static_cast<uint64_t>(round.verified) + 1));
                length.record(costs, round);
            }
        }
    }
    SUBCASE("a fixed length, also of a source that is wrong") {
        DraftLength length({.most = 7, .fixed = true});
        for (int pass = 0; pass < 50; ++pass) {
            REQUIRE(length.ask(costs, 1000) == 7);
            REQUIRE(length.ask(costs, 3) == 3);
            REQUIRE(length.keep(costs, std::span(said).first(7)) == 7);
            length.record(costs, {.asked = 7, .probabilities = std::span(said).first(7), .verified = 7});
        }
    }
    SUBCASE("the time that the draft model takes for the prompt is not counted") {
        DraftLength length({});
        for (int pass = 0; pass < 20; ++pass) {
            const auto asked = static_cast<size_t>(length.ask(costs, 1000));
            REQUIRE(asked > 0);
            DraftLength::Round round{.asked = static_cast<int32_t>(asked),
                                     .probabilities = std::span(said).first(asked),
                                     .draft_seconds = pass == 0 ? 1000.0 : 0.02 * static_cast<double>(asked)};
            round.verified = round.accepted = length.keep(costs, round.probabilities);
            length.record(costs, round);
        }
        CHECK(length.draft_seconds() == doctest::Approx(0.02));
    }
}

TEST_CASE("draft length: other sequences in the pass make tokens more expensive") {
    // A pass costs 1 up to 8 tokens, and 1 more for each further token: a single sequence can draft 7 tokens,
    // one of eight sequences none.
    constexpr Pass kFull[] = {{1, 1}, {8, 1}, {9, 2}, {16, 9}, {32, 25}};
    const PassCosts costs(kFull);
    const std::vector<float> said(16, 1.0f);
    for (const int32_t beside : {0, 7}) {
        DraftLength length({});
        int32_t verified = 0;
        for (int pass = 0; pass < 200; ++pass) {
            const auto asked = static_cast<size_t>(length.ask(costs, 1000, beside));
            DraftLength::Round round{.asked = static_cast<int32_t>(asked),
                                     .probabilities = std::span(said).first(asked),
                                     .beside = beside};
            round.verified = length.keep(costs, round.probabilities, beside);
            round.accepted = std::min(round.verified, 1 + pass % 5);
            length.record(costs, round);
            verified += round.verified;
        }
        CAPTURE(beside);
        if (beside == 0)
            CHECK(verified > 200 * 4);
        else
            CHECK(verified < 200 / 5);
    }
}
