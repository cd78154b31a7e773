// DRY, XTC, top-n-sigma, dynamic temperature, mirostat, adaptive-p and the order of the steps: compared with
// definitions in double that share no code with them, and with numbers of llama.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/decode/error.h"
#include "engine/decode/random.h"
#include "engine/decode/sampler.h"
#include "engine/decode/sampling_settings.h"

using namespace runnel::decode;

namespace {

// The logits from which llama.cpp computed the numbers below.
std::vector<float> peer_logits() {
    std::vector<float> logits;
    for (int i = 0; i < 64; ++i)
        logits.push_back(static_cast<float>((i * 7919 + 13) % 257) / 32.0f - 3.0f -
                         static_cast<float>(i % 5) * 0.25f);
    return logits;
}

SamplingOptions nothing() {
    SamplingOptions o;
    o.temperature = 1, o.top_k = 0, o.top_p = 1, o.min_p = 0;
    return o;
}

using Probabilities = std::map<TokenId, double>;

Probabilities of(const Distribution &distribution) {
    Probabilities all;
    for (const TokenProb &c : distribution.candidates) all[c.id] = c.probability;
    return all;
}

// A reference sampler: every step by its formula, on a map of logits.
class Definition {
  public:
    Definition(const SamplingOptions &o, const std::vector<float> &logits, double coin) : o_(o), coin_(coin) {
        for (size_t i = 0; i < logits.size(); ++i) l_[static_cast<TokenId>(i)] = double{logits[i]};
    }
    Probabilities probabilities() const {
        double top = -1e300, sum = 0;
        Probabilities p = l_;
        for (const auto &[id, l] : l_) top = std::max(top, l);
        for (auto &[id, value] : p) sum += value = std::exp(value - top);
        for (auto &[id, value] : p) value /= sum;
        return p;
    }
    void apply(SamplerKind kind, const std::map<TokenId, double> &dry) {
        const Probabilities p = probabilities();
        const std::vector<TokenId> order = descending(p);
        switch (kind) {
            case SamplerKind::Penalties:
                return;
            case SamplerKind::Dry:
                for (auto &[id, l] : l_)
                    if (dry.contains(id)) l -= dry.at(id);
                return;
            case SamplerKind::TopNSigma: {
                if (o_.top_n_sigma <= 0) return;
                double mean = 0, square = 0;
                const auto n = static_cast<double>(l_.size());
                for (const auto &[id, l] : l_) mean += l / n;
                for (const auto &[id, l] : l_) square += (l - mean) * (l - mean) / n;
                const double least = l_.at(order[0]) - double{o_.top_n_sigma} * std::sqrt(square);
                return keep([&](TokenId id) { return l_.at(id) >= least; });
            }
            case SamplerKind::TopK:
                if (o_.top_k > 0) keep_first(order, static_cast<size_t>(o_.top_k));
                return;
            case SamplerKind::Typical:
                if (o_.typical < 1) typical(p);
                return;
            case SamplerKind::TopP: {
                double sum = 0;
                size_t n = 0;
                while (n < order.size() && sum < double{o_.top_p}) sum += p.at(order[n++]);
                if (o_.top_p < 1) keep_first(order, std::max<size_t>(1, n));
                return;
            }
            case SamplerKind::MinP:
                return keep([&](TokenId id) { return p.at(id) >= double{o_.min_p} * p.at(order[0]); });
            case SamplerKind::Xtc: {
                size_t above = 0;
                while (above < order.size() && p.at(order[above]) >= double{o_.xtc_threshold}) ++above;
                if (coin_ < double{o_.xtc_probability} && o_.xtc_threshold <= 0.5f)
                    for (size_t i = 0; i + 1 < above; ++i) l_.erase(order[i]);
                return;
            }
            case SamplerKind::Temperature: {
                double t = double{o_.temperature}, entropy = 0;
                if (o_.dynatemp_range > 0 && l_.size() > 1) {
                    for (const auto &[id, value] : p) entropy -= value > 0 ? value * std::log(value) : 0;
                    const double low = std::max(0.0, t - double{o_.dynatemp_range});
                    const double high = t + double{o_.dynatemp_range};
                    t = low + (high - low) * std::pow(entropy / std::log(static_cast<double>(l_.size())),
                                                      double{o_.dynatemp_exponent});
                }
                for (auto &[id, l] : l_) l /= t;
                return;
            }
        }
    }
    std::vector<TokenId> descending(const Probabilities &p) const {
        std::vector<TokenId> ids;
        for (const auto &[id, value] : p) ids.push_back(id);
        std::ranges::stable_sort(ids, [&](TokenId a, TokenId b) { return l_.at(a) > l_.at(b); });
        return ids;
    }
    template <class Keep>
    void keep(Keep wanted) {
        std::vector<TokenId> out;
        for (const auto &[id, l] : l_)
            if (!wanted(id)) out.push_back(id);
        for (const TokenId id : out) l_.erase(id);
    }
    Probabilities l_;

