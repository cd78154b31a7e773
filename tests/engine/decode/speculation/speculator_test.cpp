#include "engine/decode/speculation/speculator.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <optional>

#include "engine/decode/error.h"
#include "engine/decode/single_sequence.h"
#include "tests/engine/decode/speculation/toy_draft.h"
#include "tests/support/answers.h"
#include "tests/support/toy_rig.h"

using namespace runnel::completion;
using namespace runnel::decode;
using namespace runnel::testing;
namespace kernels = runnel::kernels;

namespace {

constexpr int32_t kVocab = kToyVocab;

SamplingOptions random_sampling(std::mt19937 &rng) {
    SamplingOptions how;
    how.temperature = rng() % 2 ? 0.0f : 1.2f;
    how.top_k = rng() % 2 ? 0 : 10;
    how.repeat_penalty = rng() % 3 ? 1.0f : 1.2f;
    how.seed = rng();
    return how;
}

Request random_request(std::mt19937 &rng, int32_t context) {
    Request request{.input = {}, .sampling = random_sampling(rng)};
    Limits &limits = request.limits;
    limits.max_tokens = rng() % 4 == 0 ? -1 : static_cast<int64_t>(rng() % static_cast<size_t>(2 * context));
    limits.ignore_end = limits.max_tokens >= 0 && rng() % 4 != 0;
    if (rng() % 4 == 0) limits.stops = {std::string(1, static_cast<char>('!' + rng() % kVocab))};
    if (limits.max_tokens >= 0 && rng() % 3 == 0) request.overflow = OverflowPolicy::Shift;
    return request;
}

std::unique_ptr<Speculator> toy_speculator(const ToyDraftOptions &options, uint32_t seed,
                                           const SpeculationOptions &how,
                                           std::shared_ptr<SharedCosts> costs = nullptr) {
    std::vector<std::unique_ptr<DraftSource>> sources;
    sources.push_back(std::make_unique<ToyDraft>(options, seed));
    return std::make_unique<Speculator>(std::move(sources), how, std::move(costs));
}

struct Result {
    std::string text;
    std::vector<std::string> parts;
    std::vector<TokenId> tokens, kept;  // kept: those of the kept sequence
    FinishReason reason;
    bool context_full;
    int64_t forgotten;
    std::string error;
    bool operator==(const Result &) const = default;
};
struct Talk {
    std::vector<Result> results;
    SpeculationCounts counts;
};

// Two turns of a conversation, so that the state that the first turn leaves matters.
Talk converse(Executor &executor, Request request, const Tokens &prompt,
              std::unique_ptr<Speculator> speculator = nullptr) {
    Talk talk;
    MakeSpeculator make;
    if (speculator) make = [&speculator] { return std::move(speculator); };
    CompletionQueue queue(executor, toy_letters(), {.drafts = make});
    Tokens text = prompt;
    request.keep = true;
    for (int turn = 0; turn < 2; ++turn) {
        request.input = text;
        queue.submit(request);
        const Answered answer = answer_all(queue).begin()->second;
        const Sequence *kept = queue.kept(answer.done.kept);
        talk.results.push_back({answer.text, answer.parts, answer.done.tokens,
                                kept ? kept->tokens() : std::vector<TokenId>(), answer.done.reason,
                                answer.done.context_full, answer.done.usage.forgotten, answer.done.error});
        request.continue_from = answer.done.kept;
        text.ids.insert(text.ids.end(), answer.done.tokens.begin(), answer.done.tokens.end());
        text.ids.push_back(1);
        if (text.ids.size() >= static_cast<size_t>(executor.context())) break;
    }
    talk.counts = queue.speculation();
    return talk;
}

}  // namespace

