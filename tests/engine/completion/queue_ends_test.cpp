// Requests that fail, end at once or are stopped; progress and times.
#include <doctest/doctest.h>

#include <limits>
#include <map>
#include <random>

#include "engine/completion/queue.h"
#include "tests/support/answers.h"
#include "tests/support/toy_rig.h"

using namespace runnel::completion;
using namespace runnel::decode;
using namespace runnel::testing;

TEST_CASE("queue: a prompt that does not fit fails only its request, in the next step") {
    ToyRig rig({.context = 32, .batch = 8});
    CompletionQueue queue(rig.executor, toy_letters(), {.parallel = 2});
    std::mt19937 rng(1);
    Request request;
    request.sampling.temperature = 0;
    request.input = Tokens{random_tokens(rng, 33)};
    queue.submit(request);
    CHECK(queue.unfinished() == 1);
    CHECK(queue.events().empty());
    REQUIRE(queue.step());
    REQUIRE(queue.events().size() == 1);
    CHECK(std::get<Done>(queue.events()[0]).error.find("33 tokens") != std::string::npos);
    CHECK(queue.unfinished() == 0);
    request.samples = 3;
    queue.submit(request);
    request = {.input = Tokens{random_tokens(rng, 3)}, .limits = {.max_tokens = 2, .ignore_end = true}};
    queue.submit(request);
    queue.submit({.input = RawText{"words"}});  // no tokenizer
    queue.submit({.input = Tokens{}});
    const AllAnswers all = answer_all(queue);
    REQUIRE(all.size() == 6);
    for (const auto &[key, answer] : all) {
        CHECK(answer.done.error.empty() == (key.first == 3));
        CHECK(answer.done.tokens.size() == (key.first == 3 ? 2 : 0));
        CHECK(answer.done.kind == DecodeError::Kind::BadInput);
    }
    CHECK(queue.counts().failed == 6);
}

TEST_CASE("queue: max_tokens = 0 computes nothing, unless the sequence is kept") {
    ToyRig rig({.context = 32, .batch = 8});
    CompletionQueue queue(rig.executor, toy_letters(), {.parallel = 2});
    Request request{.input = Tokens{{1, 2, 3}}, .limits = {.max_tokens = 0}, .samples = 2};
    queue.submit(request);
    CHECK(queue.unfinished() == 2);
    const AllAnswers none = answer_all(queue);
    REQUIRE(none.size() == 2);
    for (const auto &[key, answer] : none) {
        CHECK(answer.done.error == "");
        CHECK(answer.done.reason == FinishReason::Length);
        CHECK(answer.done.usage.prompt_tokens == 3);
        CHECK(answer.done.tokens.empty());
    }
    CHECK(rig.backend->records.empty());
    CHECK(queue.counts().finished == 2);
    request.samples = 1;
    request.keep = true;
    queue.submit(request);
    const AllAnswers kept = answer_all(queue);
    REQUIRE(queue.kept(kept.begin()->second.done.kept));
    CHECK(queue.kept(kept.begin()->second.done.kept)->tokens() == std::vector<TokenId>{1, 2, 3});
    CHECK(rig.backend->records.size() == 1);
}

TEST_CASE("queue: logits that are not finite fail only their answer") {
    ToyRig rig({.context = 64, .batch = 16, .sequences = 2});
    rig.backend->model = [](const std::vector<int32_t> &prefix, std::span<float> logits) {
        if (prefix[0] == 7) logits[3] = std::numeric_limits<float>::quiet_NaN();
    };
    CompletionQueue queue(rig.executor, toy_letters(), {.parallel = 2});
    const Limits three{.max_tokens = 3, .ignore_end = true};
    queue.submit({.input = Tokens{{7, 1}}, .limits = three});
    queue.submit({.input = Tokens{{8, 1}}, .limits = three});
    const AllAnswers all = answer_all(queue);
    CHECK(all.at({1, 0}).done.error.find("not finite") != std::string::npos);
    CHECK(all.at({1, 0}).done.kind == DecodeError::Kind::Failed);
    CHECK(all.at({2, 0}).done.error == "");
    CHECK(all.at({2, 0}).done.tokens.size() == 3);
    // The same for a scored prompt, at any position.
    rig.backend->model = [](const std::vector<int32_t> &prefix, std::span<float> logits) {
        if (prefix.size() == 2 && prefix[0] == 7) logits[3] = std::numeric_limits<float>::quiet_NaN();
    };
    queue.submit({.input = Tokens{{7, 1, 2}}, .limits = three, .samples = 2, .prompt_logprobs = 1});
    queue.submit({.input = Tokens{{8, 1, 2}}, .limits = three, .prompt_logprobs = 1});
    const AllAnswers scored = answer_all(queue);
    for (const int32_t sample : {0, 1}) {
        const Done &failed = scored.at({3, sample}).done;
        CHECK(failed.error.find("not finite") != std::string::npos);
        CHECK(failed.kind == DecodeError::Kind::Failed);
        CHECK(failed.tokens.empty());
    }
    CHECK(scored.at({4, 0}).done.error == "");
    CHECK(scored.at({4, 0}).done.prompt_logprobs.size() == 2);
}

