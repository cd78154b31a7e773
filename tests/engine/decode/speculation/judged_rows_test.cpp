// Drafts are verified with candidates if the device selects them, with the same result as with full rows. The
// test counts what the device sends.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/decode/error.h"
#include "engine/decode/next_token.h"
#include "engine/decode/speculation/model_draft.h"
#include "engine/decode/speculation/speculator.h"
#include "engine/measure/synthetic_draft.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/engine/decode/speculation/toy_draft.h"
#include "tests/simt/simt.h"
#include "tests/support/answers.h"
#include "tests/support/tiny_program.h"
#include "tests/support/toy_rig.h"
#include "tests/support/whole_rows.h"

using namespace runnel;
using namespace runnel::completion;
using namespace runnel::decode;
using namespace runnel::measure;
using namespace runnel::testing;

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Whether candidates suffice for a way of sampling.
enum class Rows { Never, SomeRead, All };  // how often whole rows are needed
struct Sampling {
    std::string name;
    SamplingOptions options;
    Rows rows;
};

// Biases that forbid every second token below `vocab`, beginning with `first`.
std::vector<std::pair<TokenId, float>> forbidden(TokenId first, TokenId vocab) {
    std::vector<std::pair<TokenId, float>> biases;
    for (TokenId id = first; id < vocab; id += 2) biases.emplace_back(id, kNever);
    return biases;
}

std::vector<Sampling> samplings(int32_t vocab) {
    return {{"greedy", {.temperature = 0, .logit_bias = {}}, Rows::Never},
            {"top-k, top-p, min-p", {.top_k = 10, .logit_bias = {}, .seed = 3}, Rows::Never},
            {"hot", {.temperature = 3, .top_k = 15, .top_p = 1, .min_p = 0, .logit_bias = {}}, Rows::Never},
            {"greedy, forbidden", {.temperature = 0, .logit_bias = forbidden(0, vocab)}, Rows::SomeRead},
            {"penalties", {.top_k = 10, .repeat_penalty = 1.5f, .logit_bias = {}}, Rows::SomeRead},
            {"forbidden", {.top_k = 10, .logit_bias = forbidden(1, vocab), .seed = 4}, Rows::SomeRead},
            {"no top-k", {.temperature = 1, .top_k = 0, .logit_bias = {}, .seed = 5}, Rows::All}};
}

struct Outcome {
    std::vector<TokenId> tokens;
    int64_t drafted, accepted, passes, plain_passes, branches, branches_accepted;
    bool operator==(const Outcome &) const = default;

    // Rows that were sampled from: those of drafts and branches, and the prompt's.
    int64_t judged() const { return 1 + drafted + passes + plain_passes; }
};

Outcome outcome(std::vector<TokenId> tokens, const SpeculationCounts &c) {
    return {std::move(tokens), c.drafted,  c.accepted,         c.passes,
            c.plain_passes,    c.branches, c.branches_accepted};
}

std::unique_ptr<Speculator> speculator_of(std::unique_ptr<DraftSource> source, DraftRule rule, int32_t most,
                                          std::shared_ptr<SharedCosts> costs = nullptr) {
    std::vector<std::unique_ptr<DraftSource>> sources;
    sources.push_back(std::move(source));
    return std::make_unique<Speculator>(
        std::move(sources), SpeculationOptions{.length = {.most = most, .branches = 4}, .rule = rule},
        std::move(costs));
}

Outcome answer(Executor &executor, const SamplingOptions &sampling, int64_t count,
               std::unique_ptr<Speculator> speculator,
               const completion::Vocabulary &vocabulary = toy_letters()) {
    const Answered answered = answer_one(executor, vocabulary,
                                         {.input = Tokens{{3, 1, 4, 1, 5}},
                                          .sampling = sampling,
                                          .limits = {.max_tokens = count, .ignore_end = true}},
                                         std::move(speculator));
    return outcome(answered.done.tokens, answered.done.speculation.value_or(SpeculationCounts{}));
}

// The sum of a device is not rounded like that of a full row (kernels/exp_sum.h).
bool close(const std::vector<float> &a, const std::vector<float> &b) {
    return std::ranges::equal(a, b, [](float x, float y) { return std::abs(x - y) <= 1e-6f * y; });
}

