// Tokens sampled from the top-k logits equal those sampled from full rows. On the emulated GPU, the test also
// counts the bytes that cross the bus.
#include "engine/decode/next_token.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "engine/decode/error.h"
#include "engine/decode/scheduler.h"
#include "engine/decode/speculation/model_draft.h"
#include "engine/decode/speculation/speculator.h"
#include "engine/grammar/source.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/tensor_backend.h"
#include "tests/simt/nccl.h"
#include "tests/simt/simt.h"
#include "tests/support/answers.h"
#include "tests/support/split_ranks.h"
#include "tests/support/tiny_program.h"
#include "tests/support/whole_rows.h"

using namespace runnel;
using namespace runnel::completion;
using namespace runnel::decode;
using namespace runnel::testing;

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

std::vector<kernels::TopLogit> largest(const std::vector<float> &logits, int32_t count) {
    std::vector<kernels::TopLogit> all;
    for (size_t i = 0; i < logits.size(); ++i) all.push_back({static_cast<int32_t>(i), logits[i]});
    std::stable_sort(all.begin(), all.end(), [](const auto &a, const auto &b) { return a.logit > b.logit; });
    all.resize(static_cast<size_t>(count));
    return all;
}

float choice(std::mt19937 &random, std::initializer_list<float> values) {
    return *(values.begin() + random() % values.size());
}

// Random options: every filter on or off, sometimes biases and penalties.
SamplingOptions random_options(std::mt19937 &random, int32_t vocab) {
    SamplingOptions o;
    o.seed = random();
    o.temperature = choice(random, {0, 0.5f, 0.8f, 1.7f});
    o.top_k = static_cast<int32_t>(choice(random, {0, 1, 5, 40, 64}));
    o.top_p = choice(random, {1, 0.95f, 0.5f});
    o.min_p = choice(random, {0, 0.05f, 0.3f});
    o.typical = choice(random, {1, 1, 0.9f});
    if (random() % 2 == 0) o.repeat_penalty = choice(random, {1.1f, 1.5f, 0.9f});
    if (random() % 3 == 0) o.presence_penalty = choice(random, {0.4f, 2, -1});
    if (random() % 3 == 0) o.frequency_penalty = choice(random, {0.1f, 0.7f});
    for (auto i = random() % 3 * 8; i > 0; --i)
        o.logit_bias.emplace_back(static_cast<TokenId>(random() % static_cast<uint32_t>(vocab)),
                                  choice(random, {kNever, kNever, -1, -0.25f}));
    if (random() % 8 == 0) o.logit_bias.emplace_back(3, 4.0f);
    if (random() % 4 == 0) o.xtc_probability = 0.5f, o.xtc_threshold = 0.05f;
    if (random() % 6 == 0) o.dynatemp_range = 0.3f;
    if (random() % 8 == 0) o.dry_multiplier = 0.8f;
    if (random() % 8 == 0) o.top_n_sigma = 1.5f;
    if (random() % 8 == 0) o.mirostat = 1 + static_cast<int32_t>(random() % 2);
    if (random() % 8 == 0) o.adaptive_target = 0.3f;
    if (random() % 8 == 0) std::ranges::shuffle(o.samplers, random);
    return o;
}

std::optional<Distribution> distribution_of(Sampler &sampler, const std::vector<kernels::TopLogit> &largest,
                                            const std::vector<TokenId> &history) {
    const Distribution *found = sampler.distribution(largest, history);
    return found ? std::optional(*found) : std::nullopt;
}

void check_same(const Distribution &got, const Distribution &expected) {
    REQUIRE(got.candidates.size() == expected.candidates.size());
    for (size_t i = 0; i < got.candidates.size(); ++i) {
        REQUIRE(got.candidates[i].id == expected.candidates[i].id);
        REQUIRE(got.candidates[i].logit == expected.candidates[i].logit);
        REQUIRE(got.candidates[i].probability == expected.candidates[i].probability);
    }
}

}  // namespace