  private:
    void keep_first(const std::vector<TokenId> &order, size_t n) {
        for (size_t i = n; i < order.size(); ++i) l_.erase(order[i]);
    }
    void typical(const Probabilities &p) {
        double entropy = 0, sum = 0;
        for (const auto &[id, value] : p) entropy -= value > 0 ? value * std::log(value) : 0;
        std::vector<TokenId> order = descending(p);
        std::ranges::stable_sort(order, [&](TokenId a, TokenId b) {
            return std::abs(-std::log(p.at(a)) - entropy) < std::abs(-std::log(p.at(b)) - entropy);
        });
        size_t n = 0;
        while (n < order.size() && !(sum > double{o_.typical})) sum += p.at(order[n++]);
        keep_first(order, n);
    }
    const SamplingOptions &o_;
    double coin_;
};

void check_close(const Probabilities &got, const Probabilities &wanted, double epsilon = 1e-6) {
    REQUIRE(got.size() == wanted.size());
    for (const auto &[id, p] : wanted) {
        REQUIRE(got.contains(id));
        CHECK(got.at(id) == doctest::Approx(p).epsilon(epsilon));
    }
}

// DRY by its definition: compares every suffix of the window with every earlier position.
std::map<TokenId, double> naive_dry(const SamplingOptions &o, const std::vector<TokenId> &history,
                                    const std::vector<TokenId> &breakers) {
    std::map<TokenId, double> penalties;
    std::vector<TokenId> w = history;
    if (o.dry_last_n >= 0 && w.size() > static_cast<size_t>(o.dry_last_n))
        w.erase(w.begin(), w.end() - o.dry_last_n);
    const auto is_breaker = [&](TokenId id) { return std::ranges::count(breakers, id) > 0; };
    const auto allowed = static_cast<size_t>(o.dry_allowed_length);
    for (size_t end = 1; end < w.size(); ++end) {  // w[end] follows an earlier place
        size_t length = 0;
        while (length < end && w[end - 1 - length] == w[w.size() - 1 - length] &&
               !is_breaker(w[w.size() - 1 - length]))
            ++length;
        if (length < allowed || w.size() <= allowed || is_breaker(w[end])) continue;
        const double most = std::floor(88.7228391 / std::log(double{o.dry_base}));
        const double penalty =
            double{o.dry_multiplier} *
            std::pow(double{o.dry_base}, std::min(most, static_cast<double>(length - allowed)));
        penalties[w[end]] = std::max(penalties[w[end]], penalty);
    }
    return penalties;
}

TokenId draw_by(const Probabilities &p, const SamplingOptions &o, size_t position) {
    GumbelNoise noise(o.seed, 0, static_cast<uint32_t>(position));
    TokenId best = -1;
    double most = -1e300;
    for (const auto &[id, value] : p)
        if (const double v = std::log(value) + noise.value(static_cast<uint32_t>(id)); v > most)
            best = id, most = v;
    return best;
}

}  // namespace