TEST_CASE("speculator: a single answer and the sequence after it are the same, whatever is drafted") {
    int64_t drafted = 0, accepted = 0, branches = 0, taken = 0;
    for (uint32_t seed = 0; seed < 300; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        const int32_t context = 20 + static_cast<int32_t>(rng() % 150);
        const ExecutorOptions shape{.context = context, .batch = 1 + static_cast<int32_t>(rng() % 40)};
        const Request request = random_request(rng, context);
        const Tokens prompt{random_tokens(rng, 1 + rng() % static_cast<size_t>(context)), rng() % 8};
        ToyRig plain(shape), guessing(shape);
        const ToyDraftOptions source{.vocab = kVocab,
                                     .error = double(rng() % 3) * 0.2,
                                     .silence = double(rng() % 3) * 0.15,
                                     .doubt = double(rng() % 3) * 0.4};
        const SpeculationOptions how{.length = {.most = static_cast<int32_t>(rng() % 34),
                                                .branches = 1 + static_cast<int32_t>(rng() % 6)}};
        const auto costs = rng() % 2 ? std::make_shared<SharedCosts>() : nullptr;
        const auto expected = converse(plain.executor, request, prompt).results;
        const auto [got, counts] =
            converse(guessing.executor, request, prompt, toy_speculator(source, seed, how, costs));
        REQUIRE(got.size() == expected.size());
        for (size_t i = 0; i < got.size(); ++i) {
            CAPTURE(i);
            CHECK(got[i].tokens == expected[i].tokens);
            CHECK(got[i].kept == expected[i].kept);
            CHECK(got[i] == expected[i]);
        }
        CHECK(guessing.backend->records.size() <= plain.backend->records.size() + (costs ? 60 : 0));
        drafted += counts.drafted;
        accepted += counts.accepted;
        branches += counts.branches;
        taken += counts.branches_accepted;
    }
    CHECK(accepted > 1000);              // some drafts were kept
    CHECK(accepted < drafted * 9 / 10);  // and some were not
    CHECK(taken > 50);                   // branches were taken, too
    CHECK(taken < branches / 2);
}

TEST_CASE("speculator: drafts save passes") {
    ToyRig plain({.context = 300, .batch = 64}), guessing({.context = 300, .batch = 64});
    Request request{.input = {}, .limits = {.max_tokens = 120, .ignore_end = true}};
    request.sampling.seed = 5;
    converse(plain.executor, request, {{3, 1}});
    const SpeculationCounts counts =
        converse(guessing.executor, request, {{3, 1}},
                 toy_speculator({.vocab = kVocab, .error = 0, .silence = 0}, 1, {.length = {.most = 7}}))
            .counts;
    CHECK(plain.backend->records.size() == 2 * 120);
    CHECK(guessing.backend->records.size() == 2 * 16);  // the prompt, 14 of 8 tokens, one of 7
    CHECK(counts.drafted == counts.accepted);
    CHECK(counts.drafted == 2 * (14 * 7 + 6));
}

TEST_CASE("speculator: roll-back at every position of a block, with every length") {
    Request request{.input = {}, .limits = {.max_tokens = 40, .ignore_end = true}};
    request.sampling.temperature = 0;
    for (const int32_t most : {1, 2, 7, 31})
        for (size_t start = 1; start <= 33; ++start) {
            CAPTURE(most);
            CAPTURE(start);
            const Tokens prompt{std::vector<TokenId>(start, 2)};
            ToyRig plain({.context = 120, .batch = 64}), guessing({.context = 120, .batch = 64});
            auto speculator =
                toy_speculator({.vocab = kVocab, .error = 0.3, .silence = 0, .doubt = start % 2 ? 0.5 : 0.0},
                               static_cast<uint32_t>(start), {.length = {.most = most}});
            CHECK(converse(plain.executor, request, prompt).results ==
                  converse(guessing.executor, request, prompt, std::move(speculator)).results);
        }
}

TEST_CASE("speculator: an interrupt after a pass with drafts keeps its tokens") {
    ToyRig rig({.context = 100, .batch = 64});
    StopRequest stop;
    CompletionQueue queue(rig.executor, toy_letters(), {.drafts = [] {
                              return toy_speculator({.vocab = kVocab, .error = 0, .silence = 0}, 1,
                                                    {.length = {.most = 7}});
                          }});
    Request request{.input = Tokens{{1, 2, 3}}, .limits = {.ignore_end = true}, .keep = true};
    request.sampling.temperature = 0;
    const RequestId id = queue.submit(request);
    REQUIRE(queue.step(&stop));
    REQUIRE(queue.step(&stop));
    CHECK(queue.sequence(id)->tokens().size() == 3 + 8);
    stop.request(StopRequest::Reason::Interrupt);
    const Answered answer = answer_all(queue, &stop).begin()->second;
    CHECK(answer.done.reason == FinishReason::Interrupt);
    CHECK(answer.done.tokens.size() == 9);
    CHECK(queue.kept(answer.done.kept)->tokens().size() == 3 + 8);  // all but the last, as without drafts
}