TEST_CASE("next token: the top-k logits give the token of the full row, or report that they do not suffice") {
    std::mt19937 random(7);
    int decided = 0, undecided = 0, whole = 0;
    for (int round = 0; round < 3000; ++round) {
        CAPTURE(round);
        const auto vocab = static_cast<int32_t>(100 + random() % 400);
        const bool coarse = random() % 2 == 0;  // many equal logits
        std::normal_distribution<float> normal(0, 3);
        std::vector<float> logits(static_cast<size_t>(vocab));
        for (float &l : logits) l = coarse ? std::rint(normal(random)) : normal(random);
        Sampler sampler(random_options(random, vocab), vocab);
        std::vector<TokenId> history(random() % 90);
        for (TokenId &t : history) t = static_cast<TokenId>(random() % static_cast<uint32_t>(vocab));
        const int32_t needed = sampler.candidates_needed(256);
        REQUIRE(needed <= std::min(256, vocab));
        if (needed == 0) {
            ++whole;
            continue;
        }
        // Even with fewer logits than needed, no other token may result.
        for (const int32_t count : {needed, std::max(1, needed / 3)}) {
            const auto token = sampler.sample(largest(logits, count), history);
            if (count == needed) ++(token ? decided : undecided);
            if (token) REQUIRE(*token == sampler.sample(logits, history));
            const std::optional<Distribution> some =
                distribution_of(sampler, largest(logits, count), history);
            REQUIRE(some.has_value() == token.has_value());
            if (some) check_same(*some, sampler.distribution(logits, history));
        }
    }
    CHECK(decided > 1000);
    CHECK(undecided < decided / 5);
    CHECK(whole > 100);
}

TEST_CASE(
    "next token: the defaults, greedy and forbidden padding need few logits; options that may raise a logit "
    "need all") {
    const auto needed = [](const SamplingOptions &o, int32_t most = 256) {
        return Sampler(o, 1000).candidates_needed(most);
    };
    CHECK(needed({}) == 40);
    CHECK(needed({.temperature = 0, .logit_bias = {}}) == 1);
    CHECK(needed({.temperature = 0, .logit_bias = {{999, kNever}}}) == 1);
    CHECK(needed({.logit_bias = {{999, kNever}}}) == 48);
    CHECK(needed({.repeat_penalty = 1.1f, .logit_bias = {}}) == 104);
    CHECK(needed({.top_k = 0, .logit_bias = {}}) == 0);
    CHECK(needed({.top_k = 0, .top_p = 1, .logit_bias = {}}) == 256);
    CHECK(needed({.top_k = 0, .top_p = 1, .min_p = 0, .logit_bias = {}}) == 0);
    CHECK(needed({.top_k = 300, .logit_bias = {}}) == 0);
    CHECK(needed({.top_k = 2000, .top_p = 0.9f, .logit_bias = {}}) == 0);
    CHECK(needed({.repeat_penalty = 0.9f, .logit_bias = {}}) == 0);
    CHECK(needed({.presence_penalty = -1, .logit_bias = {}}) == 0);
    CHECK(needed({.logit_bias = {{3, 0.5f}}}) == 0);
    CHECK(needed({}, 0) == 0);
    CHECK(needed({.temperature = 0, .logit_bias = {}}, 0) == 0);
}

TEST_CASE("next token: logits that are not finite are an error, as in a full row") {
    Sampler sampler({}, 100);
    const std::vector<kernels::TopLogit> damaged = {{7, std::numeric_limits<float>::quiet_NaN()}, {1, 2}};
    CHECK_THROWS_AS(sampler.sample(damaged, {}), DecodeError);
}

namespace {

// A vocabulary with one letter for every token; no token ends an answer.
Vocabulary letters() {
    return {[](TokenId id) { return std::string(1, static_cast<char>('a' + id % 26)); },
            [](TokenId) { return false; }};
}

Executor gpu_executor(const kernels::Program &program, bool whole_rows) {
    auto device = kernels::cuda::make_cuda_backend(0);
    if (whole_rows) device = std::make_unique<testing::WholeRows>(std::move(device));
    return Executor(std::move(device), program, {.context = 96, .batch = 32, .sequences = 3});
}

std::vector<TokenId> generate(Executor &executor, const SamplingOptions &options, int64_t count) {
    return answer_one(executor, letters(),
                      {.input = Tokens{{3, 14, 15, 92, 65, 35}},
                       .sampling = options,
                       .limits = {.max_tokens = count}})
        .done.tokens;
}

const tests::TinyProgram &tiny() {
    static const tests::TinyProgram program({.layers = 1, .vocab = 300, .type = gguf::Type::Q8_0}, 21);
    return program;
}

}  // namespace

