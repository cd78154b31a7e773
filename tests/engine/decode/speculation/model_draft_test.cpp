// Drafts by models on real backends: caches of every kind, windows, devices.
#include "engine/decode/speculation/model_draft.h"

#include <doctest/doctest.h>

#include <cstring>
#include <memory>

#include "engine/decode/scheduler.h"
#include "engine/decode/single_sequence.h"
#include "engine/decode/speculation/lookup_draft.h"
#include "engine/decode/speculation/speculator.h"
#include "engine/grammar/source.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/support/answers.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::completion;
using namespace runnel::decode;
using namespace runnel::testing;
using kernels::CacheType;
using tests::TinyProgram;

namespace {

constexpr int32_t kVocab = 50;

completion::Vocabulary letters() {
    return {[](TokenId id) { return std::string(1, static_cast<char>('!' + id)); },
            [](TokenId) { return false; }};
}

std::vector<TokenId> prompt_of(size_t length) {
    std::vector<TokenId> tokens(length);
    for (size_t i = 0; i < length; ++i) tokens[i] = static_cast<TokenId>(i * i % 7 + i % 3);
    return tokens;
}

SamplingOptions sampling_of(float temperature) {
    SamplingOptions how;
    how.temperature = temperature;
    how.top_k = 0, how.top_p = 1, how.min_p = 0;
    how.seed = 17;
    return how;
}

std::unique_ptr<kernels::Backend> cpu() {
    return kernels::cpu::make_cpu_backend(1);
}
std::unique_ptr<kernels::Backend> cuda() {
    return kernels::cuda::make_cuda_backend(0);
}

struct Continued {
    std::vector<TokenId> tokens;
    std::vector<float> logits;  // after the last token
    SpeculationCounts counts = {};
    bool operator==(const Continued &other) const {
        return tokens == other.tokens && logits.size() == other.logits.size() &&
               std::memcmp(logits.data(), other.logits.data(), logits.size() * sizeof(float)) == 0;
    }
};

Continued continue_text(Executor &executor, size_t prompt, int64_t count, float temperature,
                        std::unique_ptr<Speculator> speculator = nullptr) {
    MakeSpeculator make;
    if (speculator) make = [&speculator] { return std::move(speculator); };
    CompletionQueue queue(executor, letters(), {.drafts = make});
    queue.submit({.input = Tokens{prompt_of(prompt)},
                  .sampling = sampling_of(temperature),
                  .limits = {.max_tokens = count},
                  .keep = true});
    const Done done = answer_all(queue).begin()->second.done;
    Continued result{done.tokens, {}, done.speculation.value_or(SpeculationCounts{})};
    ScheduledSequence on(queue.kept(done.kept)->fork());
    Scheduler scheduler(executor, {});
    scheduler.add(on);
    on.append({&result.tokens.back(), 1});
    REQUIRE(scheduler.step());
    result.logits.assign(on.logits().begin(), on.logits().end());
    return result;
}

std::unique_ptr<Speculator> with_model(Executor &draft, int32_t most, bool lookup = false) {
    std::vector<std::unique_ptr<DraftSource>> sources;
    if (lookup) sources.push_back(std::make_unique<LookupDraft>());
    sources.push_back(std::make_unique<ModelDraft>(draft, "model"));
    return std::make_unique<Speculator>(std::move(sources), SpeculationOptions{.length = {.most = most}});
}

}  // namespace

