// Drafts of DFlash drafters, on real backends.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "engine/decode/hidden_states.h"
#include "engine/decode/single_sequence.h"
#include "engine/decode/speculation/dflash_draft.h"
#include "engine/decode/speculation/speculator.h"
#include "engine/model/dflash.h"
#include "engine/model/draft_block.h"
#include "engine/model/model.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/support/dflash_pair.h"
#include "tests/support/draft_rig.h"

using namespace runnel;
using namespace runnel::completion;
using namespace runnel::decode;
using namespace runnel::testing;

namespace {

constexpr int32_t kContext = kRigContext;
static_assert(kDFlashVocab == kRigVocab);

// A model and its drafter on a device.
struct Rig {
    explicit Rig(DFlashPair &pair, int threads = 1, int32_t batch = 48, On device = On::Cpu)
        : model(model::build(pair.target())),
          head(model::add_head(model, pair.target(), pair.file())),
          executor(keep_hidden_states(backend_on(device, threads), states, model::state_of(head.program)),
                   model.program, {.context = kContext, .batch = batch, .sequences = 6}),
          drafter([=] { return backend_on(device, threads); }, head, executor, states, 3),
          sampler(sampling_of(0), static_cast<int32_t>(kDFlashVocab)) {}

    Draft draft(const SingleSequence &sequence, TokenId last, int32_t most) {
        return draft_of(drafter, sampler, {&sequence, last, most});
    }
    std::vector<Draft> draft_all(std::span<const Asked> asked) { return drafts_of(drafter, sampler, asked); }
    MakeSpeculator speculators(int32_t branches, std::shared_ptr<SharedCosts> costs = nullptr) {
        return speculators_of(drafter, branches, std::move(costs));
    }

    std::shared_ptr<HiddenStates> states = std::make_shared<HiddenStates>(HiddenStates::Pairs::Alone);
    model::Model model;
    model::DraftHead head;
    Executor executor;
    DFlashDraft drafter;
    Sampler sampler;
};

// The logits of the block's masks after `last`, which follows the sequence.
std::vector<std::vector<float>> logits_of(Rig &rig, const SingleSequence &sequence, TokenId last,
                                          int32_t masks) {
    const cache::SequenceCache *cache = &sequence.sequence().cache();
    REQUIRE(rig.drafter.begin({&cache, 1}, masks, nullptr));
    std::vector<std::vector<float>> all;
    for (int32_t i = 0; i < masks; ++i) {
        const StateDrafter::Next next{0, last};
        const std::span<const float> row = rig.drafter.step({&next, 1});
        REQUIRE(row.size() == static_cast<size_t>(kDFlashVocab));
        all.emplace_back(row.begin(), row.end());
    }
    return all;
}

// Forms of the architecture, each with a name.
struct Form {
    const char *name, *target;
    DFlashShape shape;
};
const std::vector<Form> &forms() {
    static const std::vector<Form> all = {{"plain", "llama", {.block = 5}},
                                          {"sandwich",
                                           "llama",
                                           {.layers = 3,
                                            .rows = 128,
                                            .taps = {0, 2, 3},
                                            .block = 8,
                                            .window = 20,
                                            .values = false,
                                            .post_norms = true,
                                            .scales = true,
                                            .sinks = true}},
                                          {"causal",
                                           "qwen35",
                                           {.layers = 1,
                                            .heads = 6,
                                            .kv_heads = 3,
                                            .head_dim = 16,
                                            .block = 4,
                                            .mask = 7,
                                            .own_embedding = true,
                                            .own_output = true,
                                            .causal = true,
                                            .gelu = true,
                                            .transforms = true}}};
    return all;
}

}  // namespace

TEST_CASE("dflash draft: the logits are llama.cpp's") {
    struct Peer {
        const char *form;
        std::vector<std::vector<double>> logits;  // the first ones, of each mask
    };
    const Peer peers[] = {
#include "tests/engine/decode/speculation/peer_dflash.inc"
    };
    const char *folder = std::getenv("RUNNEL_DRAFT_MODELS");
    size_t found = 0;
    for (const auto &[name, target, shape] : forms()) {
        CAPTURE(std::string(name));
        DFlashPair pair(shape, target);
        Rig rig(pair);
        if (folder) {  // to give these files to llama.cpp
            const std::string at = std::string(folder) + "/" + name;
            std::filesystem::copy_file(pair.target_path(), at + ".gguf");
            std::filesystem::copy_file(pair.path(), at + "-head.gguf");
            continue;
        }
        std::vector<TokenId> text(40);
        std::iota(text.begin(), text.end(), 0);
        SingleSequence sequence(rig.executor);
        REQUIRE(sequence.feed(text));
        const auto logits = logits_of(rig, sequence, 40, static_cast<int32_t>(shape.block) - 1);
        for (const Peer &peer : peers) {
            if (peer.form != std::string(name)) continue;
            ++found;
            REQUIRE(peer.logits.size() == logits.size());
            for (size_t k = 0; k < logits.size(); ++k)
                for (size_t i = 0; i < peer.logits[k].size(); ++i) {
                    CAPTURE(k);
                    CAPTURE(i);
                    // -infinity there, and a large number here, for a token that is never drafted.
                    const double expected = std::max(peer.logits[k][i], -1e30);
                    // (Both keep keys and values in F16; runnel keeps the state so, too.)
                    CHECK(std::abs(logits[k][i] - expected) <= 0.02 + 1e-6 * std::abs(expected));
                }
        }
    }
    if (!folder) CHECK(found == forms().size());
}

