// A request gets the same answer alone, among others, as one of several samples, with drafts, and after
// preemption. The reference is a plain loop over one sequence.
#include "engine/completion/queue.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "engine/decode/next_token.h"
#include "engine/decode/single_sequence.h"
#include "engine/decode/speculation/lookup_draft.h"
#include "engine/model/model.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/engine/decode/speculation/toy_draft.h"
#include "tests/support/answers.h"
#include "tests/support/model_maker.h"
#include "tests/support/tiny_program.h"
#include "tests/support/toy_rig.h"

using namespace runnel::completion;
using namespace runnel::decode;
using namespace runnel::testing;
namespace kernels = runnel::kernels;

namespace {

constexpr int32_t kVocab = kToyVocab;

double log_softmax(std::span<const float> logits, TokenId id) {
    double sum = 0;
    for (const float l : logits) sum += std::exp(double{l});
    return double{logits[static_cast<size_t>(id)]} - std::log(sum);
}

// The answer to a request that ends only at its limit, token by token.
struct Reference {
    std::vector<TokenId> tokens;
    int64_t forgotten = 0;
    double log_probability = 0;
};
Reference reference(Executor &executor, const Request &request) {
    const auto &prompt = std::get<Tokens>(request.input);
    SingleSequence sequence(executor);
    Sampler sampler(request.sampling, executor.vocab());
    sampler.set_stream(request.stream);
    Reference result;
    REQUIRE(sequence.feed(prompt.ids));
    while (static_cast<int64_t>(result.tokens.size()) < request.limits.max_tokens) {
        const TokenId id = sampler.sample(sequence.logits(), sequence.tokens());
        result.log_probability += log_softmax(sequence.logits(), id);
        result.tokens.push_back(id);
        if (static_cast<int64_t>(result.tokens.size()) == request.limits.max_tokens) break;
        if (sequence.sequence().free_cells() == 0) {
            const auto kept = kept_tokens(request.overflow, prompt.fixed, sequence.tokens().size());
            const size_t dropped = kept ? sequence.sequence().shift_context(*kept) : 0;
            if (dropped == 0) break;
            result.forgotten += static_cast<int64_t>(dropped);
            sampler.drop(static_cast<int64_t>(dropped));
        }
        REQUIRE(sequence.feed({&id, 1}));
    }
    return result;
}

Request random_request(std::mt19937 &rng, int32_t context, int32_t vocab) {
    Request request;
    request.sampling.temperature = rng() % 2 ? 0.0f : 1.5f;
    request.sampling.repeat_penalty = rng() % 3 ? 1.0f : 1.2f;
    request.sampling.seed = rng();
    if (rng() % 4 == 0) request.sampling.xtc_probability = 0.5f, request.sampling.xtc_threshold = 0.04f;
    if (rng() % 4 == 0) request.sampling.dry_multiplier = 0.8f;
    if (rng() % 4 == 0) request.sampling.dynatemp_range = 0.5f;
    if (rng() % 4 == 0) request.sampling.adaptive_target = 0.2f;
    if (rng() % 6 == 0) request.sampling.mirostat = 1 + static_cast<int32_t>(rng() % 2);
    if (rng() % 6 == 0) request.sampling.samplers = parse_samplers("tmkxd");
    request.stream = static_cast<uint32_t>(rng() % 3);
    request.limits.max_tokens = static_cast<int64_t>(rng() % static_cast<size_t>(context));
    request.limits.ignore_end = rng() % 4 != 0;
    if (rng() % 8 == 0) request.limits.stops = {std::string(1, static_cast<char>('!' + rng() % kVocab))};
    size_t fixed = 0;
    if (rng() % 3 == 0) {
        request.overflow = rng() % 2 ? OverflowPolicy::Shift : OverflowPolicy::DropMiddle;
        fixed = rng() % static_cast<size_t>(context / 2);
        request.limits.max_tokens *= 3;
    }
    const size_t most = static_cast<size_t>(rng() % 4 == 0 ? context : context / 4);
    request.input = Tokens{random_tokens(rng, 1 + rng() % most, static_cast<uint32_t>(vocab)), fixed};
    return request;
}

void check_equal(const Answered &a, const Answered &b) {
    CHECK(a.text == b.text);
    CHECK(a.tokens == b.tokens);
    CHECK(a.done.tokens == b.done.tokens);
    CHECK(a.done.reason == b.done.reason);
    CHECK(a.done.context_full == b.done.context_full);
    CHECK(a.done.error == b.done.error);
    CHECK(a.done.usage.forgotten == b.done.usage.forgotten);
}

std::vector<Answered> alone(Executor &executor, const std::vector<Request> &requests) {
    std::vector<Answered> answers;
    for (const Request &request : requests) answers.push_back(answer_one(executor, toy_letters(), request));
    return answers;
}

// Submits requests at random times; sometimes cancels one and submits it again.
std::vector<Answered> together(Executor &executor, const std::vector<Request> &requests, int32_t parallel,
                               std::mt19937 &rng, SchedulerCounts *counts = nullptr) {
    CompletionQueue queue(executor, toy_letters(), {.parallel = parallel});
    std::vector<RequestId> ids;
    AllAnswers all;
    while (ids.size() < requests.size() || queue.unfinished() > 0) {
        while (ids.size() < requests.size() && (queue.unfinished() == 0 || rng() % 3 == 0))
            ids.push_back(queue.submit(requests[ids.size()]));
        if (!ids.empty() && rng() % 40 == 0) {
            const size_t which = rng() % ids.size();
            if (queue.cancel(ids[which])) {
                all.erase({ids[which], 0});
                ids[which] = queue.submit(requests[which]);
            }
        }
        REQUIRE(queue.step());
        gather(queue, all);
    }
    if (counts) *counts = queue.schedule();
    std::vector<Answered> answers;
    for (const RequestId id : ids) answers.push_back(all.at({id, 0}));
    CHECK(all.size() == requests.size());
    return answers;
}

std::unique_ptr<Speculator> toy_speculator(uint32_t seed) {
    std::vector<std::unique_ptr<DraftSource>> sources;
    sources.push_back(std::make_unique<ToyDraft>(
        ToyDraftOptions{.vocab = kVocab, .error = 0.2, .silence = 0.1, .doubt = 0.4}, seed));
    return std::make_unique<Speculator>(std::move(sources), SpeculationOptions{.length = {.most = 6}});
}

}  // namespace