// The numbers come from llama_sampler_init_top_n_sigma, _xtc (probability 1), _temp_ext, ... of xllamacpp
// 2026.10.11549, applied with ctypes to peer_logits(); probabilities are the softmax of the remaining logits.
TEST_CASE("samplers: results equal llama.cpp's recorded numbers") {
    struct Case {
        const char *samplers;
        SamplingOptions options;
        std::vector<TokenId> first;  // the first ids
        size_t count;
        std::vector<double> largest;
    };
    const auto with = [](auto set) {
        SamplingOptions o = nothing();
        set(o);
        return o;
    };
    const Case cases[] = {
        {"s",
         with([](auto &o) { o.top_n_sigma = 1; }),
         {1, 6, 7, 11, 12, 17},
         16,
         {0.189232, 0.111243, 0.095152, 0.081387}},
        {"st",
         with([](auto &o) { o.top_n_sigma = 1.5f, o.temperature = 0.7f; }),
         {1, 2, 6, 7, 11, 12},
         25,
         {0.259229, 0.121362, 0.097083, 0.077661}},
        {"ts",
         with([](auto &o) { o.top_n_sigma = 1.5f, o.temperature = 0.7f; }),
         {1, 2, 6, 7, 11, 12},
         25,
         {0.259229, 0.121362, 0.097083, 0.077661}},
        {"kx",
         with([](auto &o) { o.top_k = 20, o.xtc_probability = 1, o.xtc_threshold = 0.05f; }),
         {7, 12, 17, 23, 28, 33},
         13,
         {0.149603, 0.127962, 0.112926, 0.109452}},
        {"kt",
         with([](auto &o) { o.top_k = 40, o.temperature = 0.8f, o.dynatemp_range = 0.5f; }),
         {1, 2, 3, 6, 7, 8},
         40,
         {0.145228, 0.090150, 0.078353, 0.068101}},
        {"t",
         with([](auto &o) { o.temperature = 0.5f, o.dynatemp_range = 0.75f, o.dynatemp_exponent = 2; }),
         {0, 1, 2, 3, 4, 5},
         64,
         {0.271300, 0.122646, 0.097106, 0.076884}},
        {"tp",
         with([](auto &o) { o.temperature = 2, o.top_p = 0.9f; }),
         {1, 2, 3, 6, 7, 8},
         35,
         {0.081190, 0.062251, 0.057572, 0.053246}},
        {"pt",
         with([](auto &o) { o.temperature = 2, o.top_p = 0.9f; }),
         {1, 6, 7, 11, 12, 17},
         19,
         {0.104020, 0.079755, 0.073762, 0.068218}},
        {"tm",
         with([](auto &o) { o.temperature = 0.5f, o.min_p = 0.05f; }),
         {1, 6, 11, 17, 22, 33},
         9,
         {0.428532, 0.148097, 0.108350, 0.079270}},
        {"ty",
         with([](auto &o) { o.temperature = 1.5f, o.typical = 0.6f; }),
         {1, 7, 12, 17, 22, 23},
         18,
         {0.099670, 0.089810, 0.082630, 0.080926}},
    };
    for (const Case &c : cases) {
        CAPTURE(c.samplers);
        SamplingOptions o = c.options;
        o.samplers = parse_samplers(c.samplers);
        const Probabilities got = of(Sampler(o, 64).distribution(peer_logits(), {}));
        CHECK(got.size() == c.count);
        std::vector<double> largest;
        std::vector<TokenId> ids;
        for (const auto &[id, p] : got) ids.push_back(id), largest.push_back(p);
        ids.resize(c.first.size());
        CHECK(ids == c.first);
        std::ranges::sort(largest, std::greater<>());
        for (size_t i = 0; i < c.largest.size(); ++i)
            CHECK(largest[i] == doctest::Approx(c.largest[i]).epsilon(2e-5));
    }
}

