#include "engine/completion/beams.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "engine/completion/queue.h"
#include "engine/grammar/source.h"
#include "tests/support/answers.h"
#include "tests/support/toy_backend.h"

using namespace runnel::completion;
using namespace runnel::decode;
using namespace runnel::testing;

namespace {

constexpr TokenId kEnd = 0;

struct Rig {
    ToyBackend *backend;
    Executor executor;
    Rig(int32_t vocab, ExecutorOptions options) : Rig(std::make_unique<ToyBackend>(), vocab, options) {}
    Rig(std::unique_ptr<ToyBackend> toy, int32_t vocab, ExecutorOptions options)
        : backend(toy.get()), executor(std::move(toy), toy_program(vocab), options) {}
};

Vocabulary letters() {
    return {[](TokenId id) { return std::string(1, static_cast<char>('a' + id)); },
            [](TokenId id) { return id == kEnd; }};
}

// log p of every token after a prefix, straight from the toy model.
std::vector<double> log_probabilities(const std::vector<TokenId> &prefix, int32_t vocab) {
    std::vector<double> l;
    const uint64_t hash = hash_tokens(prefix);
    for (int32_t id = 0; id < vocab; ++id) l.push_back(double{toy_logit(hash, id)});
    double sum = 0;
    for (const double x : l) sum += std::exp(x);
    for (double &x : l) x -= std::log(sum);
    return l;
}

struct Expected {
    std::vector<TokenId> tokens;
    double log_probability, score;
};

// Beam search by the definition in the header, with whole prefixes and complete sorts.
std::vector<Expected> reference(const std::vector<TokenId> &prompt, int32_t vocab, size_t beams,
                                size_t most) {
    std::vector<Expected> live = {{{}, 0, 0}}, finished;
    const auto by_score = [](const Expected &a, const Expected &b) { return a.score > b.score; };
    for (size_t length = 1; !live.empty(); ++length) {
        struct Next {
            double s;
            size_t beam;
            TokenId id;
        };
        std::vector<Next> all;
        for (size_t b = 0; b < live.size(); ++b) {
            std::vector<TokenId> prefix = prompt;
            prefix.insert(prefix.end(), live[b].tokens.begin(), live[b].tokens.end());
            const auto l = log_probabilities(prefix, vocab);
            for (TokenId id = 0; id < vocab; ++id)
                all.push_back({live[b].log_probability + l[static_cast<size_t>(id)], b, id});
        }
        std::sort(all.begin(), all.end(), [](const Next &a, const Next &b) { return a.s > b.s; });
        all.resize(std::min(all.size(), 2 * beams));
        std::vector<Expected> next;
        for (const Next &n : all) {
            if (next.size() == beams) break;
            Expected e{live[n.beam].tokens, n.s, n.s / static_cast<double>(length)};
            if (n.id != kEnd) e.tokens.push_back(n.id);
            (n.id == kEnd || length == most ? finished : next).push_back(e);
        }
        std::stable_sort(finished.begin(), finished.end(), by_score);
        if (finished.size() > beams) finished.resize(beams);
        live = next;
        if (!live.empty() && finished.size() == beams &&
            live[0].log_probability / static_cast<double>(length) <= finished.back().score)
            break;
    }
    return finished;
}

std::vector<TokenId> random_prompt(std::mt19937 &rng, int32_t vocab, size_t most) {
    std::vector<TokenId> prompt(1 + rng() % most);
    for (TokenId &id : prompt) id = static_cast<TokenId>(rng() % static_cast<uint32_t>(vocab));
    return prompt;
}

std::vector<Hypothesis> search(Executor &executor, const std::vector<TokenId> &prompt, int32_t beams,
                               int64_t most) {
    Scheduler scheduler(executor, {.parallel = beams});
    BeamSearch search(executor, scheduler, letters(), {.beams = beams, .limits = {.max_tokens = most}},
                      prompt);
    do REQUIRE(scheduler.step());
    while (search.advance());
    CHECK(search.over());
    return search.results();
}

}  // namespace

TEST_CASE("beam search: equals the reference for any chunks and pool size") {
    for (uint32_t seed = 0; seed < 80; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        const int32_t vocab = 3 + static_cast<int32_t>(rng() % 20),
                      beams = 1 + static_cast<int32_t>(rng() % 6);
        const int32_t context = 150;
        Rig rig(vocab, {.context = context,
                        .batch = 1 + static_cast<int32_t>(rng() % 40),
                        .sequences = beams,
                        .cells = rng() % 2 ? 0 : context + static_cast<int64_t>(rng() % 100)});
        const auto prompt = random_prompt(rng, vocab, 100);
        const size_t most = 1 + rng() % 40;
        const auto expected = reference(prompt, vocab, static_cast<size_t>(beams), most);
        const auto got = search(rig.executor, prompt, beams, static_cast<int64_t>(most));
        REQUIRE(got.size() == expected.size());
        for (size_t i = 0; i < got.size(); ++i) {
            CHECK(got[i].tokens == expected[i].tokens);
            CHECK(got[i].log_probability == doctest::Approx(expected[i].log_probability).epsilon(1e-9));
            CHECK(got[i].score == doctest::Approx(expected[i].score).epsilon(1e-9));
            CHECK(got[i].text.size() == got[i].tokens.size());
        }
    }
}