TEST_CASE("queue: an answer is the same alone, among 32, as a sample, with drafts and after preemption") {
    int64_t preemptions = 0, accepted = 0, forgotten = 0;
    for (uint32_t seed = 0; seed < 12; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        const int32_t context = 100 + static_cast<int32_t>(rng() % 60);
        constexpr size_t kRequests = 32;
        std::vector<Request> requests;
        std::vector<Reference> expected;
        ToyRig calm({.context = context});
        for (size_t i = 0; i < kRequests; ++i) {
            Request request = random_request(rng, context, kVocab);
            request.limits.stops.clear();
            request.limits.ignore_end = true;
            request.limits.max_tokens = 1 + request.limits.max_tokens % (2 * context);
            requests.push_back(request);
            expected.push_back(reference(calm.executor, request));
            forgotten += expected.back().forgotten;
        }
        const ExecutorOptions crowded{.context = context,
                                      .batch = 1 + static_cast<int32_t>(rng() % 60),
                                      .sequences = 32,
                                      .cells = context + 60};
        uint32_t made = seed;
        for (const bool drafts : {false, true})
            for (const bool many : {false, true}) {
                CAPTURE(drafts);
                CAPTURE(many);
                ToyRig rig(crowded, kVocab, seed % 3 == 0);
                MakeSpeculator make;
                if (drafts) make = [&made] { return toy_speculator(++made); };
                CompletionQueue queue(rig.executor, toy_letters(),
                                      {.parallel = many ? 32 : 1, .drafts = make});
                for (const Request &request : requests) queue.submit(request);
                const AllAnswers got = answer_all(queue);
                REQUIRE(got.size() == kRequests);
                for (size_t i = 0; i < kRequests; ++i) {
                    CAPTURE(i);
                    const Answered &answer = got.at({i + 1, 0});
                    CHECK(answer.done.error == "");
                    CHECK(answer.done.tokens == expected[i].tokens);
                    CHECK(answer.tokens == expected[i].tokens);
                    CHECK(answer.text.size() == expected[i].tokens.size());
                    CHECK(answer.done.usage.forgotten == expected[i].forgotten);
                }
                preemptions += queue.schedule().preemptions;
                accepted += queue.speculation().accepted;
            }
        // Each sample of a prompt equals the answer to a single request with the sample's stream.
        Request several = requests[0];
        several.samples = 5;
        several.logprobs = true;
        ToyRig rig(crowded, kVocab, seed % 3 == 0);
        CompletionQueue queue(rig.executor, toy_letters(),
                              {.parallel = 5, .drafts = [&made] { return toy_speculator(++made); }});
        queue.submit(several);
        const AllAnswers got = answer_all(queue);
        REQUIRE(got.size() == 5);
        for (const auto &[key, answer] : got) {
            Request one = requests[0];
            one.stream += static_cast<uint32_t>(key.second);
            const Reference reference_of_one = reference(calm.executor, one);
            CHECK(answer.done.tokens == reference_of_one.tokens);
            CHECK(answer.done.log_probability == doctest::Approx(reference_of_one.log_probability));
        }
    }
    CHECK(preemptions > 100);
    CHECK(accepted > 1000);
    CHECK(forgotten > 1000);
}

