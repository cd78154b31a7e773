// One answer: where it ends, and the text that it reports until then.
#include <doctest/doctest.h>

#include "engine/completion/queue.h"
#include "tests/support/answers.h"
#include "tests/support/toy_backend.h"
#include "tests/support/toy_rig.h"

using namespace runnel::completion;
using namespace runnel::decode;
using namespace runnel::testing;
namespace kernels = runnel::kernels;

namespace {

// A model that generates its script after any prompt: token i of the script follows prompt + i tokens.
struct Rig {
    static constexpr TokenId kEnd = 0;
    std::vector<std::string> pieces;  // by id
    ToyBackend *backend;
    std::unique_ptr<Executor> executor;
    std::vector<TokenId> prompt = {1, 1, 1};

    explicit Rig(std::vector<std::string> script, int32_t context = 64) {
        pieces = {"<end>", "<prompt>"};
        pieces.insert(pieces.end(), script.begin(), script.end());
        auto toy = std::make_unique<ToyBackend>();
        backend = toy.get();
        backend->model = [this](const std::vector<int32_t> &prefix, std::span<float> logits) {
            std::fill(logits.begin(), logits.end(), 0.0f);
            const size_t next = prefix.size() - prompt.size() + 2;
            logits[next < pieces.size() ? next : kEnd] = 9;
        };
        executor =
            std::make_unique<Executor>(std::move(toy), toy_program(static_cast<int32_t>(pieces.size())),
                                       ExecutorOptions{.context = context, .batch = 8});
    }
    Vocabulary vocabulary() {
        return {[this](TokenId id) { return pieces[static_cast<size_t>(id)]; },
                [](TokenId id) { return id == kEnd; }};
    }
    SamplingOptions greedy() {
        SamplingOptions o;
        o.temperature = 0;
        return o;
    }
};

Answered generate(Rig &rig, const Limits &limits, const StopRequest *stop = nullptr) {
    return answer_one(*rig.executor, rig.vocabulary(),
                      {.input = Tokens{rig.prompt}, .sampling = rig.greedy(), .limits = limits}, nullptr,
                      stop);
}

}  // namespace

TEST_CASE("answer: ends where the model ends") {
    Rig rig({"Hello", ",", " world"});
    const Answered r = generate(rig, {});
    CHECK(r.text == "Hello, world");
    CHECK(r.done.reason == FinishReason::Stop);
    CHECK(r.done.tokens.size() == 3);
    // The prompt's step, and one step per token; the token after the last one is the end.
    CHECK(rig.backend->records.size() == 4);
}

TEST_CASE("answer: a token limit costs no step after the last token") {
    Rig rig({"a", "b", "c", "d"});
    const Answered r = generate(rig, {.max_tokens = 2});
    CHECK(r.text == "ab");
    CHECK(r.done.reason == FinishReason::Length);
    CHECK(rig.backend->records.size() == 2);
    CHECK(generate(rig, {.max_tokens = 0}).text == "");
}

TEST_CASE("answer: a stop string may span several tokens") {
    Rig rig({"one ", "tw", "o th", "ree"});
    const Answered r = generate(rig, {.stops = {"two"}});
    CHECK(r.text == "one ");
    CHECK(r.done.reason == FinishReason::Stop);
    CHECK(r.done.tokens.size() == 3);
    CHECK(generate(rig, {.stops = {"threx"}}).text == "one two three");
}

TEST_CASE("answer: text comes in whole characters, and invalid bytes are replaced") {
    Rig rig({"\xe2\x82", "\xac!", "\xff", "\xc3"});
    const Answered r = generate(rig, {});
    CHECK(r.parts[0] == "");
    CHECK(r.parts[1] == "\xe2\x82\xac!");
    CHECK(r.text == "\xe2\x82\xac!\xef\xbf\xbd\xef\xbf\xbd");
}

TEST_CASE("answer: a full context is reported") {
    Rig rig({"a", "b", "c", "d", "e", "f"}, 5);
    const Answered r = generate(rig, {});
    CHECK(r.text == "abc");  // two tokens fit after the prompt; the third needs no cell
    CHECK(r.done.reason == FinishReason::Length);
    CHECK(r.done.context_full);
    rig.prompt.assign(6, 1);
    const Done refused = generate(rig, {}).done;
    CHECK(refused.error.find("6 tokens") != std::string::npos);
    CHECK(refused.kind == DecodeError::Kind::BadInput);
}