// From llama_sampler_init_dry_testing of the same library: histories of random.seed(5), logits 0.
TEST_CASE("DRY: penalties equal llama.cpp's recorded numbers") {
    struct Case {
        float multiplier, base;
        int32_t allowed, last_n;
        DryBreakers breakers;
        std::vector<TokenId> history;
        std::map<TokenId, double> penalties;
    };
    const DryBreakers three = {{3, {{}}}}, pair = {{2, {{5}}}, {4, {{}}}};
    std::vector<TokenId> endless;
    for (int i = 0; i < 60; ++i) endless.insert(endless.end(), {1, 2, 0});
    const Case cases[] = {
        {0.8f,
         1.75f,
         2,
         64,
         {},
         {4, 2, 5, 2, 6, 5, 6, 5, 5, 4, 0, 6, 5, 2, 6, 5, 6, 5, 3, 2, 5, 2, 6, 5},
         {{2, 0.8}, {3, 0.8}, {5, 0.8}, {6, 4.2875}}},
        {0.8f,
         1.75f,
         2,
         64,
         {},
         {6, 1, 5, 0, 1, 0, 2, 3, 6, 1, 3, 4, 5, 0, 1, 0, 2, 3, 0, 1, 5, 0, 1, 0},
         {{2, 4.2875}}},
        {1.5f,
         2,
         1,
         20,
         {},
         {4, 1, 0, 5, 1, 3, 2, 1, 6, 6, 3, 1, 0, 5, 1, 3, 2, 1, 6, 1, 0, 5, 1, 3},
         {{1, 1.5}, {2, 24}}},
        {1.5f,
         2,
         1,
         20,
         {},
         {6, 0, 1, 4, 4, 3, 1, 1, 0, 6, 0, 1, 1, 4, 4, 3, 1, 1, 6, 0, 1, 4, 4, 3},
         {{1, 12}}},
        {0.8f,
         1.75f,
         2,
         64,
         three,
         {1, 1, 6, 1, 2, 2, 1, 4, 5, 5, 1, 1, 6, 1, 2, 2, 1, 4, 5, 1, 6, 1, 2, 2},
         {{1, 4.2875}}},
        {0.8f,
         1.75f,
         2,
         64,
         three,
         {1, 3, 2, 0, 2, 3, 1, 1, 2, 0, 2, 2, 2, 0, 2, 3, 1, 1, 6, 3, 2, 0, 2, 3},
         {}},
        {0.8f,
         1.75f,
         1,
         64,
         pair,
         {4, 4, 0, 4, 5, 5, 2, 0, 2, 2, 6, 2, 0, 4, 5, 5, 2, 0, 3, 4, 0, 4, 5, 5},
         {{2, 1.4}, {5, 0.8}}},
        {0.8f,
         1.75f,
         1,
         64,
         pair,
         {5, 2, 1, 3, 3, 5, 1, 0, 2, 0, 5, 2, 1, 3, 3, 5, 1, 0, 6, 2, 1, 3, 3, 5},
         {{1, 7.50313}, {2, 0.8}}},
        {0.8f, 1.75f, 2, 400, {}, endless, {{1, 2.00956e38}}},
    };
    for (const Case &c : cases) {
        SamplingOptions o;
        o.dry_multiplier = c.multiplier, o.dry_base = c.base;
        o.dry_allowed_length = c.allowed, o.dry_last_n = c.last_n;
        const auto got = dry_penalties(o, &c.breakers, c.history);
        CHECK(got.size() == c.penalties.size());
        for (const auto &[id, penalty] : c.penalties) {
            REQUIRE(got.contains(id));
            CHECK(double{got.at(id)} == doctest::Approx(penalty).epsilon(1e-5));
        }
    }
}

TEST_CASE("DRY: matches a brute-force search") {
    for (uint32_t seed = 0; seed < 400; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        SamplingOptions o;
        o.dry_multiplier = 0.5f, o.dry_base = 1.0f + static_cast<float>(rng() % 4) / 2 + 0.25f;
        o.dry_allowed_length = static_cast<int32_t>(rng() % 4),
        o.dry_last_n = static_cast<int32_t>(rng() % 50) - 1;
        if (o.dry_last_n == 0) o.dry_last_n = 1;
        std::vector<TokenId> history(rng() % 60), singles;
        for (TokenId &id : history) id = static_cast<TokenId>(rng() % (1 + seed % 6));
        DryBreakers breakers;
        if (rng() % 2) singles.push_back(static_cast<TokenId>(rng() % 6));
        for (const TokenId id : singles) breakers[id].emplace_back();
        const auto wanted = naive_dry(o, history, singles);
        const auto got = dry_penalties(o, &breakers, history);
        REQUIRE(got.size() == wanted.size());
        for (const auto &[id, penalty] : wanted)
            CHECK(double{got.at(id)} == doctest::Approx(penalty).epsilon(1e-5));
    }
}