TEST_CASE("beam search: a constraint removes texts and keeps the probabilities of the others") {
    namespace grammar = runnel::grammar;
    constexpr int32_t kVocab = 8;
    std::vector<std::string> texts;
    for (TokenId id = 0; id < kVocab; ++id) texts.push_back(id == kEnd ? "" : letters().text(id));
    const auto index = std::make_shared<grammar::TokenIndex>(texts, std::vector<TokenId>{kEnd});
    const std::vector<std::string> choices{"b", "bc", "bcd", "ghgh", "cccccc"};
    for (uint32_t seed = 0; seed < 20; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        Rig rig(kVocab, {.context = 64, .batch = 64, .sequences = 5});
        const auto prompt = random_prompt(rng, kVocab, 20);
        std::vector<std::pair<double, std::string>> expected;
        for (const std::string &choice : choices) {
            std::vector<TokenId> prefix = prompt;
            double sum = 0;
            for (const char letter : choice + "a") {  // the end comes last
                const auto id = static_cast<TokenId>(letter - 'a');
                sum += log_probabilities(prefix, kVocab)[static_cast<size_t>(id)];
                prefix.push_back(id);
            }
            expected.emplace_back(sum / static_cast<double>(choice.size() + 1), choice);
        }
        std::sort(expected.rbegin(), expected.rend());
        grammar::Machine machine(
            grammar::compile({.kind = grammar::Source::Kind::Choices, .choices = choices}));
        Scheduler scheduler(rig.executor, {.parallel = 5});
        BeamSearch search(
            rig.executor, scheduler, letters(),
            {.beams = 5,
             .limits = {.max_tokens = 20},
             .constraint = Constraint(std::make_shared<grammar::Masks>(std::move(machine), index))},
            prompt);
        do REQUIRE(scheduler.step());
        while (search.advance());
        const std::vector<Hypothesis> got = search.results();
        REQUIRE(got.size() == expected.size());
        for (size_t i = 0; i < got.size(); ++i) {
            CHECK(got[i].text == expected[i].second);
            CHECK(got[i].score == doctest::Approx(expected[i].first).epsilon(1e-9));
            CHECK(got[i].complete == true);
        }
    }
}

TEST_CASE("beam search: with enough beams, the search finds the best of all continuations") {
    constexpr int32_t kVocab = 3;
    constexpr size_t kMost = 4;
    for (uint32_t seed = 0; seed < 20; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        Rig rig(kVocab, {.context = 64, .batch = 64, .sequences = 81});
        const auto prompt = random_prompt(rng, kVocab, 5);
        double best = -1e9;
        const auto visit = [&](const auto &self, std::vector<TokenId> tokens, double s) -> void {
            std::vector<TokenId> prefix = prompt;
            prefix.insert(prefix.end(), tokens.begin(), tokens.end());
            const auto l = log_probabilities(prefix, kVocab);
            for (TokenId id = 0; id < kVocab; ++id) {
                const double sum = s + l[static_cast<size_t>(id)];
                const bool over = id == kEnd || tokens.size() + 1 == kMost;
                if (over) {
                    best = std::max(best, sum / static_cast<double>(tokens.size() + 1));
                } else {
                    auto longer = tokens;
                    longer.push_back(id);
                    self(self, longer, sum);
                }
            }
        };
        visit(visit, {}, 0);
        CHECK(search(rig.executor, prompt, 81, kMost)[0].score == doctest::Approx(best).epsilon(1e-9));
    }
}