TEST_CASE("next token: top-k selection on the GPU gives the same text with any sampling") {
    Executor selecting = gpu_executor(tiny().program(), false), whole = gpu_executor(tiny().program(), true);
    REQUIRE(selecting.most_candidates() == 256);
    REQUIRE(whole.most_candidates() == 0);
    std::vector<std::pair<TokenId, float>> forbidden;  // often the largest: the row is read after all
    for (TokenId id = 0; id < 300; id += 2) forbidden.emplace_back(id, kNever);
    const SamplingOptions cases[] = {
        {.temperature = 0, .logit_bias = {}},
        {.temperature = 0, .repeat_penalty = 1.3f, .logit_bias = {}},
        {.temperature = 0, .logit_bias = forbidden},
        {.logit_bias = {}, .seed = 5},
        {.temperature = 1.5f, .top_k = 64, .top_p = 1, .min_p = 0, .logit_bias = {}, .seed = 6},
        {.typical = 0.8f, .frequency_penalty = 0.3f, .logit_bias = {}, .seed = 7},
        {.top_k = 0, .top_p = 1, .min_p = 0.2f, .logit_bias = {}, .seed = 8},
        {.top_k = 0, .logit_bias = {}, .seed = 9},
        {.logit_bias = forbidden, .seed = 10}};
    for (const SamplingOptions &options : cases) {
        CAPTURE(options.seed);
        CAPTURE(options.top_k);
        CHECK(generate(selecting, options, 10) == generate(whole, options, 10));
    }
}

TEST_CASE(
    "next token: a greedy token copies back 8 bytes, a sampled one 8 per candidate and 40; one wait each") {
    Executor executor = gpu_executor(tiny().program(), false);
    const auto traffic_of = [&](const SamplingOptions &options, uint64_t &pinned) {
        // Counts the difference between two lengths, which excludes the prompt and the first graphs.
        simt::HostTraffic traffic[2];
        uint64_t written[2] = {};
        for (const int i : {0, 1}) {
            simt::take_host_traffic();
            simt::take_reports();
            generate(executor, options, i == 0 ? 2 : 12);
            traffic[i] = simt::take_host_traffic();
            for (const simt::LaunchReport &report : simt::take_reports()) {
                const auto found = report.traffic.find("pinned memory");
                if (found != report.traffic.end()) written[i] += found->second.written;
            }
        }
        pinned = written[1] - written[0];
        return simt::HostTraffic{
            traffic[1].to_device - traffic[0].to_device, traffic[1].to_host - traffic[0].to_host,
            traffic[1].bytes_to_device - traffic[0].bytes_to_device,
            traffic[1].bytes_to_host - traffic[0].bytes_to_host, traffic[1].waits - traffic[0].waits};
    };
    uint64_t pinned = 0;
    generate(executor, {.temperature = 0, .logit_bias = {}}, 3);
    const simt::HostTraffic greedy = traffic_of({.temperature = 0, .logit_bias = {}}, pinned);
    CHECK(greedy.to_host == 0);
    CHECK(pinned == 10 * sizeof(kernels::TopLogit));
    CHECK(greedy.waits == 10);
    CHECK(greedy.to_device <= 20);  // the batch, and a block table
    CHECK(greedy.bytes_to_device < 10 * 4096);
    generate(executor, {.logit_bias = {}, .seed = 1}, 3);
    const simt::HostTraffic sampled = traffic_of({.logit_bias = {}, .seed = 1}, pinned);
    CHECK(sampled.to_host == 0);
    CHECK(pinned == 10 * (40 * 8 + 40));  // 40 candidates and the sum of the row
    CHECK(sampled.waits == 10);
}

TEST_CASE("next token: a batch with samples and scored prompts gives the tokens of full rows") {
    const auto answers = [](bool whole_rows) {
        Executor executor = gpu_executor(tiny().program(), whole_rows);
        CompletionQueue queue(executor, letters(), {.parallel = 3});
        for (uint64_t key = 0; key < 4; ++key) {
            SamplingOptions options{.logit_bias = {}, .seed = key};
            if (key == 1) options.temperature = 0;
            const auto id = static_cast<TokenId>(key);
            queue.submit({.input = Tokens{{5, 6, id}},
                          .sampling = options,
                          .limits = {.max_tokens = 5},
                          .samples = key == 2 ? 2 : 1,
                          .logprobs = key == 3});
        }
        std::vector<std::tuple<uint64_t, int32_t, std::vector<TokenId>, double>> found;
        for (const auto &[key, answered] : answer_all(queue))
            found.emplace_back(key.first, key.second, answered.done.tokens, answered.done.log_probability);
        std::sort(found.begin(), found.end());
        return found;
    };
    const auto expected = answers(true);
    CHECK(expected.size() == 5);
    CHECK(answers(false) == expected);
}