TEST_CASE("speculator: an interrupt during a pass with drafts leaves none of them") {
    ToyRig rig({.context = 100, .batch = 64});
    StopRequest stop;
    rig.backend->on_execute = [&](const kernels::Batch &batch) {
        if (batch.positions[0] > 3) stop.request(StopRequest::Reason::Interrupt);
    };
    CompletionQueue queue(rig.executor, toy_letters(), {.drafts = [] {
                              return toy_speculator({.vocab = kVocab, .error = 0, .silence = 0}, 1,
                                                    {.length = {.most = 7}});
                          }});
    queue.submit({.input = Tokens{{1, 2, 3}}, .limits = {.ignore_end = true}, .keep = true});
    const Answered answer = answer_all(queue, &stop).begin()->second;
    CHECK(answer.done.tokens.size() == 9);  // of the prompt's pass and of one with drafts
    CHECK(queue.kept(answer.done.kept)->tokens().size() == 3 + 8);
    CHECK(queue.kept(answer.done.kept)->pending() == 0);
}

TEST_CASE("speculator: an end token among accepted tokens drops those after it") {
    ToyRig plain({.context = 100, .batch = 64}), guessing({.context = 100, .batch = 64});
    const Tokens prompt{{1, 2, 3}};
    Request request{.input = {}, .limits = {.max_tokens = 20, .ignore_end = true}};
    const std::vector<TokenId> all = converse(plain.executor, request, prompt).results[0].tokens;
    for (size_t at = 2; at < 12; ++at) {
        CAPTURE(at);
        request.limits.end_tokens = {all[at]};
        CHECK(
            converse(plain.executor, request, prompt).results ==
            converse(guessing.executor, request, prompt,
                     toy_speculator({.vocab = kVocab, .error = 0, .silence = 0}, 1, {.length = {.most = 7}}))
                .results);
    }
}

namespace {

class FailingDraft final : public DraftSource {
  public:
    Draft draft(std::span<const TokenId>, int32_t, float, Sampler &) override {
        throw DecodeError(DecodeError::Kind::Failed, "the draft is broken");
    }
    std::string_view name() const override { return "failing"; }
};

}  // namespace

TEST_CASE("speculator: if a source fails, the next one drafts, and the answer is the same") {
    ToyRig plain({.context = 100, .batch = 64}), guessing({.context = 100, .batch = 64});
    const Request request{.input = {}, .limits = {.max_tokens = 50, .ignore_end = true}};
    std::vector<std::unique_ptr<DraftSource>> sources;
    sources.push_back(std::make_unique<FailingDraft>());
    sources.push_back(std::make_unique<ToyDraft>(ToyDraftOptions{.vocab = kVocab}, 1));
    const SpeculationOptions how{.length = {.most = 5}};
    const Talk talk =
        converse(guessing.executor, request, {{1}}, std::make_unique<Speculator>(std::move(sources), how));
    CHECK(converse(plain.executor, request, {{1}}).results == talk.results);
    CHECK(talk.counts.failure == "the draft is broken");
    CHECK(talk.counts.accepted > 5);
}

TEST_CASE("speculator: logits that are not finite are an error once the answer reaches them") {
    for (const bool guess : {false, true}) {
        ToyRig rig({.context = 100, .batch = 64});
        rig.backend->model = [](const std::vector<int32_t> &prefix, std::span<float> logits) {
            if (prefix.size() == 20) logits[3] = std::numeric_limits<float>::quiet_NaN();
        };
        auto sure = toy_speculator({.vocab = kVocab, .error = 0, .silence = 0}, 1, {.length = {.most = 7}});
        const auto results = converse(rig.executor, {.input = {}, .limits = {.ignore_end = true}}, {{1, 2}},
                                      guess ? std::move(sure) : nullptr)
                                 .results;
        CHECK(results[0].tokens.size() == 18);
        CHECK(results[0].error.find("not finite") != std::string::npos);
    }
}

// --- batch -----------------------------------------------------------------------------------------------

