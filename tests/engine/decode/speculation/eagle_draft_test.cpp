// Drafts of EAGLE-3 heads, on real backends.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/decode/hidden_states.h"
#include "engine/decode/single_sequence.h"
#include "engine/decode/speculation/draft_block.h"
#include "engine/decode/speculation/speculator.h"
#include "engine/model/draft_block.h"
#include "engine/model/eagle3.h"
#include "engine/model/first_layers.h"
#include "engine/model/layers.h"
#include "engine/model/model.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/split_backend.h"
#include "tests/support/draft_rig.h"
#include "tests/support/eagle_pair.h"

using namespace runnel;
using namespace runnel::completion;
using namespace runnel::decode;
using namespace runnel::testing;

namespace {

constexpr int32_t kContext = kRigContext;
constexpr int64_t kVocab = kEagleVocab, kWidth = kEagleWidth;
static_assert(kVocab == kRigVocab);

std::unique_ptr<kernels::Backend> target_on(On device, int threads) {
    if (device != On::Several) return backend_on(device, threads);
    std::vector<std::unique_ptr<kernels::Backend>> backends;
    for (int i = 0; i < 3; ++i) backends.push_back(kernels::cpu::make_cpu_backend(threads));
    return kernels::make_split_backend(std::move(backends), [](const kernels::Program &program) {
        std::vector<uint8_t> where;
        for (const int32_t layer : model::layers_of(program).of_step)
            where.push_back(static_cast<uint8_t>(std::clamp(layer / 2, 0, 2)));
        return where;
    });
}

// A model and its head on a device.
struct Rig {
    explicit Rig(EaglePair &pair, int threads = 1, int32_t batch = 48, On device = On::Cpu)
        : model(model::build(pair.target())),
          head(model::add_eagle3(model, pair.target(), pair.file())),
          executor(keep_hidden_states(target_on(device, threads), states, model::state_of(head.program)),
                   model.program, {.context = kContext, .batch = batch, .sequences = 6}),
          block([=] { return backend_on(device, threads); }, {&head.program, 1}, executor, states, 3, &head),
          sampler(sampling_of(0), static_cast<int32_t>(kVocab)) {}

    Draft draft(const SingleSequence &sequence, TokenId last, int32_t most) {
        return draft_of(block, sampler, {&sequence, last, most});
    }
    std::vector<Draft> draft_all(std::span<const Asked> asked) { return drafts_of(block, sampler, asked); }
    MakeSpeculator speculators(int32_t branches, std::shared_ptr<SharedCosts> costs = nullptr) {
        return speculators_of(block, branches, std::move(costs));
    }

    std::shared_ptr<HiddenStates> states = std::make_shared<HiddenStates>(HiddenStates::Pairs::WithNext);
    model::Model model;
    model::DraftHead head;
    Executor executor;
    DraftBlock block;
    Sampler sampler;
};

}  // namespace

TEST_CASE("eagle draft: the head gets the input of the model's layer at the token before") {
    for (const int32_t layer : {0, 1, 3, 4})
        for (const On device : {On::Cpu, On::Gpu}) {
            CAPTURE(layer);
            CAPTURE(static_cast<int>(device));
            if (device == On::Gpu && layer != 3) continue;  // the emulator is slow
            // A head that repeats this state predicts what the model's first layers predict at the token before.
            EaglePair pair({.layers = {layer, 1, 2}});
            pair.head.repeat_tap();
            pair.head.at("output_norm.weight") = pair.of_target("output_norm.weight");
            if (layer == 4) pair.head.fill("output_norm.weight", 1);  // this state has had the norm
            const model::Model model = model::build(pair.target());
            const std::vector<TokenId> text = text_of(40, 1);
            kernels::Program first = model.program;
            if (layer == 0)
                first.steps.erase(first.steps.begin() + 1, first.steps.end() - 2);
            else if (layer < 4)
                first = model::first_layers(model.program, layer);
            const std::vector<float> logits = kernels::reference::logits_of(first, text);
            Rig rig(pair, 1, 48, device);
            for (const size_t length :
                 {size_t{1}, size_t{2}, size_t{31}, size_t{32}, size_t{33}, text.size()}) {
                CAPTURE(length);
                SingleSequence sequence(rig.executor);
                REQUIRE(sequence.feed(std::span(text).first(length)));
                const Draft draft = rig.draft(sequence, 7, 3);
                const auto row = std::span(logits).subspan((length - 1) * kVocab, kVocab);
                REQUIRE(draft.tokens.size() == 3);
                CHECK(draft.tokens[0] == std::ranges::max_element(row) - row.begin());
            }
        }
}

