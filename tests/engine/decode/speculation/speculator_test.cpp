#include "engine/decode/speculation/speculator.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <optional>

#include "engine/decode/answer_batch.h"
#include "engine/decode/error.h"
#include "engine/decode/generator.h"
#include "tests/engine/decode/speculation/toy_draft.h"
#include "tests/support/toy_rig.h"

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

GenerationOptions random_limits(std::mt19937 &rng, int32_t context) {
    GenerationOptions options;
    options.max_tokens = rng() % 4 == 0 ? -1 : static_cast<int64_t>(rng() % static_cast<size_t>(2 * context));
    options.ignore_end = options.max_tokens >= 0 && rng() % 4 != 0;
    if (rng() % 4 == 0) options.stops = {std::string(1, static_cast<char>('!' + rng() % kVocab))};
    if (options.max_tokens >= 0 && rng() % 3 == 0) options.shift_keeping = rng() % 8;
    return options;
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
    std::vector<TokenId> tokens, kept;  // kept: in the session
    FinishReason reason;
    bool context_full;
    int64_t forgotten;
    std::string error;
    bool operator==(const Result &) const = default;
};

// Two turns of a conversation, so that the state that the first leaves counts.
std::vector<Result> converse(Executor &executor, const SamplingOptions &sampling,
                             const GenerationOptions &limits, const std::vector<TokenId> &prompt,
                             Speculator *speculator) {
    std::vector<Result> results;
    Session session(executor);
    Sampler sampler(sampling, kVocab);
    std::vector<TokenId> text = prompt;
    for (int turn = 0; turn < 2; ++turn) {
        Generator generator(session, sampler, toy_letters(), limits, nullptr, speculator);
        Result r{};
        try {
            generator.start(text);
            while (auto piece = generator.next()) {
                r.parts.push_back(*piece);
                r.text += *piece;
            }
        } catch (const DecodeError &error) {
            r.error = error.what();
        }
        r.tokens = generator.tokens();
        r.kept = session.tokens();
        r.reason = generator.finish_reason();
        r.context_full = generator.context_full();
        r.forgotten = generator.forgotten();
        results.push_back(r);
        text.insert(text.end(), r.tokens.begin(), r.tokens.end());
        text.push_back(1);
        if (text.size() >= static_cast<size_t>(executor.context())) break;
    }
    return results;
}

}  // namespace

TEST_CASE("speculator: a single answer is the same, whatever is drafted, and leaves the same session") {
    int64_t drafted = 0, accepted = 0, branches = 0, taken = 0;
    for (uint32_t seed = 0; seed < 300; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        const int32_t context = 20 + static_cast<int32_t>(rng() % 150);
        const ExecutorOptions shape{.context = context, .batch = 1 + static_cast<int32_t>(rng() % 40)};
        const SamplingOptions sampling = random_sampling(rng);
        const GenerationOptions limits = random_limits(rng, context);
        const std::vector<TokenId> prompt = random_tokens(rng, 1 + rng() % static_cast<size_t>(context));
        ToyRig plain(shape), guessing(shape);
        const ToyDraftOptions source{.vocab = kVocab,
                                     .error = double(rng() % 3) * 0.2,
                                     .silence = double(rng() % 3) * 0.15,
                                     .doubt = double(rng() % 3) * 0.4};
        const SpeculationOptions how{.length = {.most = static_cast<int32_t>(rng() % 34),
                                                .branches = 1 + static_cast<int32_t>(rng() % 6)}};
        const auto costs = rng() % 2 ? std::make_shared<SharedCosts>() : nullptr;
        const auto speculator = toy_speculator(source, seed, how, costs);
        const auto expected = converse(plain.executor, sampling, limits, prompt, nullptr);
        const auto got = converse(guessing.executor, sampling, limits, prompt, speculator.get());
        REQUIRE(got.size() == expected.size());
        for (size_t i = 0; i < got.size(); ++i) {
            CAPTURE(i);
            CHECK(got[i].tokens == expected[i].tokens);
            CHECK(got[i].kept == expected[i].kept);
            CHECK(got[i] == expected[i]);
        }
        CHECK(guessing.backend->records.size() <= plain.backend->records.size() + (costs ? 60 : 0));
        drafted += speculator->counts().drafted;
        accepted += speculator->counts().accepted;
        branches += speculator->counts().branches;
        taken += speculator->counts().branches_accepted;
    }
    CHECK(accepted > 1000);              // drafts were kept,
    CHECK(accepted < drafted * 9 / 10);  // and others not
    CHECK(taken > 50);                   // branches, too
    CHECK(taken < branches / 2);
}