// The same tokens and the same numbers, bit for bit.
void check_same_logprobs(const std::vector<TokenLogProbabilities> &a,
                         const std::vector<TokenLogProbabilities> &b) {
    const auto same = [](const TokenLogProbability &x, const TokenLogProbability &y) {
        return x.id == y.id && x.log_probability == y.log_probability && x.rank == y.rank;
    };
    REQUIRE(a.size() == b.size());
    for (size_t i = 0; i < a.size(); ++i) {
        CHECK(same(a[i].token, b[i].token));
        CHECK(std::ranges::equal(a[i].top, b[i].top, same));
    }
}

TEST_CASE(
    "queue: log-probabilities of answer and prompt, the same alone, in a batch, with drafts and for "
    "samples") {
    int64_t accepted = 0, preemptions = 0;
    for (uint32_t seed = 0; seed < 8; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        constexpr int32_t kContext = 150;
        ToyRig calm({.context = kContext});
        std::vector<Request> requests;
        for (int i = 0; i < 10; ++i) {
            Request request = random_request(rng, kContext, kVocab);
            request.overflow = OverflowPolicy::Error;
            request.limits = {.max_tokens = static_cast<int64_t>(rng() % 40), .ignore_end = true};
            request.logprobs = rng() % 4 != 0;
            request.top_logprobs = static_cast<int32_t>(rng() % 4);
            if (rng() % 3 != 0) request.prompt_logprobs = static_cast<int32_t>(rng() % 3);
            if (!request.logprobs) request.top_logprobs = 0;
            requests.push_back(request);
        }
        const std::vector<Answered> plain = alone(calm.executor, requests);
        for (size_t i = 0; i < requests.size(); ++i) {  // against rows of a plain loop
            CAPTURE(i);
            const Request &request = requests[i];
            const Done &done = plain[i].done;
            const std::vector<TokenId> &prompt = std::get<Tokens>(request.input).ids;
            REQUIRE(done.logprobs.size() == (request.logprobs ? done.tokens.size() : 0));
            REQUIRE(done.prompt_logprobs.size() == (request.prompt_logprobs >= 0 ? prompt.size() - 1 : 0));
            std::vector<TokenId> all = prompt;
            all.insert(all.end(), done.tokens.begin(), done.tokens.end());
            SingleSequence sequence(calm.executor);
            double sum = 0;
            for (size_t n = 0; n + 1 < all.size(); ++n) {
                REQUIRE(sequence.feed(std::span(all).subspan(n, 1)));
                const double expected = log_softmax(sequence.logits(), all[n + 1]);
                const bool in_prompt = n + 1 < prompt.size();
                const auto &list = in_prompt ? done.prompt_logprobs : done.logprobs;
                if (list.empty()) continue;
                const TokenLogProbabilities &got = list[in_prompt ? n : n + 1 - prompt.size()];
                CHECK(got.token.id == all[n + 1]);
                CHECK(got.token.log_probability == doctest::Approx(expected).epsilon(1e-9));
                const auto wanted = in_prompt ? request.prompt_logprobs : request.top_logprobs;
                CHECK(got.top.size() == static_cast<size_t>(wanted));
                for (const TokenLogProbability &other : got.top)
                    CHECK(other.log_probability ==
                          doctest::Approx(log_softmax(sequence.logits(), other.id)).epsilon(1e-9));
                if (!in_prompt) sum += expected;
            }
            if (request.logprobs) CHECK(done.log_probability == doctest::Approx(sum).epsilon(1e-9));
        }
        uint32_t made = seed;
        for (const bool drafts : {false, true}) {
            CAPTURE(drafts);
            ToyRig rig({.context = kContext,
                        .batch = 1 + static_cast<int32_t>(rng() % 80),
                        .sequences = 8,
                        .cells = kContext + 70});
            MakeSpeculator make;
            if (drafts) make = [&made] { return toy_speculator(++made); };
            CompletionQueue queue(rig.executor, toy_letters(), {.parallel = 8, .drafts = make});
            for (const Request &request : requests) queue.submit(request);
            Request several = requests[0];
            several.samples = 3;
            queue.submit(several);
            const AllAnswers got = answer_all(queue);
            for (size_t i = 0; i < requests.size(); ++i) {
                CAPTURE(i);
                const Answered &answer = got.at({i + 1, 0});
                CHECK(answer.done.tokens == plain[i].done.tokens);
                check_same_logprobs(answer.done.logprobs, plain[i].done.logprobs);
                check_same_logprobs(answer.done.prompt_logprobs, plain[i].done.prompt_logprobs);
            }
            for (int32_t sample = 0; sample < 3; ++sample) {
                Request one = requests[0];
                one.stream += static_cast<uint32_t>(sample);
                const Answered expected = answer_one(calm.executor, toy_letters(), one);
                const Answered &answer = got.at({requests.size() + 1, sample});
                check_same_logprobs(answer.done.logprobs, expected.done.logprobs);
                check_same_logprobs(answer.done.prompt_logprobs, expected.done.prompt_logprobs);
            }
            accepted += queue.speculation().accepted;
            preemptions += queue.schedule().preemptions;
        }
    }
    CHECK(accepted > 100);
    CHECK(preemptions > 0);
}