namespace {

// A vowel, "xyz" and a letter from b to m, again and again: few tokens are allowed, seldom the most probable one.
// Tokens are the letters above, except the last one, which ends the text.
Sampler constrained(const SamplingOptions &options, size_t prompt) {
    constexpr TokenId kEnd = 299;
    std::vector<std::string> texts;
    for (TokenId id = 0; id < kEnd; ++id) texts.push_back(letters().text(id));
    texts.emplace_back();
    auto index = std::make_shared<grammar::TokenIndex>(texts, std::vector<TokenId>{kEnd});
    grammar::Machine machine(grammar::compile(
        {.kind = grammar::Source::Kind::Gbnf, .text = "root ::= ([aeiou] \"xyz\" [b-m]){20}"}));
    Sampler sampler(options, kEnd + 1);
    sampler.constrain(Constraint(std::make_shared<grammar::Masks>(std::move(machine), index)));
    sampler.begin_answer(prompt);
    return sampler;
}

// Guesses by the last letter, with an alternative; often wrong.
class Guess final : public DraftSource {
  public:
    Draft draft(std::span<const TokenId> text, int32_t most, float, Sampler &) override {
        const TokenId letter = text.back() % 26;
        Draft draft;
        for (TokenId id = letter < 23 ? 23 : letter + 1; id < 26; ++id) draft.tokens.push_back(id);
        draft.tokens.push_back(1 + text.back() % 5);
        draft.tokens.resize(std::min(draft.tokens.size(), static_cast<size_t>(std::max(most, 0))));
        draft.probabilities.assign(draft.tokens.size(), 1);
        if (draft.tokens.size() > 2) draft.branches = {{1, {draft.tokens[1] + 26}, {0.5f}}};
        return draft;
    }
    std::string_view name() const override { return "guess"; }
};

struct Writer {
    ScheduledSequence entry;
    Sampler sampler;
    std::unique_ptr<Speculator> speculator = {};
    std::vector<TokenId> text = {};
};

// The texts of three sequences side by side: the second has no grammar.
std::vector<std::vector<TokenId>> write(Executor &executor, const SamplingOptions &options, bool drafts) {
    constexpr size_t kCount = 9;
    Scheduler scheduler(executor, {.parallel = 3});
    std::deque<Writer> writers;
    for (TokenId i = 0; i < 3; ++i) {
        const std::vector<TokenId> prompt{5, 6, 7, i};
        Writer &writer = writers.emplace_back(
            Writer{ScheduledSequence(executor),
                   i == 1 ? Sampler(options, 300) : constrained(options, prompt.size())});
        writer.sampler.set_stream(static_cast<uint32_t>(i));
        if (drafts) {
            std::vector<std::unique_ptr<DraftSource>> sources;
            sources.push_back(std::make_unique<Guess>());
            writer.speculator = std::make_unique<Speculator>(std::move(sources),
                                                             SpeculationOptions{.length = {.branches = 2}});
        }
        writer.entry.append(prompt);
        prepare_next(writer.entry, writer.sampler);
        scheduler.add(writer.entry);
    }
    const auto writes = [](const Writer &writer) { return writer.text.size() < kCount; };
    while (std::ranges::any_of(writers, writes)) {
        REQUIRE(scheduler.step());
        for (Writer &writer : writers) {
            if (writer.entry.rows().empty() || !writes(writer)) continue;
            const VerifyResult result =
                take_tokens(writer.entry, writer.entry.rows(), writer.speculator.get(), writer.sampler);
            writer.text.insert(writer.text.end(), result.tokens.begin(), result.tokens.end());
            if (!writes(writer)) {
                scheduler.remove(writer.entry);
                continue;
            }
            prepare_next(writer.entry, writer.sampler);
            const Continuation next{&writer.entry, writer.text.back(), 40, writer.speculator.get(),
                                    &writer.sampler};
            append_with_drafts({&next, 1}, 3);
        }
    }
    std::vector<std::vector<TokenId>> texts;
    for (Writer &writer : writers) {
        writer.text.resize(kCount);
        texts.push_back(writer.text);
    }
    return texts;
}

}  // namespace