TEST_CASE("eagle draft: each token is that of one pass of the head over the whole text") {
    for (const size_t length : {size_t{1}, size_t{32}, size_t{33}, size_t{64}, size_t{75}})
        for (const int64_t rows : {0, 200}) {
            CAPTURE(length);
            CAPTURE(rows);
            EaglePair pair({.rows = rows});
            Rig rig(pair, 1, 20);
            SingleSequence sequence(rig.executor);
            std::vector<TokenId> text = text_of(length, 3);
            REQUIRE(sequence.feed(text));
            text.push_back(9);
            const Draft draft = rig.draft(sequence, text.back(), 4);
            REQUIRE(draft.tokens.size() == 4);
            const cache::SequenceCache &cache = sequence.sequence().cache();
            std::vector<std::vector<float>> g;
            for (int32_t cell = 0; cell < cache.length(); ++cell) {
                g.emplace_back(kWidth);
                rig.states->get(cache.table(rig.states->group()), cell, g.back());
            }
            for (size_t k = 0; k < 4; ++k) {
                CAPTURE(k);
                const auto count = static_cast<int32_t>(g.size());
                const auto backend = kernels::cpu::make_cpu_backend(1);
                backend->load(rig.head.program, {.blocks = {4}, .context = kContext}, count);
                const kernels::Program::Part &part = rig.head.program.parts.front();
                const kernels::SlotRows in = backend->exchange(part.in.front());
                for (size_t i = 0; i < g.size(); ++i)
                    std::ranges::copy(g[i], in.data + static_cast<int64_t>(i) * in.stride);
                std::vector<int32_t> positions(g.size());
                std::iota(positions.begin(), positions.end(), 0);
                const kernels::BlockId table[] = {0, 1, 2, 3};
                const kernels::SequenceSpan span{0, count, 0, {table}};
                std::vector<float> all(g.size() * static_cast<size_t>(rig.head.program.vocab));
                // The token behind each state.
                REQUIRE(
                    backend->execute({std::span(text).subspan(1), positions, {&span, 1}, positions}, all));
                const auto logits = std::span(all).last(static_cast<size_t>(rig.head.program.vocab));
                const auto best = static_cast<size_t>(std::ranges::max_element(logits) - logits.begin());
                const TokenId token = rows > 0 ? rig.head.tokens.at(best) : static_cast<TokenId>(best);
                CHECK(draft.tokens[k] == token);
                const kernels::SlotRows y = backend->exchange(part.out.front());
                g.emplace_back(y.data + (count - 1) * y.stride, y.data + (count - 1) * y.stride + kWidth);
                text.push_back(token);
            }
        }
}

TEST_CASE("eagle draft: drafts are the same after any chunks, roll-backs, forks and shared prefixes") {
    for (const char *arch : {"llama", "qwen35"})
        for (uint32_t seed = 0; seed < 2; ++seed) {
            CAPTURE(arch);
            CAPTURE(seed);
            EaglePair pair({.seed = seed + 1}, arch);
            Rig whole(pair, 2, 128), rig(pair, 1, 16 + static_cast<int32_t>(seed) * 5);
            check_changed_sequences(whole, rig, seed, 6);
        }
}

TEST_CASE("eagle draft: drafts made together are those made alone, whatever the sequences share") {
    for (uint32_t seed = 0; seed < 5; ++seed) {
        CAPTURE(seed);
        const On device = seed < 4 ? On::Cpu : On::Gpu;
        EaglePair pair({.rows = seed % 2 == 0 ? 0 : 150, .seed = seed + 1});
        // In chunks of three. In every second case, the sequences differ from the first token of a cache block on.
        std::mt19937 rng(seed);
        Rig rig(pair, 2, 12 + static_cast<int32_t>(rng() % 30), device), other(pair, 1, 48, device);
        check_common_passes(rig, other, text_of(seed % 4 < 2 ? 64 : 40 + rng() % 40, seed), seed, 7);
    }
}

TEST_CASE("eagle draft: a target on several devices gives the drafts of one") {
    for (const char *arch : {"llama", "qwen35"}) {
        CAPTURE(arch);
        EaglePair pair({.layers = {1, 2, 4}}, arch);
        Rig one(pair), several(pair, 1, 48, On::Several);
        const std::vector<TokenId> text = text_of(50, 4);
        SingleSequence a(one.executor), b(several.executor);
        REQUIRE(a.feed(text));
        REQUIRE(b.feed(text));
        const Draft expected = one.draft(a, 6, 6), got = several.draft(b, 6, 6);
        CHECK(got.tokens == expected.tokens);
        CHECK(got.probabilities == expected.probabilities);
    }
}