TEST_CASE("model draft: with any cache and window, no token and no bit of the logits changes") {
    int64_t accepted = 0, refused = 0, taken = 0;
    for (const CacheType type : {CacheType::F16, CacheType::Q8_0, CacheType::Q4_0, CacheType::FP8})
        for (const int32_t window : {0, 20}) {
            CAPTURE(static_cast<int>(type));
            CAPTURE(window);
            const TinyProgram target({.head_dim_k = 32, .head_dim_v = 32, .window = window}, 3);
            const TinyProgram small({.layers = 1, .width = 32, .feed_forward = 32}, 3);
            // A slack of 6 cells, so that longer roll-backs make the sequence compute what the window lost.
            const ExecutorOptions shape{.context = 200, .batch = 40, .slack = 6, .types = {type, type}};
            for (const float temperature : {0.0f, 0.3f}) {
                CAPTURE(temperature);
                Executor plain(cpu(), target.program(), shape), guessing(cpu(), target.program(), shape),
                    twin(cpu(), target.program(), shape), other(cpu(), small.program(), {.context = 200});
                const Continued expected = continue_text(plain, 30, 80, temperature);
                // Drafts by the model itself, always right; by another one, hardly ever right; and by the latter
                // after lookup.
                const Continued right = continue_text(guessing, 30, 80, temperature, with_model(twin, 9)),
                                wrong = continue_text(guessing, 30, 80, temperature, with_model(other, 9)),
                                both =
                                    continue_text(guessing, 30, 80, temperature, with_model(other, 5, true));
                CHECK(right == expected);
                CHECK(wrong == expected);
                CHECK(both == expected);
                // With the same noise, first choices are right and second choices wrong.
                CHECK(right.counts.accepted == right.counts.drafted - right.counts.branches);
                CHECK(right.counts.branches_accepted == 0);
                CHECK(right.counts.failure == "");
                accepted += wrong.counts.accepted;
                taken += wrong.counts.branches_accepted + both.counts.branches_accepted;
                refused += wrong.counts.drafted - wrong.counts.accepted;
            }
        }
    CHECK(accepted > 10);
    CHECK(taken > 10);  // second choices, on forks of the cache
    CHECK(refused > 1000);
}

TEST_CASE("model draft: a context smaller than the text is used for its end") {
    const TinyProgram target({}, 3);
    Executor plain(cpu(), target.program(), {.context = 300}),
        guessing(cpu(), target.program(), {.context = 300}), small(cpu(), target.program(), {.context = 40});
    const Continued got = continue_text(guessing, 100, 120, 0.3f, with_model(small, 4));
    CHECK(got == continue_text(plain, 100, 120, 0.3f));
    CHECK(got.counts.drafted > 100);
    CHECK(got.counts.failure == "");
}

TEST_CASE("model draft: a draft ends when its probability falls below the minimum") {
    const TinyProgram target({}, 3);
    Executor executor(cpu(), target.program(), {.context = 100});
    for (const float temperature : {0.0f, 0.5f})
        for (const bool distributions : {false, true}) {
            ModelDraft source(executor, "model", distributions);
            Sampler sampler(sampling_of(temperature), kVocab);
            const std::vector<TokenId> text = prompt_of(20);
            const Draft all = source.draft(text, 8, 0, sampler);
            REQUIRE(all.tokens.size() == 8);
            CHECK(all.distributions.size() == (distributions ? 8 : 0));
            for (size_t i = 0; i < 8; ++i) {
                if (!distributions || temperature == 0) continue;
                double most = 0;
                for (const TokenProb &c : all.distributions[i].candidates)
                    most = std::max(most, c.probability);
                CHECK(double{all.probabilities[i]} == doctest::Approx(most));
            }
            float least = 1;
            for (const float p : all.probabilities) {
                CHECK((p > 0 && p <= 1));
                least = std::min(least, p);
            }
            const auto first =
                static_cast<size_t>(std::find(all.probabilities.begin(), all.probabilities.end(), least) -
                                    all.probabilities.begin());
            const Draft some = source.draft(text, 8, least * 1.001f, sampler);
            CHECK(some.tokens.size() == first);
            CHECK(source.draft(text, 8, least, sampler).tokens == all.tokens);
        }
}

