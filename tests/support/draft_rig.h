// What the tests of draft blocks and of EAGLE-3 heads share: drafts of a DraftBlock, and answers with it.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/decode/single_sequence.h"
#include "engine/decode/speculation/block_draft.h"
#include "engine/decode/speculation/speculator.h"
#include "tests/support/answers.h"

namespace runnel::testing {

inline constexpr int32_t kRigContext = 160, kRigVocab = 260;

inline decode::SamplingOptions sampling_of(float temperature, uint64_t seed = 5) {
    decode::SamplingOptions how;
    how.temperature = temperature;
    how.top_k = 0, how.top_p = 1, how.min_p = 0;
    how.seed = seed;
    return how;
}

inline std::vector<decode::TokenId> text_of(size_t length, uint32_t seed) {
    std::mt19937 rng(seed);
    std::vector<decode::TokenId> text(length);
    for (decode::TokenId &id : text) id = static_cast<decode::TokenId>(rng() % kRigVocab);
    return text;
}

// A sequence that has all tokens of the text but `last`, and how many tokens to draft at most.
struct Asked {
    const decode::SingleSequence *sequence;
    decode::TokenId last;
    int32_t most;

    std::vector<decode::TokenId> text() const {
        std::vector<decode::TokenId> all = sequence->tokens();
        all.push_back(last);
        return all;
    }
};

inline decode::Draft draft_of(decode::DraftBlock &block, decode::Sampler &sampler, const Asked &asked) {
    decode::BlockDraft source(block, false);
    source.follow(&asked.sequence->sequence().cache(), nullptr);
    return source.draft(asked.text(), asked.most, 0, sampler);
}

// In common passes.
inline std::vector<decode::Draft> drafts_of(decode::DraftBlock &block, decode::Sampler &sampler,
                                            std::span<const Asked> asked) {
    std::vector<decode::BlockDraft> sources(asked.size(), decode::BlockDraft(block, false));
    std::vector<decode::PendingDraft *> pending;
    for (size_t i = 0; i < asked.size(); ++i) {
        sources[i].follow(&asked[i].sequence->sequence().cache(), nullptr);
        pending.push_back(sources[i].begin(asked[i].text(), asked[i].most, 0, sampler));
        REQUIRE(pending.back());
    }
    decode::draft_together(pending, nullptr);
    std::vector<decode::Draft> drafts;
    for (decode::BlockDraft &source : sources) drafts.push_back(source.finish());
    return drafts;
}

// `block` must outlive the speculators.
inline decode::MakeSpeculator speculators_of(decode::DraftBlock &block, int32_t branches,
                                             std::shared_ptr<decode::SharedCosts> costs = nullptr) {
    return [&block, branches, costs] {
        std::vector<std::unique_ptr<decode::DraftSource>> sources;
        sources.push_back(std::make_unique<decode::BlockDraft>(block, false));
        return std::make_unique<decode::Speculator>(
            std::move(sources), decode::SpeculationOptions{.length = {.most = 5, .branches = branches}},
            costs);
    };
}

struct Texts {
    std::vector<std::vector<decode::TokenId>> tokens;
    decode::SpeculationCounts counts;
};

// Answers to several prompts, the first of `shortest` tokens, in one batch.
inline Texts answers(decode::Executor &executor, const decode::MakeSpeculator &drafts, size_t prompts,
                     float temperature, int32_t most = 40, size_t shortest = 3) {
    const completion::Vocabulary vocabulary{[](decode::TokenId id) { return std::to_string(id) + " "; },
                                            [](decode::TokenId) { return false; }};
    completion::CompletionQueue queue(executor, vocabulary, {.parallel = 3, .drafts = drafts});
    for (size_t i = 0; i < prompts; ++i)
        queue.submit({.input = completion::Tokens{text_of(shortest + 17 * i, static_cast<uint32_t>(i))},
                      .sampling = sampling_of(temperature, i),
                      .limits = {.max_tokens = most}});
    Texts texts;
    for (const auto &[id, answer] : answer_all(queue)) texts.tokens.push_back(answer.done.tokens);
    texts.counts = queue.speculation();
    return texts;
}

}  // namespace runnel::testing