TEST_CASE("samplers: any order equals the formulas in double") {
    for (uint32_t seed = 0; seed < 300; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        std::normal_distribution<float> normal(0, 3);
        std::vector<float> logits(static_cast<size_t>(20 + rng() % 100));
        for (float &l : logits) l = normal(rng);
        std::vector<TokenId> history(rng() % 40);
        for (TokenId &id : history) id = static_cast<TokenId>(rng() % 5);
        SamplingOptions o = nothing();
        o.seed = seed;
        o.temperature = 0.3f + static_cast<float>(rng() % 20) / 10;
        if (rng() % 2) o.top_k = 1 + static_cast<int32_t>(rng() % 30);
        if (rng() % 2) o.top_p = 0.85f;
        if (rng() % 2) o.min_p = 0.03f;
        if (rng() % 2) o.typical = 0.9f;
        if (rng() % 2) o.top_n_sigma = 1.5f;
        if (rng() % 2) o.xtc_probability = 0.5f, o.xtc_threshold = 0.07f;
        if (rng() % 2) o.dynatemp_range = 0.29f, o.dynatemp_exponent = 1.3f;
        if (rng() % 2) o.dry_multiplier = 0.8f;
        std::ranges::shuffle(o.samplers, rng);
        o.samplers.resize(o.samplers.size() - rng() % 4);
        Sampler sampler(o, static_cast<int32_t>(logits.size()));
        Definition definition(o, logits,
                              uniform(o.seed, 0, static_cast<uint32_t>(history.size()), Draw::Exclusion));
        const auto dry = o.dry_multiplier > 0 ? naive_dry(o, history, {}) : std::map<TokenId, double>();
        for (const SamplerKind kind : o.samplers) definition.apply(kind, dry);
        const Probabilities got = of(sampler.distribution(logits, history));
        check_close(got, definition.probabilities(), 1e-4);
        CHECK(sampler.sample(logits, history) == draw_by(got, o, history.size()));
    }
}