TEST_CASE("model draft: without free cache blocks there is no draft; later there is") {
    const TinyProgram target({}, 3);
    Executor executor(cpu(), target.program(), {.context = 64});
    ModelDraft source(executor, "model");
    Sampler sampler(sampling_of(0), kVocab);
    {
        SingleSequence other(executor);
        REQUIRE(other.feed(prompt_of(60)));
        CHECK(source.draft(std::vector<TokenId>(30, 9), 4, 0, sampler).tokens.empty());
    }
    CHECK(source.draft(std::vector<TokenId>(30, 9), 4, 0, sampler).tokens.size() == 4);
}

TEST_CASE("model draft: only tokens that both models have are drafted") {
    const TinyProgram few({.vocab = 30}, 3), many({.vocab = 70}, 3);
    for (const TinyProgram *program : {&few, &many}) {
        Executor executor(cpu(), program->program(), {.context = 64});
        ModelDraft source(executor, "model");
        Sampler sampler(sampling_of(5), kVocab);
        const Draft draft = source.draft(std::vector<TokenId>{49, 3, 49}, 20, 0, sampler);
        CHECK(draft.tokens.size() == 20);
        for (const TokenId id : draft.tokens) CHECK(id < std::min<int64_t>(kVocab, program->program().vocab));
    }
}

TEST_CASE("model draft: with fewer tokens than the model, drafts follow the model's grammar all the same") {
    constexpr int32_t kTokens = 150;  // ids from 90 on: texts of two letters
    std::vector<std::string> texts;
    for (int32_t id = 0; id < kTokens; ++id)
        texts.push_back(id < 90 ? std::string(1, static_cast<char>('!' + id))
                                : "a" + std::string(1, static_cast<char>('!' + id - 90)));
    const auto index = std::make_shared<grammar::TokenIndex>(texts);
    // The ids 0 to 20, then 64 to 68, then 0 to 32 for the rest.
    const grammar::Program program =
        grammar::compile({.kind = grammar::Source::Kind::Regex, .text = "[!-5]{4}[a-e][!-A]{30}"});
    constexpr size_t kPrompt = 3, kForced = kPrompt + 4;
    for (const int32_t vocab : {30, 66, 170})
        for (const float temperature : {0.0f, 0.8f})
            for (const bool distributions : {false, true}) {
                CAPTURE(vocab);
                CAPTURE(temperature);
                CAPTURE(distributions);
                const TinyProgram small({.layers = 1, .width = 32, .feed_forward = 32, .vocab = vocab}, 5);
                const ExecutorOptions shape{.context = 40};
                Executor host(cpu(), small.program(), shape), gpu(cuda(), small.program(), shape);
                ModelDraft on_host(host, "model", distributions), on_gpu(gpu, "model", distributions);
                Sampler sampler(sampling_of(temperature), kTokens);
                sampler.constrain(
                    Constraint(std::make_shared<grammar::Masks>(grammar::Machine(program), index)));
                std::vector<TokenId> text{5, 100, 7};
                sampler.begin_answer(kPrompt);
                for (const TokenId next : {3, 20, 9, 0, 64, 32, 31, 2}) {
                    const Draft draft = on_host.draft(text, 4, 0, sampler);
                    if (text.size() % 3 == 1)  // the emulated device is slow
                        CHECK(on_gpu.draft(text, 4, 0, sampler).tokens == draft.tokens);
                    // After kForced tokens, the draft model with 30 tokens lacks the tokens that must follow.
                    size_t possible = 4;
                    if (vocab < 64 && text.size() <= kForced)
                        possible = std::min(possible, kForced - text.size());
                    REQUIRE(draft.tokens.size() >= possible);
                    CHECK(sampler.constraint()->allowed(text, draft.tokens) >= possible);
                    for (size_t i = 0; i < possible; ++i) CHECK(draft.tokens[i] < vocab);
                    text.push_back(next);
                }
            }
}