TEST_CASE("queue: random schedules over a small pool do not change the answers") {
    int64_t preemptions = 0, forgotten = 0;
    for (uint32_t seed = 0; seed < 60; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        const int32_t context = 40 + static_cast<int32_t>(rng() % 200);
        std::vector<Request> requests;
        for (int i = 0; i < 12; ++i) requests.push_back(random_request(rng, context, kVocab));
        ToyRig calm({.context = context}), crowded({.context = context,
                                                    .batch = 1 + static_cast<int32_t>(rng() % 50),
                                                    .sequences = 8,
                                                    .cells = context + static_cast<int32_t>(rng() % 100)},
                                                   kVocab, seed % 3 == 0);
        const std::vector<Answered> expected = alone(calm.executor, requests);
        const FreeBlocks free = crowded.executor.free_blocks();
        SchedulerCounts counts;
        const std::vector<Answered> got =
            together(crowded.executor, requests, 1 + static_cast<int32_t>(rng() % 8), rng, &counts);
        REQUIRE(got.size() == requests.size());
        for (size_t i = 0; i < got.size(); ++i) {
            check_equal(got[i], expected[i]);
            forgotten += expected[i].done.usage.forgotten;
        }
        preemptions += counts.preemptions;
        CHECK(crowded.executor.free_blocks() == free);  // no block is held
    }
    CHECK(preemptions > 20);  // the pools were small enough
    CHECK(forgotten > 1000);  // and so were the contexts
}