TEST_CASE("speculator: drafts save passes") {
    ToyRig plain({.context = 300, .batch = 64}), guessing({.context = 300, .batch = 64});
    SamplingOptions sampling;
    sampling.seed = 5;
    const GenerationOptions limits{.max_tokens = 120, .ignore_end = true};
    const auto sure = toy_speculator({.vocab = kVocab, .error = 0, .silence = 0}, 1, {.length = {.most = 7}});
    converse(plain.executor, sampling, limits, {3, 1}, nullptr);
    converse(guessing.executor, sampling, limits, {3, 1}, sure.get());
    CHECK(plain.backend->records.size() == 2 * 120);
    CHECK(guessing.backend->records.size() == 2 * 16);  // the prompt, 14 of 8 tokens, one of 7
    CHECK(sure->counts().drafted == sure->counts().accepted);
    CHECK(sure->counts().drafted == 2 * (14 * 7 + 6));
}

TEST_CASE("speculator: roll-back at every position of a block, with every length") {
    SamplingOptions greedy;
    greedy.temperature = 0;
    for (const int32_t most : {1, 2, 7, 31})
        for (size_t start = 1; start <= 33; ++start) {
            CAPTURE(most);
            CAPTURE(start);
            const std::vector<TokenId> prompt(start, 2);
            ToyRig plain({.context = 120, .batch = 64}), guessing({.context = 120, .batch = 64});
            const GenerationOptions limits{.max_tokens = 40, .ignore_end = true};
            const auto speculator =
                toy_speculator({.vocab = kVocab, .error = 0.3, .silence = 0, .doubt = start % 2 ? 0.5 : 0.0},
                               static_cast<uint32_t>(start), {.length = {.most = most}});
            CHECK(converse(plain.executor, greedy, limits, prompt, nullptr) ==
                  converse(guessing.executor, greedy, limits, prompt, speculator.get()));
        }
}

TEST_CASE("speculator: an interrupt in the middle of accepted tokens ends the answer there") {
    ToyRig rig({.context = 100, .batch = 64});
    SamplingOptions greedy;
    greedy.temperature = 0;
    Session session(rig.executor);
    Sampler sampler(greedy, kVocab);
    StopRequest stop;
    const auto sure = toy_speculator({.vocab = kVocab, .error = 0, .silence = 0}, 1, {.length = {.most = 7}});
    Generator generator(session, sampler, toy_letters(), {.ignore_end = true}, &stop, sure.get());
    generator.start(std::vector<TokenId>{1, 2, 3});
    for (int i = 0; i < 4; ++i) REQUIRE(generator.next());
    CHECK(session.tokens().size() == 3 + 8);
    stop.request(StopRequest::Reason::Interrupt);
    while (generator.next()) continue;
    CHECK(generator.finish_reason() == FinishReason::Interrupt);
    CHECK(generator.tokens().size() == 4);
    CHECK(session.tokens().size() == 3 + 3);  // as without drafts: the last was not computed
}

