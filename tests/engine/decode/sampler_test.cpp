#include "engine/decode/sampler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "engine/decode/error.h"
#include "engine/decode/random.h"

using namespace runnel::decode;

namespace {

// A reference chain, step by step over a fully sorted vocabulary.
struct Naive {
    struct Entry {
        TokenId id;
        double logit, p;
    };
    std::vector<Entry> set;

    void sort() {
        std::sort(set.begin(), set.end(), [](const Entry &a, const Entry &b) {
            return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
        });
    }
    void softmax(double t) {
        double top = -1e300, sum = 0;
        for (const Entry &e : set) top = std::max(top, e.logit);
        for (Entry &e : set) sum += e.p = std::exp((e.logit - top) / t);
        for (Entry &e : set) e.p /= sum;
    }

    Naive(const SamplingOptions &o, std::vector<float> logits, const std::vector<TokenId> &history) {
        for (const auto &[id, b] : o.logit_bias) logits[static_cast<size_t>(id)] += b;
        std::map<TokenId, int> counts;
        const size_t window = o.repeat_last_n < 0 ? history.size() : static_cast<size_t>(o.repeat_last_n);
        for (size_t i = history.size() - std::min(history.size(), window); i < history.size(); ++i)
            ++counts[history[i]];
        for (const auto &[id, n] : counts) {
            float &l = logits[static_cast<size_t>(id)];
            l = l > 0 ? l / o.repeat_penalty : l * o.repeat_penalty;
            l -= static_cast<float>(n) * o.frequency_penalty + o.presence_penalty;
        }
        for (size_t i = 0; i < logits.size(); ++i)
            if (std::isfinite(logits[i])) set.push_back({static_cast<TokenId>(i), double{logits[i]}, 0});
        sort();
        if (o.temperature <= 0) {
            set.resize(1);
            set[0].p = 1;
            return;
        }
        if (o.top_k > 0) set.resize(std::min(set.size(), static_cast<size_t>(o.top_k)));
        if (o.typical < 1) typical(double{o.typical});
        if (o.top_p < 1) {
            softmax(1);
            double sum = 0;
            size_t n = 0;
            while (n < set.size() && sum < double{o.top_p}) sum += set[n++].p;
            set.resize(std::max<size_t>(n, 1));
        }
        if (o.min_p > 0) {
            const double least = set[0].logit + std::log(double{o.min_p});
            std::erase_if(set, [&](const Entry &e) { return e.logit < least; });
        }
        softmax(double{o.temperature});
    }
    void typical(double limit) {
        softmax(1);
        double entropy = 0, sum = 0;
        for (const Entry &e : set) entropy -= e.p * std::log(e.p);
        std::stable_sort(set.begin(), set.end(), [&](const Entry &a, const Entry &b) {
            return std::abs(-std::log(a.p) - entropy) < std::abs(-std::log(b.p) - entropy);
        });
        size_t n = 0;
        while (n < set.size() && !(sum > limit)) sum += set[n++].p;
        set.resize(n);
        sort();
    }
};

void compare(const Distribution &ours, Naive &naive) {
    REQUIRE(ours.candidates.size() == naive.set.size());
    auto mine = ours.candidates;  // by id where nothing was filtered
    std::sort(mine.begin(), mine.end(), [](const auto &a, const auto &b) {
        return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
    });
    double sum = 0;
    for (size_t i = 0; i < mine.size(); ++i) {
        CHECK(mine[i].id == naive.set[i].id);
        CHECK(mine[i].probability == doctest::Approx(naive.set[i].p).epsilon(1e-9));
        sum += mine[i].probability;
    }
    CHECK(sum == doctest::Approx(1));
}

template <class T>
T choose(std::mt19937 &rng, std::initializer_list<T> values) {
    return values.begin()[rng() % values.size()];
}

}  // namespace