TEST_CASE("queue: on the CPU, batches, chunks and preemption do not change the tokens") {
    using namespace runnel::tests;
    int64_t preemptions = 0;
    for (uint32_t seed = 0; seed < 4; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        const TinyProgram tiny({.layers = 2,
                                .width = 64,
                                .feed_forward = 96,
                                .vocab = kVocab,
                                .type = seed % 2 ? runnel::gguf::Type::Q8_0 : runnel::gguf::Type::F32},
                               seed);
        const int32_t context = 100;
        std::vector<Request> requests;
        for (int i = 0; i < 10; ++i) requests.push_back(random_request(rng, context, kVocab));
        Executor calm(kernels::cpu::make_cpu_backend(1), tiny.program(), {.context = context});
        Executor crowded(kernels::cpu::make_cpu_backend(1), tiny.program(),
                         {.context = context,
                          .batch = 3 + static_cast<int32_t>(rng() % 60),
                          .sequences = 8,
                          .cells = 160});
        const std::vector<Answered> expected = alone(calm, requests);
        SchedulerCounts counts;
        const std::vector<Answered> got =
            together(crowded, requests, 2 + static_cast<int32_t>(rng() % 6), rng, &counts);
        for (size_t i = 0; i < got.size(); ++i) check_equal(got[i], expected[i]);
        preemptions += counts.preemptions;
    }
    CHECK(preemptions > 0);
}

TEST_CASE("queue: recurrent models on the CPU give the same tokens alone, beside others and with drafts") {
    int64_t preemptions = 0, accepted = 0;
    for (const char *arch : {"qwen35", "lfm2", "rwkv7"}) {
        CAPTURE(arch);
        std::mt19937 rng(6);
        ModelShape shape;
        shape.arch = arch, shape.layers = 4, shape.width = 32, shape.ff = 40, shape.heads = 4;
        shape.vocab = 260, shape.context = 2048, shape.threads = 1, shape.seed = 5;
        const TemporaryModel file(shape);
        const runnel::model::Model model = runnel::model::build(file.file);
        const int32_t context = 100;
        std::vector<Request> requests;
        for (int i = 0; i < 8; ++i) {
            requests.push_back(random_request(rng, context, 260));
            requests.back().limits.stops.clear();
        }
        Executor calm(kernels::cpu::make_cpu_backend(1), model.program, {.context = context});
        Executor crowded(kernels::cpu::make_cpu_backend(1), model.program,
                         {.context = context, .batch = 37, .sequences = 8, .cells = 160});
        const std::vector<Answered> expected = alone(calm, requests);
        for (const bool drafts : {false, true}) {
            CAPTURE(drafts);
            MakeSpeculator make;
            if (drafts)
                make = [] {
                    std::vector<std::unique_ptr<DraftSource>> sources;
                    sources.push_back(std::make_unique<LookupDraft>());
                    return std::make_unique<Speculator>(std::move(sources), SpeculationOptions{});
                };
            CompletionQueue queue(crowded, toy_letters(), {.parallel = 4, .drafts = make});
            for (const Request &request : requests) queue.submit(request);
            const AllAnswers got = answer_all(queue);
            for (size_t i = 0; i < requests.size(); ++i) check_equal(got.at({i + 1, 0}), expected[i]);
            preemptions += queue.schedule().preemptions;
            accepted += queue.speculation().accepted;
        }
    }
    CHECK(preemptions > 0);
    CHECK(accepted > 0);
}