TEST_CASE("beam search: a stop returns the live beams; one beam is the greedy answer") {
    Rig rig(20, {.context = 200, .batch = 64, .sequences = 3});
    {
        CompletionQueue queue(rig.executor, letters(), {.parallel = 3});
        queue.submit({.input = Tokens{{5, 6}}, .limits = {.ignore_end = true}, .beams = 3});
        StopRequest stop;
        for (int i = 0; i < 6; ++i) CHECK(queue.step(&stop));
        stop.request(StopRequest::Reason::Interrupt);
        CHECK_FALSE(queue.step(&stop));
        queue.end_all(FinishReason::Interrupt);
        AllAnswers results;
        gather(queue, results);
        REQUIRE(results.size() == 3);
        CHECK(results.begin()->second.done.reason == FinishReason::Interrupt);
        CHECK(results.begin()->second.done.tokens.size() == 6);
        CHECK(results.begin()->second.text.size() == 6);
        CHECK(queue.unfinished() == 0);
    }
    Scheduler scheduler(rig.executor, {.parallel = 1});
    BeamSearch one(rig.executor, scheduler, letters(),
                   {.beams = 1, .limits = {.max_tokens = 12, .ignore_end = true}}, {{5, 6}});
    do REQUIRE(scheduler.step());
    while (one.advance());
    SamplingOptions greedy;
    greedy.temperature = 0;
    const Answered answer = answer_one(
        rig.executor, letters(),
        {.input = Tokens{{5, 6}}, .sampling = greedy, .limits = {.max_tokens = 12, .ignore_end = true}});
    CHECK(one.results()[0].tokens == answer.done.tokens);
}

TEST_CASE("beam search: other answers in the queue do not change the results") {
    for (uint32_t seed = 0; seed < 20; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        constexpr int32_t kVocab = 12;
        Rig rig(kVocab, {.context = 100,
                         .batch = 8 + static_cast<int32_t>(rng() % 40),
                         .sequences = 4,
                         .cells = 150 + static_cast<int64_t>(rng() % 100)});
        CompletionQueue queue(rig.executor, letters(), {.parallel = 4});
        std::vector<std::vector<TokenId>> prompts;
        for (int i = 0; i < 3; ++i) {
            prompts.push_back(random_prompt(rng, kVocab, 50));
            queue.submit(
                {.input = Tokens{prompts.back()}, .limits = {.max_tokens = 20}, .beams = i == 1 ? 1 : 3});
        }
        const AllAnswers all = answer_all(queue);
        for (const RequestId id : {1, 3}) {
            Rig calm(kVocab, {.context = 100, .sequences = 3});
            const auto expected = search(calm.executor, prompts[id - 1], 3, 20);
            for (size_t i = 0; i < expected.size(); ++i) {
                const Answered &got = all.at({id, static_cast<int32_t>(i)});
                CHECK(got.done.tokens == expected[i].tokens);
                CHECK(got.done.score == doctest::Approx(expected[i].score).epsilon(1e-9));
                CHECK(got.text == expected[i].text);
            }
        }
    }
}

TEST_CASE("beam search: more beams than sequences at a time are refused") {
    Rig rig(12, {.context = 100, .sequences = 4});
    CompletionQueue queue(rig.executor, letters(), {.parallel = 4});
    queue.submit({.input = Tokens{{1, 2}}, .beams = 5});
    CHECK(queue.unfinished() == 1);
    CHECK(answer_all(queue).begin()->second.done.error.find("5 beams") != std::string::npos);
}

TEST_CASE("samples: each equals a single answer with its stream, and the prompt is computed once") {
    for (uint32_t seed = 0; seed < 30; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        const int32_t vocab = 30, samples = 2 + static_cast<int32_t>(rng() % 6);
        const auto prompt = random_prompt(rng, vocab, 120);
        Request request{.input = Tokens{prompt},
                        .limits = {.max_tokens = 1 + static_cast<int64_t>(rng() % 30)},
                        .samples = samples,
                        .logprobs = true};
        request.sampling.seed = seed;
        request.sampling.temperature = 2;
        Rig rig(vocab, {.context = 160,
                        .batch = 16 + static_cast<int32_t>(rng() % 60),
                        .sequences = samples,
                        .cells = rng() % 3 ? 0 : 200});
        CompletionQueue queue(rig.executor, letters(), {.parallel = samples});
        queue.submit(request);
        const AllAnswers got = answer_all(queue);
        REQUIRE(got.size() == static_cast<size_t>(samples));
        if (queue.schedule().preemptions == 0)
            CHECK(queue.schedule().tokens ==
                  static_cast<int64_t>(prompt.size()) + queue.counts().sampled_tokens - samples);
        for (const auto &[key, answer] : got) {
            const Done &sample = answer.done;
            Rig calm(vocab, {.context = 160});
            Request alone = request;
            alone.samples = 1;
            alone.logprobs = false;
            alone.stream = static_cast<uint32_t>(key.second);
            const Answered single = answer_one(calm.executor, letters(), alone);
            CHECK(sample.tokens == single.done.tokens);
            CHECK(answer.text == single.text);
            double sum = 0;
            std::vector<TokenId> prefix = prompt;
            std::vector<TokenId> tokens = sample.tokens;
            if (sample.reason == FinishReason::Stop) tokens.push_back(kEnd);
            for (const TokenId id : tokens) {
                sum += log_probabilities(prefix, vocab)[static_cast<size_t>(id)];
                prefix.push_back(id);
            }
            CHECK(sample.log_probability == doctest::Approx(sum).epsilon(1e-6));
        }
    }
}