TEST_CASE("speculator: an interrupt during a pass with drafts leaves none of them") {
    ToyRig rig({.context = 100, .batch = 64});
    Session session(rig.executor);
    Sampler sampler({}, kVocab);
    StopRequest stop;
    rig.backend->on_execute = [&](const kernels::Batch &batch) {
        if (batch.positions[0] > 3) stop.request(StopRequest::Reason::Interrupt);
    };
    const auto sure = toy_speculator({.vocab = kVocab, .error = 0, .silence = 0}, 1, {.length = {.most = 7}});
    Generator generator(session, sampler, toy_letters(), {.ignore_end = true}, &stop, sure.get());
    generator.start(std::vector<TokenId>{1, 2, 3});
    while (generator.next()) continue;
    CHECK(generator.tokens().size() == 9);  // of the prompt's pass and of one with drafts
    CHECK(session.tokens().size() == 3 + 8);
    CHECK_FALSE(session.due());
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

TEST_CASE("speculator: where a source fails, the next one is heard, and the answer is the same") {
    ToyRig plain({.context = 100, .batch = 64}), guessing({.context = 100, .batch = 64});
    const GenerationOptions limits{.max_tokens = 50, .ignore_end = true};
    std::vector<std::unique_ptr<DraftSource>> sources;
    sources.push_back(std::make_unique<FailingDraft>());
    sources.push_back(std::make_unique<ToyDraft>(ToyDraftOptions{.vocab = kVocab}, 1));
    Speculator speculator(std::move(sources), {.length = {.most = 5}});
    CHECK(converse(plain.executor, {}, limits, {1}, nullptr) ==
          converse(guessing.executor, {}, limits, {1}, &speculator));
    CHECK(speculator.counts().failure == "the draft is broken");
    CHECK(speculator.counts().accepted > 5);
}

TEST_CASE("speculator: logits that are not finite are the answer's error when it comes to them") {
    for (const bool guess : {false, true}) {
        ToyRig rig({.context = 100, .batch = 64});
        rig.backend->model = [](const std::vector<int32_t> &prefix, std::span<float> logits) {
            if (prefix.size() == 20) logits[3] = std::numeric_limits<float>::quiet_NaN();
        };
        const auto sure =
            toy_speculator({.vocab = kVocab, .error = 0, .silence = 0}, 1, {.length = {.most = 7}});
        const auto results =
            converse(rig.executor, {}, {.ignore_end = true}, {1, 2}, guess ? sure.get() : nullptr);
        CHECK(results[0].tokens.size() == 18);
        CHECK(results[0].error.find("not finite") != std::string::npos);
    }
}

// --- batch -----------------------------------------------------------------------------------------------

namespace {

using Results = std::map<std::pair<uint64_t, int32_t>, AnswerBatch::Finished>;

std::vector<AnswerBatch::Job> random_jobs(std::mt19937 &rng, int32_t context) {
    std::vector<AnswerBatch::Job> jobs;
    const std::vector<TokenId> shared = random_tokens(rng, 70);
    for (uint64_t key = 0; key < 9; ++key) {
        GenerationOptions limits = random_limits(rng, context);
        limits.shift_keeping.reset();
        limits.max_tokens = static_cast<int64_t>(rng() % static_cast<size_t>(context));
        std::vector<TokenId> prompt =
            random_tokens(rng, 1 + rng() % static_cast<size_t>(std::max(1, context / 3)));
        // Some begin alike, so that they share blocks.
        if (rng() % 2) prompt.insert(prompt.begin(), shared.begin(), shared.begin() + context / 3);
        jobs.push_back({.key = key,
                        .prompt = prompt,
                        .sampler = Sampler(random_sampling(rng), kVocab),
                        .options = limits,
                        .samples = rng() % 4 == 0 ? 3 : 1,
                        .scored = rng() % 2 == 0});
    }
    return jobs;
}

Results answers(AnswerBatch &batch, const std::vector<AnswerBatch::Job> &jobs, std::mt19937 *rng) {
    Results results;
    size_t next = 0;
    while (next < jobs.size() || batch.unfinished() > 0) {
        while (next < jobs.size() && (batch.unfinished() == 0 || (rng && (*rng)() % 3 == 0)))
            batch.submit(jobs[next++]);
        if (rng && next > 0 && (*rng)() % 40 == 0) {
            const AnswerBatch::Job &job = jobs[(*rng)() % next];
            if (job.samples == 1 && batch.cancel(job.key)) batch.submit(job);
        }
        REQUIRE(batch.step());
        for (AnswerBatch::Finished &f : batch.take_finished()) {
            const std::pair<uint64_t, int32_t> key{f.key, f.sample};
            CHECK_FALSE(results.contains(key));
            results.emplace(key, std::move(f));
        }
    }
    return results;
}

void check_same(const Results &got, const Results &expected) {
    REQUIRE(got.size() == expected.size());
    for (const auto &[key, finished] : expected) {
        CAPTURE(key.first);
        CAPTURE(key.second);
        const AnswerBatch::Finished &mine = got.at(key);
        CHECK(mine.tokens == finished.tokens);
        CHECK(mine.text == finished.text);
        CHECK(mine.reason == finished.reason);
        CHECK(mine.context_full == finished.context_full);
        CHECK(mine.error == finished.error);
        CHECK(mine.log_probability == finished.log_probability);
    }
}

}  // namespace

TEST_CASE("speculator: in a batch, each sequence drafts for itself and no answer changes") {
    int64_t accepted = 0, taken = 0, preemptions = 0;
    for (uint32_t seed = 0; seed < 60; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        const int32_t context = 40 + static_cast<int32_t>(rng() % 150);
        const std::vector<AnswerBatch::Job> jobs = random_jobs(rng, context);
        ToyRig calm({.context = context, .sequences = 3}),
            crowded({.context = context,
                     .batch = 3 + static_cast<int32_t>(rng() % 60),
                     .sequences = 8,
                     .cells = context + static_cast<int32_t>(rng() % 100)});
        const FreeBlocks free = crowded.executor.free_blocks();
        AnswerBatch alone(calm.executor, toy_letters(), 1);
        const Results expected = answers(alone, jobs, nullptr);
        uint32_t made = seed;
        const auto costs = rng() % 2 ? std::make_shared<SharedCosts>() : nullptr;
        {
            AnswerBatch together(crowded.executor, toy_letters(), 1 + static_cast<int32_t>(rng() % 8), [&]() {
                return toy_speculator({.vocab = kVocab, .error = 0.2, .silence = 0.1, .doubt = 0.4}, ++made,
                                      {.length = {.most = 1 + static_cast<int32_t>(rng() % 12)}}, costs);
            });
            check_same(answers(together, jobs, &rng), expected);
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

// How often each pair of tokens follows the prompt, over many streams; the odds that the model itself gives.
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
    // No penalties in the odds: the chain is asked for them with the same history.
    const auto odds_after = [&](const std::vector<TokenId> &prefix) {
        Sampler sampler(sampling, kVocab);
        std::vector<float> row(kVocab);
        for (int32_t id = 0; id < kVocab; ++id)
            row[static_cast<size_t>(id)] = toy_logit(hash_tokens(prefix), id);
        return sampler.distribution(row, prefix);
    };
    for (const Candidate &first : odds_after(prompt).candidates)
        for (const Candidate &second : odds_after({3, 1, 4, first.id}).candidates)
            pairs.odds[{first.id, second.id}] = first.probability * second.probability;
    ToyRig rig({.context = 32, .batch = 32});
    for (int draw = 0; draw < pairs.draws; ++draw) {
        Session session(rig.executor);
        Sampler sampler(sampling, kVocab);
        sampler.set_stream(static_cast<uint32_t>(draw));
        ToyDraftOptions how = source;
        how.with_distributions = rule == DraftRule::Rejection;
        const auto speculator =
            toy_speculator(how, static_cast<uint32_t>(draw), {.length = {.most = 3}, .rule = rule});
        // The first token is drafted, too.
        session.append(prompt);
        speculator->propose(prompt, 3, 0, sampler);
        speculator->append_to(session);
        REQUIRE(session.compute());
        std::vector<TokenId> tokens = take_tokens(session, session.rows(), speculator.get(), sampler).tokens;
        while (tokens.size() < 2) {
            session.append({&tokens.back(), 1});
            speculator->propose(session.tokens(), 2, 0, sampler);
            speculator->append_to(session);
            REQUIRE(session.compute());
            for (const TokenId id : take_tokens(session, session.rows(), speculator.get(), sampler).tokens)
                tokens.push_back(id);
        }
        pairs.seen[{tokens[0], tokens[1]}] += 1;
    }
    return pairs;
}

}  // namespace

TEST_CASE("speculator: under both rules, texts have the model's distribution after the whole chain") {
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

TEST_CASE("speculator: the test of distributions sees a rule that is wrong") {
    SamplingOptions sampling;
    sampling.temperature = 2.5f, sampling.top_k = 12;
    // A source that says it draws from the model's own distribution is always believed.
    const ToyDraftOptions source{.vocab = kVocab, .error = 0, .silence = 0, .spread = 0.5, .lies = true};
    CHECK(draw_pairs(sampling, DraftRule::Rejection, source).deviation() > 10);
}
