#include "engine/measure/teacher_forcing.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "engine/decode/executor.h"
#include "engine/decode/next_token.h"
#include "engine/decode/sampler.h"
#include "engine/decode/single_sequence.h"
#include "tests/support/toy_backend.h"

using namespace runnel::decode;
using namespace runnel::measure;
using namespace runnel::testing;

TEST_CASE("teacher forcing: the text is decoded for any batching, then the logits are the model's own") {
    constexpr int32_t kVocab = 50;
    const auto text = std::make_shared<TeacherForcing>();
    Executor executor(forced(std::make_unique<ToyBackend>(), text), toy_program(kVocab), {.context = 300});
    Sampler sampler({.temperature = 0, .logit_bias = {}}, kVocab);
    std::vector<TokenId> said = {3, 1, 4};
    for (int i = 0; i < 60; ++i) text->tokens.push_back(i < 3 ? said[static_cast<size_t>(i)] : i % 7);

    SingleSequence session(executor);
    REQUIRE(session.feed(said));
    while (said.size() < text->tokens.size()) {
        said.push_back(sampler.sample(session.logits(), session.tokens()));
        REQUIRE(session.feed(std::vector<TokenId>{said.back()}));
    }
    CHECK(said == text->tokens);
    // Past its end the logits are the model's own.
    for (int32_t id = 0; id < kVocab; ++id)
        REQUIRE(session.logits()[static_cast<size_t>(id)] == toy_logit(hash_tokens(said), id));

    // Several tokens in one pass, one of them wrong: the forced token depends on the position only.
    session.truncate(10);
    const std::vector<TokenId> drafts = {text->tokens[10], 49, text->tokens[12]};
    std::vector<float> logits;
    auto cache = executor.fork(session.sequence().cache());
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

TEST_CASE("teacher forcing: candidates of a selecting device agree with full rows") {
    constexpr int32_t kVocab = 50;
    const auto text = std::make_shared<TeacherForcing>();
    for (int i = 0; i < 12; ++i) text->tokens.push_back(i == 7 ? kVocab : (i * 11 + 4) % kVocab);
    const auto executor = [&](int32_t selects) {
        auto device = std::make_unique<ToyBackend>();
        device->selects = selects;
        return Executor(forced(std::move(device), text), toy_program(kVocab), {.context = 64});
    };
    Executor whole = executor(0), selecting = executor(5);
    Sampler sampler({.temperature = 2, .top_k = 5, .top_p = 1, .min_p = 0, .logit_bias = {}}, kVocab);
    SingleSequence a(whole), b(selecting);
    const std::vector<TokenId> tokens = {9, 8, 7, 3, 3, 1, 2, 2, 4, 6, 1, 5, 0, 7};
    for (SingleSequence *session : {&a, &b}) {
        prepare_next(session->entry(), sampler);
        session->entry().append(tokens, static_cast<int32_t>(tokens.size()));
        REQUIRE(session->compute());
    }
    REQUIRE(b.entry().rows().whole().empty());
    for (size_t row = 0; row < tokens.size(); ++row) {
        CAPTURE(row);
        const std::span<const float> expected = a.entry().rows()[row].whole();
        std::vector<float> memory;
        CHECK(std::ranges::equal(b.entry().rows()[row].whole_or_read(memory), expected));
        const float top = *std::ranges::max_element(expected);
        double sum = 0;
        for (const float l : expected) sum += std::exp(double{l} - double{top});
        CHECK(double{b.entry().rows()[row].sum()} == doctest::Approx(sum));
        const Distribution d = sampler.distribution(expected, {});
        const Distribution *found = sampler.distribution(b.entry().rows()[row].largest(), {});
        REQUIRE(found);
        REQUIRE(found->candidates.size() == d.candidates.size());
        for (size_t i = 0; i < d.candidates.size(); ++i) {
            CHECK(found->candidates[i].id == d.candidates[i].id);
            CHECK(found->candidates[i].logit == d.candidates[i].logit);
        }
    }
}