TEST_CASE("model draft: with draft and target on the GPU or the CPU, texts equal those without drafts") {
    const TinyProgram target({.layers = 1, .window = 7}, 3);
    const ExecutorOptions shape{.context = 40, .batch = 16, .slack = 2};
    Executor gpu(cuda(), target.program(), shape), host(cpu(), target.program(), shape);
    const auto check = [](Executor &executor, Executor &draft, float temperature) {
        CAPTURE(temperature);
        const Continued expected = continue_text(executor, 5, 8, temperature);
        const Continued got = continue_text(executor, 5, 8, temperature, with_model(draft, 3));
        CHECK(got == expected);
        CHECK(got.counts.accepted > 1);
        CHECK(got.counts.branches > 3);
        CHECK(got.counts.failure == "");
    };
    Executor other(cuda(), target.program(), shape);
    check(gpu, other, 0.3f);
    check(gpu, host, 0.0f);
    check(host, other, 0.3f);
}

namespace {

// Drafts given tokens wherever the text ends with a given token: a chain that is wrong from some position on,
// and a branch there that is right.
class Scripted final : public DraftSource {
  public:
    Scripted(std::vector<TokenId> truth, size_t shared) : truth_(std::move(truth)), shared_(shared) {}
    Draft draft(std::span<const TokenId> text, int32_t most, float, Sampler &) override {
        Draft draft;
        const size_t known = text.size();
        if (known + shared_ + 2 > truth_.size() || most < static_cast<int32_t>(shared_) + 2) return draft;
        Branch branch{shared_, {}, {}};
        for (size_t i = 0; i < shared_ + 2; ++i) {
            const TokenId right = truth_[known + i];
            draft.tokens.push_back(i < shared_ ? right : (right + 1) % kVocab);
            if (i >= shared_) branch.tokens.push_back(right);
        }
        draft.probabilities.assign(draft.tokens.size(), 1);
        branch.probabilities.assign(branch.tokens.size(), 1);
        draft.branches.push_back(std::move(branch));
        return draft;
    }
    std::string_view name() const override { return "scripted"; }

  private:
    std::vector<TokenId> truth_;
    size_t shared_;
};

void check_branches(std::unique_ptr<kernels::Backend> (*device)(), const TinyProgram &target, CacheType type,
                    size_t prompt, size_t shared, int64_t count) {
    CAPTURE(prompt);
    CAPTURE(shared);
    const ExecutorOptions shape{.context = 128, .batch = 32, .slack = 4, .types = {type, type}};
    Executor plain(device(), target.program(), shape), guessing(device(), target.program(), shape);
    const Continued expected = continue_text(plain, prompt, count, 0);
    std::vector<TokenId> truth = prompt_of(prompt);
    truth.insert(truth.end(), expected.tokens.begin(), expected.tokens.end());
    std::vector<std::unique_ptr<DraftSource>> sources;
    sources.push_back(std::make_unique<Scripted>(truth, shared));
    const SpeculationOptions how{.length = {.most = 8}};
    const Continued got =
        continue_text(guessing, prompt, count, 0, std::make_unique<Speculator>(std::move(sources), how));
    CHECK(got == expected);
    CHECK(got.counts.branches_accepted == got.counts.branches);
    CHECK(got.counts.branches > 0);
}

}  // namespace

TEST_CASE("tree: branches accepted at every position of a block give the bits of plain decoding") {
    for (const CacheType type : {CacheType::F16, CacheType::Q8_0})
        for (const int32_t window : {0, 9}) {
            const TinyProgram target({.head_dim_k = 32, .head_dim_v = 32, .window = window}, 3);
            for (size_t prompt = 24; prompt <= 34; ++prompt)
                check_branches(cpu, target, type, prompt, prompt % 3, 24);
        }
}

TEST_CASE("tree: on the emulated GPU, too") {
    for (const CacheType type : {CacheType::F16, CacheType::Q8_0}) {
        const TinyProgram target({.layers = 1, .head_dim_k = 32, .head_dim_v = 32, .window = 9}, 3);
        for (const size_t prompt : {29, 32}) check_branches(cuda, target, type, prompt, prompt % 3, 8);
    }
}