TEST_CASE("eagle draft: the text is the same as without drafts, alone and in a batch") {
    for (const char *arch : {"llama", "qwen35moe", "gemma2"})
        for (const On device : {On::Cpu, On::Gpu})
            for (const float temperature : {0.0f, 0.9f}) {
                CAPTURE(arch);
                CAPTURE(static_cast<int>(device));
                CAPTURE(temperature);
                // The emulator is slow.
                if (device == On::Gpu && (temperature > 0 || std::string(arch) != "llama")) continue;
                EaglePair pair({.rows = temperature > 0 ? 200 : 0}, arch);
                const size_t prompts = device == On::Cpu ? 5 : 2;
                Executor plain(backend_on(device), model::build(pair.target()).program,
                               {.context = kContext, .batch = 48, .sequences = 6});
                const Texts without = answers(plain, {}, prompts, temperature, 40, 1);
                Rig rig(pair, 1, 48, device);
                const Texts with = answers(rig.executor, rig.speculators(4), prompts, temperature, 40, 1);
                CHECK(with.tokens == without.tokens);
                CHECK(with.counts.failure == "");
                CHECK(with.counts.drafted > 0);
                CHECK(with.counts.sources == "eagle3");
            }
}

TEST_CASE("eagle draft: the drafts are llama.cpp's") {
    struct Round {
        size_t known;  // tokens of the text, of which the target has computed all but the last
        std::vector<TokenId> drafts;
    };
    struct Peer {
        std::vector<TokenId> text;  // a prompt of 40 tokens, and the answer
        std::vector<Round> rounds;
    };
    const HeadShape shapes[] = {{},
                                {.rows = 128, .norm_before_residual = true, .divisors = true},
                                {.layers = {0, 1, 3}, .own_embedding = true, .norm_before_fc = true}};
    // Recorded from llama.cpp's debug output, of draft-eagle3 with 4 tokens at temperature 0.
    const Peer peers[] = {
#include "tests/engine/decode/speculation/peer_heads.inc"
    };
    size_t which = 0;
    for (const HeadShape &shape : shapes) {
        CAPTURE(which);
        EaglePair pair(shape);
        Rig rig(pair);
        if (const char *folder = std::getenv("RUNNEL_DRAFT_MODELS")) {  // to give these files to llama.cpp
            const std::filesystem::path at = folder + ("/" + std::to_string(which));
            std::filesystem::copy_file(pair.target_path(), at.string() + ".gguf");
            std::filesystem::copy_file(pair.head_path(), at.string() + "-head.gguf");
            ++which;
            continue;
        }
        const Peer &peer = peers[which++];
        SingleSequence sequence(rig.executor);
        CHECK(peer.rounds.size() > 8);
        for (const Round &round : peer.rounds) {
            CAPTURE(round.known);
            const auto text = std::span(peer.text).first(round.known);
            REQUIRE(sequence.feed(
                text.subspan(sequence.tokens().size(), text.size() - 1 - sequence.tokens().size())));
            CHECK(rig.draft(sequence, text.back(), static_cast<int32_t>(round.drafts.size())).tokens ==
                  round.drafts);
        }
    }
}

TEST_CASE("eagle draft: a head that knows the model's rule is always right") {
    for (const int64_t rows : {int64_t{0}, kVocab}) {
        CAPTURE(rows);
        EaglePair pair = EaglePair::ruled(rows);
        Rig rig(pair);
        const Texts texts = answers(rig.executor, rig.speculators(1), 3, 0);
        CHECK(texts.counts.drafted >= 90);
        CHECK(texts.counts.accepted == texts.counts.drafted);
    }
    // Half of the tokens cannot be drafted.
    EaglePair pair = EaglePair::ruled(kVocab / 2);
    Rig rig(pair);
    const Texts texts = answers(rig.executor, rig.speculators(1), 5, 0);
    CHECK(texts.counts.accepted > 0);
    CHECK(texts.counts.accepted < texts.counts.drafted);
    for (size_t i = 0; i < 3; ++i) {
        SingleSequence sequence(rig.executor);
        REQUIRE(sequence.feed(text_of(20, static_cast<uint32_t>(i))));
        for (const TokenId id : rig.draft(sequence, 3, 8).tokens)
            CHECK(std::ranges::find(pair.head.tokens, id) != pair.head.tokens.end());
    }
}

TEST_CASE("eagle draft: a head that is never right is seldom asked") {
    EaglePair pair = EaglePair::ruled(kVocab);
    std::ranges::rotate(pair.head.tokens, pair.head.tokens.begin() + 1);
    Rig rig(pair);
    const Texts texts = answers(rig.executor, rig.speculators(1, std::make_shared<SharedCosts>()), 1, 0, 140);
    const auto count = static_cast<int64_t>(texts.tokens.at(0).size());
    REQUIRE(count == 140);
    CHECK(texts.counts.accepted <= 2);
    CHECK(texts.counts.drafted <= 60 + count * 6 / 20);
}

TEST_CASE(
    "eagle draft: no draft for an empty sequence, one that is not cached, or at the end of the context") {
    EaglePair pair;
    Rig rig(pair);
    check_no_drafts(rig);
}