void check_same_draft(const Draft &got, const Draft &expected) {
    CHECK(got.tokens == expected.tokens);
    CHECK(close(got.probabilities, expected.probabilities));
    REQUIRE(got.branches.size() == expected.branches.size());
    for (size_t i = 0; i < got.branches.size(); ++i) {
        CHECK(got.branches[i].shared == expected.branches[i].shared);
        CHECK(got.branches[i].tokens == expected.branches[i].tokens);
        CHECK(close(got.branches[i].probabilities, expected.branches[i].probabilities));
    }
    REQUIRE(got.distributions.size() == expected.distributions.size());
    for (size_t i = 0; i < got.distributions.size(); ++i) {
        const std::vector<decode::TokenProb> &mine = got.distributions[i].candidates,
                                             &theirs = expected.distributions[i].candidates;
        REQUIRE(mine.size() == theirs.size());
        for (size_t c = 0; c < mine.size(); ++c) {
            CHECK(mine[c].id == theirs[c].id);
            CHECK(mine[c].probability == theirs[c].probability);
        }
    }
}

constexpr DraftRule kRules[] = {DraftRule::Same, DraftRule::Rejection};

std::unique_ptr<DraftSource> toy_source(DraftRule rule, uint32_t seed) {
    return std::make_unique<ToyDraft>(ToyDraftOptions{.vocab = kToyVocab,
                                                      .error = 0.25,
                                                      .silence = 0.1,
                                                      .spread = rule == DraftRule::Rejection ? 0.3 : 0,
                                                      .doubt = 0.4,
                                                      .with_distributions = rule == DraftRule::Rejection},
                                      seed);
}

}  // namespace

TEST_CASE("judged rows: under both rules, candidates give the same text, drafts and branches as full rows") {
    const ExecutorOptions shape{.context = 200, .batch = 64, .cells = 800};  // room for all branches
    for (const DraftRule rule : kRules)
        for (const Sampling &sampling : samplings(kToyVocab)) {
            CAPTURE(static_cast<int>(rule));
            CAPTURE(sampling.name);
            size_t read = 0, rows = 0;
            int64_t taken = 0;
            for (uint32_t seed = 0; seed < 5; ++seed) {
                CAPTURE(seed);
                ToyRig whole(shape), selecting(shape), plain(shape);
                plain.backend->selects = selecting.backend->selects = 16;
                const auto speculator = [&] { return speculator_of(toy_source(rule, seed), rule, 6); };
                const Outcome expected = answer(whole.executor, sampling.options, 120, speculator());
                const Outcome got = answer(selecting.executor, sampling.options, 120, speculator());
                CHECK(got == expected);
                CHECK(got.accepted > 20);
                if (rule == DraftRule::Same)
                    CHECK(got.tokens == answer(plain.executor, sampling.options, 120, nullptr).tokens);
                const ToyBackend &device = *selecting.backend;
                const bool all = sampling.rows == Rows::All;
                CHECK(device.whole_rows == (all ? static_cast<size_t>(got.judged()) : 0));
                const int32_t each = Sampler(sampling.options, kToyVocab).candidates_needed(16);
                CHECK(device.candidates == static_cast<size_t>(got.judged() * each));
                read += device.rows_read;
                rows += static_cast<size_t>(got.judged());
                taken += got.branches_accepted;
            }
            CHECK((read > 0) == (sampling.rows == Rows::SomeRead));
            CHECK(read < rows);
            CHECK((taken > 5) == (rule == DraftRule::Same));
        }
}

TEST_CASE("judged rows: pass costs are measured with passes of the same kind, without full rows") {
    ToyRig rig({.context = 4000, .batch = 64});
    rig.backend->selects = 16;
    const auto costs = std::make_shared<SharedCosts>();
    const Outcome got = answer(rig.executor, {.temperature = 0, .logit_bias = {}}, 2000,
                               speculator_of(toy_source(DraftRule::Same, 1), DraftRule::Same, 6, costs));
    const auto judged = static_cast<size_t>(got.judged());
    CHECK(rig.backend->whole_rows == 0);
    CHECK(rig.backend->candidates > judged);  // the measurement's
}

TEST_CASE("judged rows: logits that are not finite are an error once the answer reaches them") {
    for (const DraftRule rule : kRules) {
        ToyRig rig({.context = 100, .batch = 64});
        rig.backend->selects = 16;
        rig.backend->model = [](const std::vector<int32_t> &prefix, std::span<float> logits) {
            if (prefix.size() == 20) logits[3] = std::numeric_limits<float>::quiet_NaN();
        };
        auto speculator = speculator_of(
            std::make_unique<ToyDraft>(ToyDraftOptions{.vocab = kToyVocab, .error = 0, .silence = 0}, 1),
            rule, 7);
        const Done done = answer_one(rig.executor, toy_letters(),
                                     {.input = Tokens{{1, 2}},
                                      .sampling = {.top_k = 10, .logit_bias = {}},
                                      .limits = {.ignore_end = true}},
                                     std::move(speculator))
                              .done;
        CHECK(done.error.find("not finite") != std::string::npos);
        CHECK(done.tokens.size() == 18);
    }
}