TEST_CASE("queue: kept sequences that are continued, forked or evicted give the same text as a new prompt") {
    for (uint32_t seed = 0; seed < 40; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        const int32_t context = 80 + static_cast<int32_t>(rng() % 80);
        ToyRig rig({.context = context, .batch = 4 + static_cast<int32_t>(rng() % 40)}, kVocab,
                   seed % 3 == 0),
            calm({.context = context});
        const FreeBlocks free = rig.executor.free_blocks();
        uint32_t made = seed;
        MakeSpeculator make;
        if (rng() % 2) make = [&made] { return toy_speculator(++made); };
        {
            CompletionQueue queue(rig.executor, toy_letters(), {.parallel = 1, .drafts = make});
            struct Turn {
                SequenceHandle handle;
                std::vector<TokenId> text;
            };
            std::vector<Turn> tree = {{kNoSequence, random_tokens(rng, 1 + rng() % 40)}};
            for (int turn = 0; turn < 12; ++turn) {
                const Turn from = tree[rng() % tree.size()];
                Request request{.input = Tokens{from.text}, .keep = true};
                request.sampling.seed = rng();
                request.limits = {.max_tokens = 1 + static_cast<int64_t>(rng() % 15), .ignore_end = true};
                request.continue_from = from.handle;
                queue.submit(request);
                const Answered got = answer_all(queue).begin()->second;
                REQUIRE(got.done.error == "");
                Request fresh = request;
                fresh.continue_from = kNoSequence;
                fresh.keep = false;
                check_equal(got, answer_one(calm.executor, toy_letters(), fresh));
                REQUIRE(queue.kept(got.done.kept));
                Turn next{got.done.kept, from.text};
                next.text.insert(next.text.end(), got.done.tokens.begin(), got.done.tokens.end());
                next.text.push_back(static_cast<TokenId>(turn));
                if (next.text.size() + 20 < static_cast<size_t>(context)) tree.push_back(next);
                if (rng() % 5 == 0 && tree.size() > 2) {
                    queue.release(tree.back().handle);
                    CHECK_FALSE(queue.kept(tree.back().handle));
                    tree.pop_back();
                }
            }
        }
        CHECK(rig.executor.free_blocks() == free);
    }
}

TEST_CASE(
    "queue: however many answers are kept, an edit in the middle of a long chat continues from a "
    "checkpoint") {
    std::mt19937 rng(8);
    constexpr int32_t kTurns = 70;
    ToyRig rig({.context = 8192, .batch = 512}, kVocab, true);
    CompletionQueue queue(rig.executor, toy_letters(), {.parallel = 1});
    std::vector<TokenId> text;
    SequenceHandle last = kNoSequence;
    const auto ask = [&](std::vector<TokenId> prompt) {
        Request request{.input = Tokens{prompt}, .keep = true};
        request.limits = {.max_tokens = 1, .ignore_end = true};
        request.continue_from = last;
        queue.submit(request);
        const Answered got = answer_all(queue).begin()->second;
        REQUIRE(got.done.error == "");
        last = got.done.kept;
        text = std::move(prompt);
        text.insert(text.end(), got.done.tokens.begin(), got.done.tokens.end());
        return got.done.timings.prefill_tokens;
    };
    for (int turn = 0; turn < kTurns; ++turn) {
        std::vector<TokenId> prompt = text;
        for (const TokenId id : random_tokens(rng, 100)) prompt.push_back(id);
        CHECK(ask(std::move(prompt)) <= 101);
    }
    // Further back, checkpoints are sparser: at most half of the text is read again.
    for (const size_t kept : {text.size() - 600, text.size() / 2}) {
        CAPTURE(kept);
        std::vector<TokenId> prompt(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(kept));
        prompt.push_back((text[kept] + 1) % kVocab);
        CHECK(ask(std::move(prompt)) <= 1 + std::max<int64_t>(256, static_cast<int64_t>(kept) / 2));
    }
}
