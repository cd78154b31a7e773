// What the tests of drafters share that use the model's hidden states: drafts of a StateDrafter, and answers with it.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/decode/single_sequence.h"
#include "engine/decode/speculation/speculator.h"
#include "engine/decode/speculation/state_draft.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/support/answers.h"

namespace runnel::testing {

inline constexpr int32_t kRigContext = 160, kRigVocab = 260;

// Where a model and its drafter run. Gpu: the emulated one. Several: CPUs with a part of the layers each.
enum class On { Cpu, Gpu, Several };

inline std::unique_ptr<kernels::Backend> backend_on(On device, int threads = 1) {
    if (device == On::Gpu) return kernels::cuda::make_cuda_backend(0);
    return kernels::cpu::make_cpu_backend(threads);
}

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

inline decode::Draft draft_of(decode::StateDrafter &block, decode::Sampler &sampler, const Asked &asked) {
    decode::StateDraft source(block, false);
    source.follow(&asked.sequence->sequence().cache(), nullptr);
    return source.draft(asked.text(), asked.most, 0, sampler);
}

// In common passes.
inline std::vector<decode::Draft> drafts_of(decode::StateDrafter &block, decode::Sampler &sampler,
                                            std::span<const Asked> asked) {
    std::vector<decode::StateDraft> sources(asked.size(), decode::StateDraft(block, false));
    std::vector<decode::PendingDraft *> pending;
    for (size_t i = 0; i < asked.size(); ++i) {
        sources[i].follow(&asked[i].sequence->sequence().cache(), nullptr);
        pending.push_back(sources[i].begin(asked[i].text(), asked[i].most, 0, sampler));
        REQUIRE(pending.back());
    }
    decode::draft_together(pending, nullptr);
    std::vector<decode::Draft> drafts;
    for (decode::StateDraft &source : sources) drafts.push_back(source.finish());
    return drafts;
}

// `block` must outlive the speculators.
inline decode::MakeSpeculator speculators_of(decode::StateDrafter &block, int32_t branches,
                                             std::shared_ptr<decode::SharedCosts> costs = nullptr) {
    return [&block, branches, costs] {
        std::vector<std::unique_ptr<decode::DraftSource>> sources;
        sources.push_back(std::make_unique<decode::StateDraft>(block, false));
        return std::make_unique<decode::Speculator>(
            std::move(sources), decode::SpeculationOptions{.length = {.most = 5, .branches = branches}},
            costs);
    };
}

// Rig: has an executor, and draft() and draft_all() of its sequences.
//
// `rig`, which reads a text in random chunks with roll-backs, forks and a shared prefix between them, drafts what `whole`
// drafts, which reads it at once. drafts: how many tokens, of 6 asked for.
template <class Rig>
void check_changed_sequences(Rig &whole, Rig &rig, uint32_t seed, size_t drafts) {
    using decode::SingleSequence;
    const std::vector<decode::TokenId> text = text_of(100, seed);
    const auto check = [&](const SingleSequence &sequence) {
        const size_t length = sequence.tokens().size();
        CAPTURE(length);
        SingleSequence at_once(whole.executor);
        REQUIRE(at_once.feed(std::span(text).first(length)));
        const decode::Draft a = rig.draft(sequence, text[length], 6),
                            b = whole.draft(at_once, text[length], 6);
        CHECK(a.tokens == b.tokens);
        CHECK(a.probabilities == b.probabilities);
        CHECK(a.tokens.size() == drafts);
    };
    std::mt19937 rng(seed);
    SingleSequence parts(rig.executor);
    while (parts.tokens().size() < 90) {
        const size_t at = parts.tokens().size(),
                     count = at < 60 && rng() % 2 ? 32 - at % 32  // to the end of a cache block
                                                  : 1 + rng() % std::min<size_t>(90 - at, 11);
        REQUIRE(parts.feed(std::vector<decode::TokenId>(1 + rng() % 4, 99)));  // rejected drafts
        if (rng() % 2) rig.draft(parts, 98, 4);
        parts.truncate(at);
        REQUIRE(parts.feed(std::span(text).subspan(at, count)));
        if (rng() % 2) check(parts);
    }
    check(parts);
    for (const size_t at : {size_t{50}, size_t{64}, size_t{32}}) {
        CAPTURE(at);
        SingleSequence fork(parts.sequence().fork());
        fork.truncate(at);
        REQUIRE(fork.feed(text_of(7, 77)));
        rig.draft(fork, 3, 5);
        check(parts);
        fork.truncate(at);
        REQUIRE(fork.compute());
        REQUIRE(fork.feed(std::span(text).subspan(at, 10)));
        check(fork);
        check(parts);
    }
    SingleSequence shared(rig.executor);
    const size_t known = shared.reuse(text);
    REQUIRE(shared.feed(std::span(text).subspan(known, 95 - known)));
    check(shared);
}

// Five sequences that begin with `text` go on: `rig` drafts for them in common passes what `other` drafts alone, at most
// `most` tokens.
template <class Rig>
void check_common_passes(Rig &rig, Rig &other, const std::vector<decode::TokenId> &text, uint32_t seed,
                         uint32_t most) {
    using decode::SingleSequence;
    std::mt19937 rng(seed);
    SingleSequence first(rig.executor), first_alone(other.executor);
    REQUIRE(first.feed(text));
    REQUIRE(first_alone.feed(text));
    std::vector<std::unique_ptr<SingleSequence>> together, alone;
    for (size_t i = 0; i < 5; ++i) {
        together.push_back(std::make_unique<SingleSequence>(first.sequence().fork()));
        alone.push_back(std::make_unique<SingleSequence>(first_alone.sequence().fork()));
    }
    for (int round = 0; round < 4; ++round) {
        CAPTURE(round);
        std::vector<Asked> asked;
        std::vector<decode::Draft> expected;
        for (size_t i = 0; i < together.size(); ++i) {
            if (rng() % 4 == 0) continue;  // this sequence catches up later
            if (rng() % 2) {
                // Some of the sequences go on in the same way.
                const std::vector<decode::TokenId> more =
                    text_of(1 + rng() % 6, seed * 100 + static_cast<uint32_t>(i % 3));
                REQUIRE(together[i]->feed(more));
                REQUIRE(alone[i]->feed(more));
            }
            const auto last = static_cast<decode::TokenId>(rng() % kRigVocab);
            asked.push_back({together[i].get(), last, static_cast<int32_t>(1 + rng() % most)});
            expected.push_back(other.draft(*alone[i], last, asked.back().most));
        }
        const std::vector<decode::Draft> drafts = rig.draft_all(asked);
        REQUIRE(drafts.size() == expected.size());
        for (size_t i = 0; i < drafts.size(); ++i) {
            CHECK(drafts[i].tokens == expected[i].tokens);
            CHECK(drafts[i].probabilities == expected[i].probabilities);
            CHECK(drafts[i].tokens.size() == static_cast<size_t>(asked[i].most));
        }
    }
}

// A drafter that needs a state makes no draft for an empty sequence, for one that is not cached, and beyond the context.
template <class Rig>
void check_no_drafts(Rig &rig) {
    decode::SingleSequence sequence(rig.executor);
    CHECK(rig.draft(sequence, 5, 8).tokens.empty());
    REQUIRE(sequence.feed(text_of(1, 1)));
    CHECK(rig.draft(sequence, 5, 8).tokens.size() == 8);
    REQUIRE(sequence.feed(text_of(kRigContext - 4, 1)));
    CHECK(rig.draft(sequence, 5, 8).tokens.size() == 2);
    REQUIRE(sequence.feed(text_of(2, 1)));
    CHECK(rig.draft(sequence, 5, 8).tokens.empty());
    sequence.truncate(10);
    sequence.entry().evict();
    CHECK(rig.draft(sequence, 5, 8).tokens.empty());
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