namespace {

std::vector<Request> random_requests(std::mt19937 &rng, int32_t context) {
    std::vector<Request> requests;
    const std::vector<TokenId> shared = random_tokens(rng, 70);
    for (int i = 0; i < 9; ++i) {
        Request request = random_request(rng, context);
        request.overflow = OverflowPolicy::Error;
        request.limits.max_tokens = static_cast<int64_t>(rng() % static_cast<size_t>(context));
        std::vector<TokenId> prompt =
            random_tokens(rng, 1 + rng() % static_cast<size_t>(std::max(1, context / 3)));
        // Some prompts begin alike, so that they share blocks.
        if (rng() % 2) prompt.insert(prompt.begin(), shared.begin(), shared.begin() + context / 3);
        request.input = Tokens{prompt};
        request.samples = rng() % 4 == 0 ? 3 : 1;
        request.logprobs = rng() % 2 == 0;
        requests.push_back(request);
    }
    return requests;
}

// Keyed by request number and sample.
AllAnswers answers(CompletionQueue &queue, const std::vector<Request> &requests, std::mt19937 *rng) {
    std::vector<RequestId> ids;
    AllAnswers all, numbered;
    while (ids.size() < requests.size() || queue.unfinished() > 0) {
        while (ids.size() < requests.size() && (queue.unfinished() == 0 || (rng && (*rng)() % 3 == 0)))
            ids.push_back(queue.submit(requests[ids.size()]));
        if (rng && !ids.empty() && (*rng)() % 40 == 0) {
            const size_t which = (*rng)() % ids.size();
            if (requests[which].samples == 1 && queue.cancel(ids[which])) {
                all.erase({ids[which], 0});
                ids[which] = queue.submit(requests[which]);
            }
        }
        REQUIRE(queue.step());
        gather(queue, all);
    }
    for (const auto &[key, answer] : all) {
        const auto number = std::find(ids.begin(), ids.end(), key.first) - ids.begin();
        numbered[{static_cast<RequestId>(number), key.second}] = answer;
    }
    return numbered;
}

void check_same(const AllAnswers &got, const AllAnswers &expected) {
    REQUIRE(got.size() == expected.size());
    for (const auto &[key, finished] : expected) {
        CAPTURE(key.first);
        CAPTURE(key.second);
        const Answered &mine = got.at(key);
        CHECK(mine.text == finished.text);
        CHECK(mine.tokens == finished.tokens);
        CHECK(mine.done.tokens == finished.done.tokens);
        CHECK(mine.done.reason == finished.done.reason);
        CHECK(mine.done.context_full == finished.done.context_full);
        CHECK(mine.done.error == finished.done.error);
        CHECK(mine.done.log_probability == finished.done.log_probability);
    }
}

}  // namespace

TEST_CASE("speculator: in a queue, each sequence drafts for itself and no answer changes") {
    int64_t accepted = 0, taken = 0, preemptions = 0;
    for (uint32_t seed = 0; seed < 60; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        const int32_t context = 40 + static_cast<int32_t>(rng() % 150);
        const std::vector<Request> requests = random_requests(rng, context);
        ToyRig calm({.context = context, .sequences = 3}),
            crowded({.context = context,
                     .batch = 3 + static_cast<int32_t>(rng() % 60),
                     .sequences = 8,
                     .cells = context + static_cast<int32_t>(rng() % 100)});
        const FreeBlocks free = crowded.executor.free_blocks();
        CompletionQueue alone(calm.executor, toy_letters(), {.parallel = 1});
        const AllAnswers expected = answers(alone, requests, nullptr);
        uint32_t made = seed;
        const auto costs = rng() % 2 ? std::make_shared<SharedCosts>() : nullptr;
        {
            const auto make = [&]() {
                return toy_speculator({.vocab = kVocab, .error = 0.2, .silence = 0.1, .doubt = 0.4}, ++made,
                                      {.length = {.most = 1 + static_cast<int32_t>(rng() % 12)}}, costs);
            };
            CompletionQueue together(crowded.executor, toy_letters(),
                                     {.parallel = 1 + static_cast<int32_t>(rng() % 8), .drafts = make});
            check_same(answers(together, requests, &rng), expected);
            accepted += together.speculation().accepted;
            taken += together.speculation().branches_accepted;
            preemptions += together.schedule().preemptions;
        }
        CHECK(crowded.executor.free_blocks() == free);
    }
    CHECK(accepted > 1000);
    CHECK(taken > 50);
    CHECK(preemptions > 20);
}

// --- distributions ---------------------------------------------------------------------------------------

namespace {

// How often each pair of tokens follows the prompt over many streams, and the model's own probabilities.
struct Pairs {
    std::map<std::pair<TokenId, TokenId>, double> seen, odds;
    int draws = 0;