namespace {

using Answers = std::map<uint64_t, std::pair<std::vector<TokenId>, double>>;

struct Batched {
    Answers answers;
    int64_t drafted, accepted, branches_accepted;
    bool operator==(const Batched &) const = default;
};

// Runs answers with all ways of sampling but the last in one batch; `scored`: also their log-probabilities.
Batched answer_together(Executor &executor, const std::vector<Sampling> &how, bool scored, int64_t count,
                        const MakeSpeculator &make) {
    CompletionQueue queue(executor, toy_letters(),
                          {.parallel = static_cast<int32_t>(how.size()), .drafts = make});
    for (uint64_t key = 0; key + 1 < how.size(); ++key)
        queue.submit({.input = Tokens{std::vector<TokenId>(3 + key, 2)},
                      .sampling = how[key].options,
                      .limits = {.max_tokens = count + static_cast<int64_t>(key), .ignore_end = true},
                      .logprobs = scored});
    Batched result{};
    for (const auto &[key, answered] : answer_all(queue)) {
        CHECK(answered.done.error == "");
        result.answers[key.first] = {answered.done.tokens, answered.done.log_probability};
    }
    const SpeculationCounts c = queue.speculation();
    result.drafted = c.drafted, result.accepted = c.accepted, result.branches_accepted = c.branches_accepted;
    return result;
}

}  // namespace

TEST_CASE("judged rows: a batch is verified with candidates; full rows are read only for scores") {
    const std::vector<Sampling> how = samplings(kToyVocab);
    const ExecutorOptions shape{.context = 100, .batch = 96, .sequences = 8};
    for (const DraftRule rule : kRules) {
        CAPTURE(static_cast<int>(rule));
        const auto run = [&](bool selects, bool scored, ToyRig &rig) {
            rig.backend->selects = selects ? 16 : 0;
            uint32_t seed = 7;
            return answer_together(rig.executor, how, scored, 50,
                                   [&] { return speculator_of(toy_source(rule, ++seed), rule, 5); });
        };
        ToyRig whole(shape), selecting(shape), scoring(shape), scored(shape);
        const Batched expected = run(false, false, whole);
        CHECK(run(true, false, selecting) == expected);
        CHECK(expected.accepted > 100);
        CHECK((expected.branches_accepted > 5) == (rule == DraftRule::Same));
        CHECK(selecting.backend->whole_rows == 0);
        CHECK(selecting.backend->candidates > 0);
        CHECK(selecting.backend->rows_read > 0);
        CHECK(run(true, true, scoring) == run(false, true, scored));
        CHECK(scoring.backend->candidates == 0);
    }
}

// --- a model that drafts ---------------------------------------------------------------------------------

TEST_CASE("judged rows: a model drafts the same from candidates as from full rows") {
    // The two models' vocabularies may differ in size.
    for (const int32_t vocab : {30, kToyVocab, 60})
        for (const Sampling &sampling : samplings(kToyVocab))
            for (const bool distributions : {false, true}) {
                CAPTURE(vocab);
                CAPTURE(sampling.name);
                CAPTURE(distributions);
                ToyRig whole({.context = 200}, vocab), selecting({.context = 200}, vocab);
                selecting.backend->selects = 16;
                ModelDraft a(whole.executor, "model", distributions),
                    b(selecting.executor, "model", distributions);
                Sampler sampler(sampling.options, kToyVocab);
                std::vector<TokenId> text = {1, 2, 3};
                for (int round = 0; round < 12; ++round) {
                    CAPTURE(round);
                    const Draft expected = a.draft(text, 5, 0.1f, sampler);
                    check_same_draft(b.draft(text, 5, 0.1f, sampler), expected);
                    if (!expected.tokens.empty()) text.push_back(expected.tokens[0]);
                    text.push_back(round % 7);
                }
                CHECK((selecting.backend->whole_rows > 0) == (sampling.rows == Rows::All));
                if (sampling.rows == Rows::Never && vocab == kToyVocab)
                    CHECK(selecting.backend->rows_read == 0);
            }
}

// --- on the emulated GPU ---------------------------------------------------------------------------------