TEST_CASE("answer: an interrupt or a deadline keeps the text so far") {
    Rig rig({"a", "b", "c", "d"});
    StopRequest stop;
    rig.backend->on_execute = [&](const kernels::Batch &batch) {
        if (batch.positions[0] == 4) stop.request(StopRequest::Reason::Interrupt);
    };
    Answered r = generate(rig, {}, &stop);
    CHECK(r.text == "ab");
    CHECK(r.done.reason == FinishReason::Interrupt);

    stop.reset();
    stop.request(StopRequest::Reason::Deadline);
    r = generate(rig, {}, &stop);
    CHECK(r.text == "");
    CHECK(r.done.reason == FinishReason::Deadline);
}

TEST_CASE("answer: end tokens can be ignored and added") {
    Rig rig({"a", "b"});
    Answered r = generate(rig, {.max_tokens = 4, .ignore_end = true});
    CHECK(r.text == "ab<end><end>");
    r = generate(rig, {.end_tokens = {3}});
    CHECK(r.text == "a");
    CHECK(r.done.reason == FinishReason::Stop);
}

TEST_CASE("answer: a conversation continues from what is in the cache") {
    Rig rig({"a", "b"});
    CompletionQueue queue(*rig.executor, rig.vocabulary(), {});
    Request request{.input = Tokens{rig.prompt}, .sampling = rig.greedy(), .keep = true};
    queue.submit(request);
    const Done first = answer_all(queue).begin()->second.done;
    CHECK(first.timings.prefill_tokens == 3);
    REQUIRE(first.kept != kNoSequence);
    std::vector<TokenId> longer = rig.prompt;
    longer.insert(longer.end(), first.tokens.begin(), first.tokens.end());
    longer.push_back(1);
    request.input = Tokens{longer};
    request.continue_from = first.kept;
    queue.submit(request);
    const Done second = answer_all(queue).begin()->second.done;
    CHECK(second.usage.prompt_tokens == 6);
    CHECK(second.timings.prefill_tokens == 1);
}

TEST_CASE("answer: a context shift does not repeat the noise") {
    // At this temperature only the noise decides: if it repeated, the tokens would repeat half a context
    // later.
    constexpr int32_t kContext = 64;
    ToyRig rig({.context = kContext});
    SamplingOptions noise;
    noise.temperature = 1e8f;
    noise.top_k = 0;
    noise.top_p = 1;
    noise.min_p = 0;
    const Answered answer = answer_one(rig.executor, toy_letters(),
                                       {.input = Tokens{{1, 2, 3}},
                                        .sampling = noise,
                                        .limits = {.max_tokens = 1500, .ignore_end = true},
                                        .overflow = OverflowPolicy::Shift});
    const std::span<const TokenId> tokens = answer.done.tokens;
    REQUIRE(tokens.size() == 1500);
    REQUIRE(answer.done.usage.forgotten > 1000);
    for (size_t lag = 8; lag < 2 * kContext; ++lag) {
        CAPTURE(lag);
        size_t equal = 0;
        for (size_t i = lag; i < tokens.size(); ++i) equal += tokens[i] == tokens[i - lag];
        CHECK(static_cast<double>(equal) / static_cast<double>(tokens.size() - lag) < 2.5 / kToyVocab);
    }
}

TEST_CASE("answer: the end flushes an incomplete last character") {
    const Vocabulary pieces{[](TokenId) { return std::string("\xd1"); }, [](TokenId) { return false; }};
    Answer answer(pieces, {});
    CHECK(answer.take(2) == "");
    CHECK(answer.end(FinishReason::Length, "\x87!") == "\xd1\x87!");
}

TEST_CASE("answer: a banned text never appears, even split over tokens, with samples and beams") {
    Rig rig({"one ", "tw", "o th", "ree"});
    const auto texts = [&](std::vector<std::string> bans, int32_t beams) {
        Request request{.input = Tokens{rig.prompt},
                        .sampling = rig.greedy(),
                        .limits = {.max_tokens = 6, .bans = std::move(bans)}};
        request.beams = beams;
        return answer_one(*rig.executor, rig.vocabulary(), request);
    };
    CHECK(texts({"nothing of it"}, 1).text == "one two three");
    for (const int32_t beams : {1, 2}) {
        const Answered banned = texts({"two", "ree"}, beams);
        CAPTURE(banned.text);
        CHECK(banned.text.find("two") == std::string::npos);
        CHECK(banned.text.find("ree") == std::string::npos);
        CHECK(!banned.done.complete);
    }
    CHECK(texts({""}, 1).done.error == "a banned text is empty");
}
