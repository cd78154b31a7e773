#include "engine/decode/speculation/forced_text.h"

#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "engine/decode/executor.h"
#include "engine/decode/sampler.h"
#include "engine/decode/session.h"
#include "tests/support/toy_backend.h"

using namespace runnel::decode;
using namespace runnel::testing;

TEST_CASE("forced text: the model says it, however its tokens are computed, and then goes its own way") {
    constexpr int32_t kVocab = 50;
    const auto text = std::make_shared<ForcedText>();
    Executor executor(forced(std::make_unique<ToyBackend>(), text), toy_program(kVocab), {.context = 300});
    Sampler sampler({.temperature = 0, .logit_bias = {}}, kVocab);
    std::vector<TokenId> said = {3, 1, 4};
    for (int i = 0; i < 60; ++i) text->tokens.push_back(i < 3 ? said[static_cast<size_t>(i)] : i % 7);

    Session session(executor);
    REQUIRE(session.feed(said));
    while (said.size() < text->tokens.size()) {
        said.push_back(sampler.sample(session.logits(), session.tokens()));
        REQUIRE(session.feed(std::vector<TokenId>{said.back()}));
    }
    CHECK(said == text->tokens);
    // Behind its end the logits are the model's.
    for (int32_t id = 0; id < kVocab; ++id)
        REQUIRE(session.logits()[static_cast<size_t>(id)] == toy_logit(hash_tokens(said), id));

    // Several tokens in one pass, wrong ones among them: rows go by positions.
    session.truncate(10);
    const std::vector<TokenId> drafts = {text->tokens[10], 49, text->tokens[12]};
    std::vector<float> logits;
    auto cache = executor.fork(session.cache());
    const StepInput input{&cache, drafts, 3};
    REQUIRE(executor.step({&input, 1}, logits));
    for (size_t row = 0; row < 3; ++row)
        CHECK(sampler.sample(std::span(logits).subspan(row * kVocab, kVocab), said) ==
              text->tokens[11 + row]);

    text->tokens.clear();
    session.truncate(5);
    REQUIRE(session.feed(std::vector<TokenId>{8}));
    std::vector<int32_t> prefix(session.tokens().begin(), session.tokens().end());
    CHECK(session.logits()[7] == toy_logit(hash_tokens(prefix), 7));
}