namespace {

constexpr int32_t kVocab = 300;

completion::Vocabulary letters() {
    return {[](TokenId id) { return std::string(1, static_cast<char>('a' + id % 26)); },
            [](TokenId) { return false; }};
}

const kernels::Program &tiny() {
    static const tests::TinyProgram program({.layers = 1, .vocab = kVocab, .type = gguf::Type::Q8_0}, 21);
    return program.program();
}

Executor on(std::unique_ptr<kernels::Backend> device) {
    return Executor(std::move(device), tiny(), {.context = 96, .batch = 64, .sequences = 8});
}

std::unique_ptr<kernels::Backend> gpu() {
    return kernels::cuda::make_cuda_backend(0);
}

// What the device has sent since the last call.
struct Sent {
    int64_t copies;
    uint64_t bytes;  // by kernels
};
Sent take_sent() {
    Sent sent{simt::take_host_traffic().to_host, 0};
    for (const simt::LaunchReport &report : simt::take_reports())
        if (const auto found = report.traffic.find("pinned memory"); found != report.traffic.end())
            sent.bytes += found->second.written;
    return sent;
}

}  // namespace

TEST_CASE("judged rows: on the emulated GPU 8 bytes per candidate are copied back, and no full row") {
    Executor selecting = on(gpu()), whole = on(std::make_unique<WholeRows>(gpu()));
    std::vector<Sampling> how = samplings(kVocab);
    std::erase_if(how, [](const Sampling &s) { return s.name == "hot" || s.name == "penalties"; });
    for (const Sampling &sampling : how) {
        CAPTURE(sampling.name);
        const std::vector<TokenId> plain = answer(selecting, sampling.options, 8, nullptr, letters()).tokens;
        std::vector<TokenId> truth{3, 1, 4, 1, 5};
        truth.insert(truth.end(), plain.begin(), plain.end());
        for (const DraftRule rule : kRules) {
            CAPTURE(static_cast<int>(rule));
            const auto guess = [&](Executor &executor) {
                return answer(
                    executor, sampling.options, 8,
                    speculator_of(std::make_unique<SyntheticDraft>(truth, 0.6, 2, kVocab, 0.7), rule, 3),
                    letters());
            };
            take_sent();
            const Outcome got = guess(selecting);
            const Sent sent = take_sent();
            if (rule == DraftRule::Same) {
                CHECK(got.tokens == plain);
                CHECK(got.accepted > 1);
                CHECK(got.branches > 3);
            }
            CHECK(got == guess(whole));
            const int32_t each = Sampler(sampling.options, kVocab).candidates_needed(256);
            const int32_t sum = each > 1 ? 40 : 0;
            CHECK(sent.bytes == static_cast<uint64_t>(got.judged() * (8 * each + sum)));
            if (sampling.rows != Rows::SomeRead) CHECK((sent.copies == 0) == (sampling.rows == Rows::Never));
        }
    }
}

TEST_CASE("judged rows: on the emulated GPU, a batch and its draft model copy back no full row") {
    Executor selecting = on(gpu()), whole = on(std::make_unique<WholeRows>(gpu()));
    std::vector<Sampling> how = samplings(kVocab);
    how.erase(how.begin() + 3, how.end() - 1);  // keeps those that never need a row
    const auto run = [&](Executor &executor, Executor &draft) {
        return answer_together(executor, how, false, 5, [&] {
            return speculator_of(std::make_unique<ModelDraft>(draft, "model"), DraftRule::Same, 3);
        });
    };
    Executor draft = on(gpu()), draft_by_rows = on(std::make_unique<WholeRows>(gpu()));
    take_sent();
    const Batched got = run(selecting, draft);
    CHECK(take_sent().copies == 0);
    CHECK(got == run(whole, draft_by_rows));
    CHECK(got.accepted > 5);
    CHECK(got.branches_accepted < got.accepted);
}

TEST_CASE("judged rows: the probability of a greedy draft follows from the emulated GPU's sums") {
    Executor selecting = on(gpu()), whole = on(std::make_unique<WholeRows>(gpu()));
    ModelDraft a(whole, "model"), b(selecting, "model");
    Sampler sampler({.temperature = 0, .logit_bias = {{7, kNever}}}, kVocab);
    const std::vector<TokenId> text = {5, 4, 3};
    const Draft expected = a.draft(text, 4, 0, sampler), got = b.draft(text, 4, 0, sampler);
    CHECK(got.tokens == expected.tokens);
    REQUIRE(got.tokens.size() == 4);
    REQUIRE(got.branches.size() == 4);
    REQUIRE(expected.branches.size() == 4);
    for (size_t i = 0; i < 4; ++i) {
        CHECK(got.branches[i].tokens == expected.branches[i].tokens);
        CHECK(double{got.probabilities[i]} ==
              doctest::Approx(double{expected.probabilities[i]}).epsilon(1e-5));
        CHECK(double{got.branches[i].probabilities[0]} ==
              doctest::Approx(double{expected.branches[i].probabilities[0]}).epsilon(1e-5));
    }
}