TEST_CASE("queue: each answer has its own progress and times") {
    ToyRig rig({.context = 200, .batch = 16, .sequences = 4});
    CompletionQueue queue(rig.executor, toy_letters(), {.parallel = 1});
    Request request{.input = Tokens{std::vector<TokenId>(40, 3)},
                    .limits = {.max_tokens = 6, .ignore_end = true}};
    queue.submit(request);
    request.input = Tokens{std::vector<TokenId>(33, 3)};  // its first blocks are cached by then
    queue.submit(request);
    std::map<RequestId, std::vector<Prefill>> prefills;
    std::map<RequestId, Done> done;
    while (queue.unfinished() > 0) {
        REQUIRE(queue.step());
        for (const Event &event : queue.events()) {
            if (const auto *prefill = std::get_if<Prefill>(&event)) {
                CHECK_FALSE(done.contains(prefill->id));
                prefills[prefill->id].push_back(*prefill);
            } else if (const auto *end = std::get_if<Done>(&event)) {
                done[end->id] = *end;
            }
        }
    }
    REQUIRE(prefills[1].size() == 3);
    CHECK(prefills[1][0].done == 16);
    CHECK(prefills[1][2].done == 40);
    CHECK(prefills[1][2].all == 40);
    CHECK(prefills[1][2].from_cache == 0);
    CHECK(prefills[2].back().done == 33);
    CHECK(prefills[2].back().from_cache == 32);
    for (const RequestId id : {1, 2}) {
        const Timings &timings = done.at(id).timings;
        CHECK(timings.prefill_tokens == (id == 1 ? 40 : 1));
        CHECK(timings.decode_tokens == 5);
        CHECK(timings.token_seconds.size() == 5);
        CHECK(timings.queued_seconds <= timings.first_token_seconds);
        CHECK(timings.queued_seconds + timings.prefill_seconds <= timings.first_token_seconds);
        CHECK(timings.decode_rate() > 0);
        CHECK(done.at(id).usage.completion_tokens == 6);
    }
    // The second request waited until the first was done.
    CHECK(done.at(2).timings.queued_seconds >
          done.at(1).timings.first_token_seconds - done.at(1).timings.queued_seconds);
}

TEST_CASE("queue: a stop changes no answer, and end_all() reports one Done for each") {
    ToyRig rig({.context = 64, .batch = 16, .sequences = 3});
    CompletionQueue queue(rig.executor, toy_letters(), {.parallel = 2});
    Request request{.input = Tokens{{1, 2, 3}}, .limits = {.ignore_end = true}};
    for (int i = 0; i < 3; ++i) queue.submit(request);
    REQUIRE(queue.step());
    REQUIRE(queue.step());
    StopRequest stop;
    stop.request(StopRequest::Reason::Interrupt);
    CHECK_FALSE(queue.step(&stop));
    CHECK(queue.events().empty());
    CHECK(queue.unfinished() == 3);
    queue.end_all(FinishReason::Interrupt);
    AllAnswers all;
    gather(queue, all);
    CHECK(queue.unfinished() == 0);
    REQUIRE(all.size() == 3);
    for (const auto &[key, answer] : all) {
        CHECK(answer.done.reason == FinishReason::Interrupt);
        CHECK(answer.done.tokens.size() == (key.first == 3 ? 0 : 2));
    }
}