    // Pearson's statistic over pairs that are expected often enough, in standard deviations from its mean.
    double deviation() const {
        double chi_square = 0, rest = 0, rest_seen = draws;
        int classes = 0;
        for (const auto &[pair, p] : odds) {
            const double expected = p * draws, found = seen.contains(pair) ? seen.at(pair) : 0;
            if (expected < 8) {
                rest += expected;
                continue;
            }
            rest_seen -= found;
            chi_square += (found - expected) * (found - expected) / expected;
            ++classes;
        }
        if (rest >= 8) chi_square += (rest_seen - rest) * (rest_seen - rest) / rest, ++classes;
        const double freedom = std::max(1, classes - 1);
        return (chi_square - freedom) / std::sqrt(2 * freedom);
    }
};

Pairs draw_pairs(const SamplingOptions &sampling, DraftRule rule, const ToyDraftOptions &source) {
    Pairs pairs;
    pairs.draws = 6000;
    const std::vector<TokenId> prompt = {3, 1, 4};
    // The chain applies penalties, so it gets the same history.
    const auto odds_after = [&](const std::vector<TokenId> &prefix) {
        Sampler sampler(sampling, kVocab);
        std::vector<float> row(kVocab);
        for (int32_t id = 0; id < kVocab; ++id)
            row[static_cast<size_t>(id)] = toy_logit(hash_tokens(prefix), id);
        return sampler.distribution(row, prefix);
    };
    for (const TokenProb &first : odds_after(prompt).candidates)
        for (const TokenProb &second : odds_after({3, 1, 4, first.id}).candidates)
            pairs.odds[{first.id, second.id}] = first.probability * second.probability;
    ToyRig rig({.context = 32, .batch = 32});
    for (int draw = 0; draw < pairs.draws; ++draw) {
        SingleSequence session(rig.executor);
        ScheduledSequence &entry = session.entry();
        Sampler sampler(sampling, kVocab);
        sampler.set_stream(static_cast<uint32_t>(draw));
        ToyDraftOptions how = source;
        how.with_distributions = rule == DraftRule::Rejection;
        const auto speculator =
            toy_speculator(how, static_cast<uint32_t>(draw), {.length = {.most = 3}, .rule = rule});
        // The first token is drafted, too.
        entry.append(prompt);
        speculator->propose(prompt, 3, 0, sampler);
        speculator->append_to(entry);
        REQUIRE(session.compute());
        std::vector<TokenId> tokens = take_tokens(entry, entry.rows(), speculator.get(), sampler).tokens;
        while (tokens.size() < 2) {
            entry.append({&tokens.back(), 1});
            speculator->propose(session.tokens(), 2, 0, sampler);
            speculator->append_to(entry);
            REQUIRE(session.compute());
            for (const TokenId id : take_tokens(entry, entry.rows(), speculator.get(), sampler).tokens)
                tokens.push_back(id);
        }
        pairs.seen[{tokens[0], tokens[1]}] += 1;
    }
    return pairs;
}

}  // namespace

TEST_CASE("speculator: under both rules, texts have the distribution of the model's sampler chain") {
    SamplingOptions sampling;
    sampling.temperature = 2.5f, sampling.top_k = 12, sampling.top_p = 0.98f, sampling.min_p = 0.01f;
    sampling.repeat_penalty = 1.3f;
    sampling.logit_bias = {{5, 2.0f}, {7, -std::numeric_limits<float>::infinity()}};
    for (const DraftRule rule : {DraftRule::Same, DraftRule::Rejection})
        for (const double spread : {0.0, 0.5}) {
            CAPTURE(static_cast<int>(rule));
            CAPTURE(spread);
            const ToyDraftOptions source{
                .vocab = kVocab, .error = 0, .silence = 0.2, .spread = spread, .doubt = 0.5};
            CHECK(draw_pairs(sampling, rule, source).deviation() < 5);
        }
}

TEST_CASE("speculator: the distribution test detects a wrong rule") {
    SamplingOptions sampling;
    sampling.temperature = 2.5f, sampling.top_k = 12;
    // Drafts that claim to be drawn from the model's own distribution are always accepted.
    const ToyDraftOptions source{.vocab = kVocab, .error = 0, .silence = 0, .spread = 0.5, .lies = true};
    CHECK(draw_pairs(sampling, DraftRule::Rejection, source).deviation() > 10);
}