TEST_CASE(
    "next token: with grammars the GPU masks before it selects; the text is the same, no row is copied") {
    Executor selecting = gpu_executor(tiny().program(), false), whole = gpu_executor(tiny().program(), true);
    const SamplingOptions cases[] = {{.temperature = 0, .logit_bias = {}},
                                     {.logit_bias = {}, .seed = 5},
                                     {.repeat_penalty = 1.2f, .logit_bias = {}, .seed = 9}};
    for (const SamplingOptions &options : cases) {
        CAPTURE(options.seed);
        CAPTURE(options.top_k);
        CAPTURE(options.repeat_penalty);
        const auto expected = write(whole, options, false);
        for (const size_t row : {size_t{0}, size_t{2}}) {
            std::string text;
            for (const TokenId id : expected[row]) text += letters().text(id);
            CAPTURE(text);
            for (size_t at = 1; at < text.size(); at += 5)
                CHECK(text.substr(at, 3) == std::string("xyz").substr(0, text.size() - at));
        }
        for (const bool drafts : {false, true}) {
            CAPTURE(drafts);
            simt::take_host_traffic();
            CHECK(write(selecting, options, drafts) == expected);
            if (options.repeat_penalty == 1) CHECK(simt::take_host_traffic().to_host == 0);
        }
    }
}

TEST_CASE(
    "next token: a draft model proposes the same tokens under a grammar, from masks or from full rows") {
    Executor selecting = gpu_executor(tiny().program(), false), whole = gpu_executor(tiny().program(), true);
    for (const float temperature : {0.0f, 0.8f}) {
        CAPTURE(temperature);
        Draft drafts[2];
        for (const int i : {0, 1}) {
            Sampler sampler = constrained({.temperature = temperature, .logit_bias = {}, .seed = 3}, 3);
            ModelDraft source(i == 0 ? selecting : whole, "draft");
            drafts[i] = source.draft(std::vector<TokenId>{5, 6, 7}, 10, 0, sampler);
        }
        REQUIRE(drafts[0].tokens.size() == 10);
        CHECK(drafts[0].tokens == drafts[1].tokens);
        for (size_t i = 0; i < 10; ++i)
            CHECK(drafts[0].probabilities[i] == doctest::Approx(drafts[1].probabilities[i]).epsilon(1e-4));
        REQUIRE(drafts[0].branches.size() == drafts[1].branches.size());
        for (size_t i = 0; i < drafts[0].branches.size(); ++i)
            CHECK(drafts[0].branches[i].tokens == drafts[1].branches[i].tokens);
    }
}

TEST_CASE(
    "next token: three GPUs that select together write the text of one, also with grammars and drafts") {
    const tests::Gpus gpus(3);
    const simt::WithNccl nccl;
    Executor one = gpu_executor(tiny().program(), false);
    Executor several(kernels::make_tensor_backend(tests::make_ranks(tests::one_gpu, 3), {2, 1, 1}),
                     tiny().program(), {.context = 96, .batch = 32, .sequences = 3});
    REQUIRE(several.most_candidates() == 256);
    std::vector<std::pair<TokenId, float>> forbidden;  // often the largest: the row is read after all
    for (TokenId id = 0; id < 300; id += 2) forbidden.emplace_back(id, kNever);
    const SamplingOptions cases[] = {{.temperature = 0, .logit_bias = {}},
                                     {.logit_bias = {}, .seed = 5},
                                     {.top_k = 0, .top_p = 1, .min_p = 0.2f, .logit_bias = {}, .seed = 8},
                                     {.top_k = 0, .logit_bias = {}, .seed = 9},
                                     {.logit_bias = forbidden, .seed = 10}};
    for (const SamplingOptions &options : cases) {
        CAPTURE(options.seed);
        CHECK(generate(several, options, 6) == generate(one, options, 6));
    }
    const SamplingOptions sampled{.logit_bias = {}, .seed = 5};
    const auto expected = write(one, sampled, false);
    simt::take_host_traffic();
    CHECK(write(several, sampled, true) == expected);
    CHECK(simt::take_host_traffic().to_host == 0);
    CHECK(simt::nccl().misuse.empty());
}