TEST_CASE("philox: the published test vectors") {
    CHECK(philox({0, 0, 0, 0}, {0, 0}) ==
          std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    CHECK(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) ==
          std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
          std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE(
    "uniform: in range, with the right mean, and different for each position, stream, seed and purpose") {
    double sum = 0;
    for (uint32_t i = 0; i < 20000; ++i) {
        const double u = uniform(7, 0, i, Draw::Residual);
        REQUIRE((u >= 0 && u < 1));
        sum += u;
    }
    CHECK(sum / 20000 == doctest::Approx(0.5).epsilon(0.02));
    const double u = uniform(7, 0, 0, Draw::Residual);
    CHECK(u == uniform(7, 0, 0, Draw::Residual));
    CHECK(u != uniform(7, 0, 1, Draw::Residual));
    CHECK(u != uniform(7, 1, 0, Draw::Residual));
    CHECK(u != uniform(uint64_t{7} << 32, 0, 0, Draw::Residual));
    CHECK(u != uniform(7, 0, 0, Draw::Acceptance));
}

TEST_CASE(
    "noise: Gumbel-distributed, different for each id, position, stream and seed, and within its bound") {
    const int count = 40000;
    double sum = 0, squares = 0, cubes = 0;
    std::array<int, 10> tenths{};  // of the distribution function exp(-exp(-g))
    for (uint32_t i = 0; i < count; ++i) {
        GumbelNoise noise(11, 0, i / 1000);
        const double g = noise.value(i % 1000);
        REQUIRE(g <= noise.bound(i % 1000));
        REQUIRE((g > -3.65 && g < 36.8));
        sum += g, squares += g * g, cubes += g * g * g;
        ++tenths[std::min<size_t>(9, static_cast<size_t>(10 * std::exp(-std::exp(-g))))];
    }
    CHECK(sum / count == doctest::Approx(0.5772).epsilon(0.03));
    CHECK(squares / count == doctest::Approx(0.5772 * 0.5772 + 1.6449).epsilon(0.03));
    for (const int n : tenths) CHECK(std::abs(n - count / 10) < 300);  // 5 standard deviations
    const double g = GumbelNoise(11, 0, 5).value(6);
    CHECK(g == GumbelNoise(11, 0, 5).value(6));
    CHECK(g != GumbelNoise(11, 0, 5).value(7));
    CHECK(g != GumbelNoise(11, 0, 6).value(6));
    CHECK(g != GumbelNoise(11, 1, 5).value(6));
    CHECK(g != GumbelNoise(12, 0, 5).value(6));
}

TEST_CASE("sampler: equals a naive implementation that sorts everything") {
    for (uint32_t seed = 0; seed < 400; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        const int32_t vocab = choose(rng, {1, 2, 17, 300, 1000, 5000});
        std::vector<float> logits(static_cast<size_t>(vocab));
        const bool ties = seed % 5 == 0;  // many equal values
        std::normal_distribution<float> normal(0, choose(rng, {0.1f, 2.0f, 6.0f}));
        for (float &l : logits) l = ties ? std::round(normal(rng)) : normal(rng);
        SamplingOptions o;
        o.temperature = choose(rng, {0.0f, 0.3f, 0.8f, 1.0f, 1.7f});
        o.top_k = choose(rng, {0, 1, 5, 40, 700, 1000000});
        o.top_p = choose(rng, {0.0f, 0.2f, 0.95f, 0.999f, 1.0f});
        o.min_p = choose(rng, {0.0f, 0.05f, 0.9f, 1.0f});
        // With ties, the last bit of a logarithm decides the order of equally typical tokens.
        o.typical = ties ? 1.0f : choose(rng, {1.0f, 1.0f, 0.9f, 0.2f});
        o.repeat_penalty = choose(rng, {1.0f, 1.1f, 2.0f});
        o.presence_penalty = choose(rng, {0.0f, 0.5f});
        o.frequency_penalty = choose(rng, {0.0f, -0.3f});
        o.repeat_last_n = choose(rng, {-1, 0, 3, 64});
        std::vector<TokenId> history;
        for (int i = 0; i < 100; ++i)
            history.push_back(static_cast<TokenId>(rng() % static_cast<uint32_t>(vocab)));
        if (seed % 3 == 0) o.logit_bias = {{0, 1.5f}};
        if (seed % 7 == 0 && vocab > 2) o.logit_bias.push_back({1, -std::numeric_limits<float>::infinity()});
        Naive naive(o, logits, history);
        Sampler sampler(o, vocab);
        compare(sampler.distribution(logits, history), naive);
    }
}

TEST_CASE("sampler: greedy takes the lowest id among equals, whatever else is set") {
    SamplingOptions o;
    o.temperature = 0;
    o.typical = 0.1f;
    Sampler sampler(o, 5);
    const std::vector<float> logits = {1, 3, 2, 3, -1};
    CHECK(sampler.sample(logits, {}) == 1);
    CHECK(sampler.distribution(logits, {}).probability_of(1) == 1);
    CHECK(sampler.distribution(logits, {}).probability_of(3) == 0);
    std::mt19937 rng(26);
    for (const int32_t vocab : {63, 64, 65, 700}) {
        Sampler longer(o, vocab);
        for (int trial = 0; trial < 50; ++trial) {
            CAPTURE(trial);
            std::vector<float> row(static_cast<size_t>(vocab));
            for (float &l : row) l = -static_cast<float>(rng() % 9);
            const auto first = std::max_element(row.begin(), row.end()) - row.begin();
            CHECK(longer.sample(row, {}) == first);
            const auto second = longer.second(0, static_cast<TokenId>(first));
            row[static_cast<size_t>(first)] = -100;
            CHECK(second == std::max_element(row.begin(), row.end()) - row.begin());
        }
    }
}

TEST_CASE("sampler: draws follow the distribution and depend on seed, stream and position only") {
    SamplingOptions o;
    o.temperature = 1, o.top_k = 0, o.top_p = 1, o.min_p = 0, o.seed = 42;
    Sampler sampler(o, 4);
    const std::vector<float> logits = {std::log(0.1f), std::log(0.2f), std::log(0.3f), std::log(0.4f)};
    std::array<int, 4> counts{};
    std::vector<TokenId> history, drawn;
    for (int i = 0; i < 20000; ++i) {
        drawn.push_back(sampler.sample(logits, history));
        ++counts[static_cast<size_t>(drawn.back())];
        history.push_back(0);
    }
    for (size_t i = 0; i < 4; ++i)
        CHECK(counts[i] / 20000.0 == doctest::Approx(0.1 * double(i + 1)).epsilon(0.05));

    Sampler again(o, 4);
    CHECK(again.sample(logits, std::span(history).first(777)) == drawn[777]);
    int different = 0;
    again.set_stream(1);
    for (size_t i = 0; i < 100; ++i)
        different += again.sample(logits, std::span(history).first(i)) != drawn[i];
    CHECK(different > 30);
}

// The draw by its definition, without shortcuts.
static TokenId naive_draw(const SamplingOptions &o, uint32_t stream, size_t position,
                          const Distribution &distribution) {
    TokenId best = -1;
    double most = 0;
    GumbelNoise noise(o.seed, stream, static_cast<uint32_t>(position));
    for (const TokenProb &c : distribution.candidates) {
        const double value =
            double{c.logit} / double{o.temperature} + noise.value(static_cast<uint32_t>(c.id));
        if (best < 0 || value > most || (value == most && c.id < best)) best = c.id, most = value;
    }
    return best;
}

TEST_CASE("sampler: no candidate that could have won is skipped") {
    for (uint32_t seed = 0; seed < 300; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        const int32_t vocab = choose(rng, {1, 2, 17, 300, 5000});
        std::vector<float> logits(static_cast<size_t>(vocab));
        std::normal_distribution<float> normal(0, choose(rng, {0.0f, 0.1f, 2.0f, 6.0f}));
        for (float &l : logits) l = normal(rng);
        SamplingOptions o;
        o.temperature = choose(rng, {0.3f, 1.0f, 3.0f});
        o.top_k = choose(rng, {0, 40}), o.top_p = choose(rng, {0.95f, 1.0f}), o.min_p = 0;
        o.seed = seed;
        Sampler sampler(o, vocab);
        sampler.set_stream(seed % 3);
        const std::vector<TokenId> history(seed % 50, 0);
        const TokenId drawn = sampler.sample(logits, history);
        CHECK(drawn == naive_draw(o, seed % 3, history.size(), sampler.distribution(logits, history)));
        CHECK(drawn == sampler.draw(history.size()));
    }
}

TEST_CASE("sampler: draws have the frequencies of the chain's probabilities (chi-square)") {
    for (uint32_t seed = 0; seed < 6; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        std::vector<float> logits(30);
        std::normal_distribution<float> normal(0, 2);
        for (float &l : logits) l = normal(rng);
        SamplingOptions o;
        o.seed = seed;
        o.temperature = choose(rng, {0.5f, 1.0f, 1.5f});
        if (seed % 2 == 0) o.top_k = 0, o.top_p = 1, o.min_p = 0;
        if (seed % 3 == 0) o.typical = 0.8f;
        Sampler sampler(o, 30);
        constexpr int kDraws = 20000;
        std::vector<int> counts(30);
        const std::vector<TokenId> positions(kDraws, 0);
        for (size_t i = 0; i < kDraws; ++i)
            ++counts[static_cast<size_t>(sampler.sample(logits, std::span(positions).first(i)))];
        double chi_square = 0, rest = 0;
        int classes = 0, rest_count = kDraws;
        for (const TokenProb &c : sampler.distribution(logits, {}).candidates) {
            const double expected = c.probability * kDraws;
            if (expected < 10) {
                rest += expected;
                continue;
            }
            const int n = counts[static_cast<size_t>(c.id)];
            rest_count -= n;
            chi_square += (n - expected) * (n - expected) / expected;
            ++classes;
        }
        if (rest >= 10) chi_square += (rest_count - rest) * (rest_count - rest) / rest, ++classes;
        CAPTURE(classes);
        // Mean d, variance 2 d for d = classes - 1: five standard deviations.
        CHECK(chi_square < classes - 1 + 5 * std::sqrt(2.0 * std::max(1, classes - 1)));
    }
}

TEST_CASE("sampler: two models with the same noise agree as often as the coupling theory says") {
    for (uint32_t seed = 0; seed < 5; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        std::vector<float> p(50), q(50);
        std::normal_distribution<float> normal(0, 2), apart(0, 0.2f + 0.3f * static_cast<float>(seed));
        for (size_t i = 0; i < p.size(); ++i) p[i] = normal(rng), q[i] = p[i] + apart(rng);
        SamplingOptions o;
        o.temperature = 1, o.top_k = 0, o.top_p = 1, o.min_p = 0, o.seed = seed;
        Sampler sampler(o, 50);
        double variation = 0;
        const Distribution of_p = sampler.distribution(p, {}), of_q = sampler.distribution(q, {});
        for (size_t i = 0; i < p.size(); ++i)
            variation += std::abs(of_p.candidates[i].probability - of_q.candidates[i].probability) / 2;
        constexpr int kDraws = 10000;
        const std::vector<TokenId> positions(kDraws, 0);
        int agreed = 0;
        for (size_t i = 0; i < kDraws; ++i) {
            const auto history = std::span(positions).first(i);
            agreed += sampler.sample(p, history) == sampler.sample(q, history);
        }
        CAPTURE(variation);
        const double rate = double(agreed) / kDraws;
        CHECK(rate > (1 - variation) / (1 + variation) - 0.02);
        CHECK(rate < 1 - variation + 0.02);  // no coupling agrees more often
    }
}

TEST_CASE("sampler: rows that cannot be sampled are an error") {
    Sampler sampler({}, 3);
    const float inf = std::numeric_limits<float>::infinity();
    CHECK_THROWS_AS(sampler.sample(std::vector<float>{0, std::nanf(""), 1}, {}), DecodeError);
    CHECK_THROWS_AS(sampler.sample(std::vector<float>{0, inf, 1}, {}), DecodeError);
    CHECK_THROWS_AS(sampler.sample(std::vector<float>{0, -inf, 1}, {}), DecodeError);
    for (size_t at = 0; at < 150; ++at)
        for (const float bad : {std::nanf(""), -std::nanf(""), inf, -inf}) {
            std::vector<float> row(150, -std::numeric_limits<float>::max());
            Sampler longer({}, 150);
            longer.sample(row, {});
            row[at] = bad;
            CHECK_THROWS_AS(longer.sample(row, {}), DecodeError);
        }
    SamplingOptions o;
    o.logit_bias = {{3, 1.0f}};
    CHECK_THROWS_WITH_AS(Sampler(o, 3), doctest::Contains("no token 3"), DecodeError);
    o.logit_bias = {{0, -inf}, {1, -inf}, {2, -inf}};
    for (const float temperature : {0.0f, 1.0f}) {
        o.temperature = temperature;
        Sampler forbidden(o, 3);
        CHECK_THROWS_WITH_AS(forbidden.sample(std::vector<float>{0, 1, 2}, {}),
                             doctest::Contains("forbidden"), DecodeError);
    }
}

TEST_CASE("sampler: rows beyond the vocabulary are ignored") {
    SamplingOptions o;
    o.temperature = 0;
    Sampler sampler(o, 2);
    CHECK(sampler.sample(std::vector<float>{0, 1, 99}, {}) == 1);
}

TEST_CASE("distribution: pick covers the whole unit interval") {
    const Distribution d{{{5, 0, 0.25}, {2, 0, 0.5}, {9, 0, 0.25}}};
    CHECK(d.pick(0) == 5);
    CHECK(d.pick(0.2499) == 5);
    CHECK(d.pick(0.25) == 2);
    CHECK(d.pick(0.75) == 9);
    CHECK(d.pick(std::nextafter(1.0, 0.0)) == 9);
    CHECK(Distribution{{{5, 0, 0.5}, {2, 0, 0.4999999999999}, {3, 0, 0}}}.pick(std::nextafter(1.0, 0.0)) ==
          2);
}