TEST_CASE("mirostat and adaptive-p: their state follows the formulas, also after drafts") {
    for (const int kind : {1, 2, 3}) {
        CAPTURE(kind);
        SamplingOptions o = nothing();
        o.seed = 5;
        o.temperature = 0.9f;
        if (kind == 3)
            o.adaptive_target = 0.3f, o.adaptive_decay = 0.8f, o.min_p = 0.01f;
        else
            o.mirostat = kind, o.mirostat_tau = 3, o.mirostat_eta = 0.3f, o.top_k = 2;  // without effect
        Sampler sampler(o, 64);
        std::mt19937 rng(3);
        std::vector<TokenId> history;
        double mu = 2 * double{o.mirostat_tau},
               sum = double{o.adaptive_target} / (1 - double{o.adaptive_decay});
        double weight = 1 / (1 - double{o.adaptive_decay});
        for (int step = 0; step < 40; ++step) {
            CAPTURE(step);
            std::vector<float> logits = peer_logits();
            std::ranges::shuffle(logits, rng);
            Definition definition(o, logits, 1);
            if (kind == 3) definition.apply(SamplerKind::MinP, {});
            definition.apply(SamplerKind::Temperature, {});
            const Probabilities before = definition.probabilities();
            const std::vector<TokenId> order = definition.descending(before);
            if (kind == 1) {
                double products = 0, squares = 0;
                for (size_t i = 0; i + 1 < order.size(); ++i) {
                    const double t = std::log(static_cast<double>(i + 2) / static_cast<double>(i + 1));
                    products += t * std::log(before.at(order[i]) / before.at(order[i + 1]));
                    squares += t * t;
                }
                const double s = products / squares, e = s - 1;
                const auto k = static_cast<size_t>(
                    std::max(1.0, std::pow(e * std::pow(2, mu) / (1 - std::pow(64, -e)), 1 / s)));
                for (size_t i = k; i < order.size(); ++i) definition.l_.erase(order[i]);
            } else if (kind == 2) {
                definition.keep(
                    [&](TokenId id) { return id == order[0] || -std::log2(before.at(id)) <= mu; });
            } else {
                const double t = std::clamp(2 * double{o.adaptive_target} - sum / weight, 0.0, 1.0);
                for (auto &[id, l] : definition.l_) {
                    const double d = std::abs(before.at(id) - t) / 0.3;
                    l = 5 - 10 * d * d / (1 + d);
                }
            }
            const Probabilities wanted = definition.probabilities();
            check_close(of(sampler.distribution(logits, history)), wanted, 1e-5);
            std::vector<TokenId> guessed = history;  // drafts at later positions, and a repeated draw
            for (int i = 0; i < 3; ++i) {
                guessed.push_back(static_cast<TokenId>(rng() % 64));
                if (step % 2) sampler.distribution(peer_logits(), guessed);
                if (step % 3 == 0) sampler.sample(peer_logits(), guessed);
            }
            if (step % 5 == 0) sampler.sample(logits, history);
            const TokenId id = sampler.sample(logits, history);
            CHECK(id == draw_by(wanted, o, history.size()));
            mu -= double{o.mirostat_eta} * (-std::log2(wanted.at(id)) - double{o.mirostat_tau});
            sum = before.at(id) + double{o.adaptive_decay} * sum;
            weight = 1 + double{o.adaptive_decay} * weight;
            history.push_back(id);
        }
    }
}

TEST_CASE("samplers: llama.cpp's names and letters are accepted, invalid orders refused") {
    CHECK(parse_samplers("edskypmxt") == default_samplers());
    CHECK(parse_samplers("penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature") ==
          default_samplers());
    CHECK(parse_samplers("temp;nucleus;top-k") ==
          SamplerOrder{SamplerKind::Temperature, SamplerKind::TopP, SamplerKind::TopK});
    CHECK(parse_samplers("ka") == parse_samplers("adaptive_p;top_k"));
    CHECK(parse_samplers("").empty());
    CHECK(parse_samplers("xtc") == SamplerOrder{SamplerKind::Xtc});
    CHECK(samplers_text(parse_samplers("tk")) == "temperature;top_k");
    for (const char *bad : {"kk", "top_k;top_k", "top_k;", ";", "kz", "top_j", "top_k temperature", "K"}) {
        CAPTURE(bad);
        CHECK_THROWS_AS(parse_samplers(bad), std::invalid_argument);
    }
}

TEST_CASE("samplers: XTC applies with the given probability") {
    SamplingOptions o = nothing();
    o.xtc_probability = 0.3f, o.xtc_threshold = 0.05f, o.seed = 9;
    Sampler sampler(o, 64);
    std::vector<TokenId> history;
    int excluded = 0;
    for (int i = 0; i < 4000; ++i) {
        const size_t left = sampler.distribution(peer_logits(), history).candidates.size();
        CHECK(left == sampler.distribution(peer_logits(), history).candidates.size());
        excluded += left < 64;
        history.push_back(1);
    }
    CHECK(excluded == doctest::Approx(1200).epsilon(0.1));
}

TEST_CASE("samplers: logits that are not finite fail a forced token as well") {
    Sampler sampler(nothing(), 64);
    sampler.force([](std::span<const TokenId>, int64_t) { return std::optional<TokenId>(5); });
    std::vector<float> logits = peer_logits();
    CHECK(sampler.sample(logits, std::vector<TokenId>()) == 5);
    logits[9] = std::numeric_limits<float>::infinity();
    CHECK_THROWS_AS(sampler.sample(logits, std::vector<TokenId>()), DecodeError);
}