TEST_CASE("dflash draft: drafts are the same after any chunks, roll-backs, forks and shared prefixes") {
    for (uint32_t seed = 0; seed < 4; ++seed) {
        CAPTURE(seed);
        Form form = forms()[seed % forms().size()];
        form.shape.block = 7, form.shape.seed = seed + 1;
        DFlashPair pair(form.shape, form.target);
        Rig whole(pair, 2, 128), rig(pair, 1, 16 + static_cast<int32_t>(seed) * 5);
        check_changed_sequences(whole, rig, seed, 6);
    }
}

TEST_CASE("dflash draft: drafts made together are those made alone, whatever the sequences share") {
    for (uint32_t seed = 0; seed < 5; ++seed) {
        CAPTURE(seed);
        const On device = seed < 4 ? On::Cpu : On::Gpu;
        DFlashPair pair({.rows = seed % 2 == 0 ? 0 : 150,
                         .block = 8,
                         .window = seed % 3 == 0 ? 16 : 0,
                         .seed = seed + 1});
        std::mt19937 rng(seed);
        Rig rig(pair, 2, 12 + static_cast<int32_t>(rng() % 30), device), other(pair, 1, 48, device);
        check_common_passes(rig, other, text_of(seed % 4 < 2 ? 64 : 40 + rng() % 40, seed), seed, 7);
    }
}

TEST_CASE("dflash draft: the emulated GPU gives the logits of the CPU") {
    for (const auto &[name, target, shape] : forms()) {
        CAPTURE(std::string(name));
        DFlashPair pair(shape, target);
        Rig cpu(pair), gpu(pair, 1, 48, On::Gpu);
        const std::vector<TokenId> text = text_of(70, 8);
        SingleSequence a(cpu.executor), b(gpu.executor);
        REQUIRE(a.feed(text));
        REQUIRE(b.feed(text));
        const auto x = logits_of(cpu, a, 5, 3), y = logits_of(gpu, b, 5, 3);
        for (size_t k = 0; k < x.size(); ++k)
            for (size_t i = 0; i < x[k].size(); ++i)
                CHECK(std::abs(x[k][i] - y[k][i]) <= 0.05 + 1e-6 * std::abs(x[k][i]));
    }
}

TEST_CASE("dflash draft: a guess depends on the masks after it, unless attention is causal") {
    for (const bool causal : {false, true}) {
        CAPTURE(causal);
        DFlashPair shorter({.block = 4, .causal = causal}), longer({.block = 12, .causal = causal});
        Rig a(shorter), b(longer);
        const std::vector<TokenId> text = text_of(50, 6);
        SingleSequence x(a.executor), y(b.executor);
        REQUIRE(x.feed(text));
        REQUIRE(y.feed(text));
        CHECK((logits_of(a, x, 9, 3) == logits_of(b, y, 9, 3)) == causal);
    }
}

TEST_CASE("dflash draft: the text is the same as without drafts, alone and in a batch") {
    for (const char *arch : {"llama", "qwen35moe", "gemma2"})
        for (const On device : {On::Cpu, On::Gpu})
            for (const float temperature : {0.0f, 0.9f}) {
                CAPTURE(std::string(arch));
                CAPTURE(static_cast<int>(device));
                CAPTURE(temperature);
                // The emulator is slow.
                if (device == On::Gpu && (temperature > 0 || std::string(arch) != "llama")) continue;
                DFlashPair pair({.rows = temperature > 0 ? 200 : 0, .block = 6}, arch);
                const size_t prompts = device == On::Cpu ? 5 : 1;
                const int32_t most = device == On::Cpu ? 40 : 12;
                Executor plain(backend_on(device), model::build(pair.target()).program,
                               {.context = kContext, .batch = 48, .sequences = 6});
                const Texts without = answers(plain, {}, prompts, temperature, most, 1);
                Rig rig(pair, 1, 48, device);
                const Texts with = answers(rig.executor, rig.speculators(4), prompts, temperature, most, 1);
                CHECK(with.tokens == without.tokens);
                CHECK(with.counts.failure == "");
                CHECK(with.counts.drafted > 0);
                CHECK(with.counts.sources == "dflash");
            }
}

TEST_CASE(
    "dflash draft: no draft for an empty sequence, one that is not cached, or at the end of the context") {
    DFlashPair pair({.block = 32});
    Rig rig(pair);
    check_no_drafts(rig);
    SingleSequence sequence(rig.executor);
    REQUIRE(sequence.feed(text_of(1, 1)));
    CHECK(rig.draft(sequence, 5, 99).tokens.size() == 31);
}
