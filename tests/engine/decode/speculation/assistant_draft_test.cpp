// Drafts of Gemma 4 assistants, on real backends.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/decode/hidden_states.h"
#include "engine/decode/single_sequence.h"
#include "engine/decode/speculation/assistant_draft.h"
#include "engine/decode/speculation/speculator.h"
#include "engine/model/assistant.h"
#include "engine/model/draft_block.h"
#include "engine/model/model.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/split_backend.h"
#include "tests/support/assistant_pair.h"
#include "tests/support/draft_rig.h"

using namespace runnel;
using namespace runnel::completion;
using namespace runnel::decode;
using namespace runnel::testing;

namespace {

constexpr int32_t kContext = kRigContext;
static_assert(kAssistantVocab == kRigVocab);

// A model and its assistant on a device.
struct Rig {
    explicit Rig(AssistantPair &pair, int threads = 1, int32_t batch = 48, On device = On::Cpu,
                 CacheTypes types = {})
        : model(model::build(pair.target())),
          head(model::add_head(model, pair.target(), pair.file())),
          executor(keep_hidden_states(backend_on(device, threads), states, model::state_of(head.program)),
                   model.program,
                   {.context = kContext, .batch = batch, .sequences = 6, .slack = 32, .types = types}),
          drafter(backend_on(device, threads), head, executor, states, 3),
          sampler(sampling_of(0), static_cast<int32_t>(kAssistantVocab)) {}

    Draft draft(const SingleSequence &sequence, TokenId last, int32_t most) {
        return draft_of(drafter, sampler, {&sequence, last, most});
    }
    std::vector<Draft> draft_all(std::span<const Asked> asked) { return drafts_of(drafter, sampler, asked); }
    MakeSpeculator speculators(int32_t branches, std::shared_ptr<SharedCosts> costs = nullptr) {
        return speculators_of(drafter, branches, std::move(costs));
    }

    std::shared_ptr<HiddenStates> states = std::make_shared<HiddenStates>();
    model::Model model;
    model::DraftHead head;
    Executor executor;
    AssistantDraft drafter;
    Sampler sampler;
};

// The logits of the assistant after each of `tokens`, the first of which follows the sequence.
std::vector<std::vector<float>> logits_of(Rig &rig, const SingleSequence &sequence,
                                          std::span<const TokenId> tokens) {
    const cache::SequenceCache *cache = &sequence.sequence().cache();
    REQUIRE(rig.drafter.begin({&cache, 1}, static_cast<int32_t>(tokens.size()), nullptr));
    std::vector<std::vector<float>> all;
    for (const TokenId token : tokens) {
        const StateDrafter::Next next{0, token};
        const std::span<const float> row = rig.drafter.step({&next, 1});
        REQUIRE(row.size() == static_cast<size_t>(kAssistantVocab));
        all.emplace_back(row.begin(), row.end());
    }
    return all;
}

constexpr const char *kTargets[] = {"gemma4", "gemma4-31b", "gemma4-26b"};

}  // namespace

TEST_CASE("assistant draft: the logits are llama.cpp's") {
    struct Peer {
        const char *target;
        std::vector<std::vector<double>> logits;  // the first ones, after each of the tokens 40, 41, 42
    };
    const Peer peers[] = {
#include "tests/engine/decode/speculation/peer_assistants.inc"
    };
    size_t found = 0;
    for (const char *target : kTargets) {
        CAPTURE(std::string(target));
        AssistantPair pair(target, {.wide_full = true});
        Rig rig(pair);
        if (const char *folder = std::getenv("RUNNEL_DRAFT_MODELS")) {  // to give these files to llama.cpp
            const std::string at = std::string(folder) + "/" + target;
            std::filesystem::copy_file(pair.target_path(), at + ".gguf");
            std::filesystem::copy_file(pair.path(), at + "-head.gguf");
            continue;
        }
        std::vector<TokenId> text(40);
        std::iota(text.begin(), text.end(), 0);
        SingleSequence sequence(rig.executor);
        REQUIRE(sequence.feed(text));
        const TokenId after[] = {40, 41, 42};
        const auto logits = logits_of(rig, sequence, after);
        for (const Peer &peer : peers) {
            if (peer.target != std::string(target)) continue;
            ++found;
            REQUIRE(peer.logits.size() == logits.size());
            for (size_t k = 0; k < logits.size(); ++k)
                for (size_t i = 0; i < peer.logits[k].size(); ++i) {
                    CAPTURE(k);
                    CAPTURE(i);
                    // (Both keep keys and values in F16; runnel keeps the state so, too.)
                    CHECK(std::abs(logits[k][i] - peer.logits[k][i]) < 0.02);
                }
        }
    }
    if (!std::getenv("RUNNEL_DRAFT_MODELS")) CHECK(found == std::size(kTargets));
}

TEST_CASE("assistant draft: the file's cap bounds the logits") {
    const std::vector<TokenId> text = text_of(20, 2);
    std::vector<std::vector<float>> rows;
    for (const float cap : {0.0f, 3.0f}) {
        AssistantPair pair("gemma4", {.softcap = cap});
        Rig rig(pair);
        SingleSequence sequence(rig.executor);
        REQUIRE(sequence.feed(text));
        const TokenId last = 7;
        rows.push_back(logits_of(rig, sequence, {&last, 1}).front());
    }
    for (size_t i = 0; i < rows[0].size(); ++i)
        CHECK(rows[1][i] == doctest::Approx(3 * std::tanh(rows[0][i] / 3)).epsilon(1e-4));
}

TEST_CASE("assistant draft: drafts are the same after any chunks, roll-backs, forks and shared prefixes") {
    for (const char *target : kTargets)
        for (uint32_t seed = 0; seed < 2; ++seed) {
            CAPTURE(std::string(target));
            CAPTURE(seed);
            AssistantPair pair(target, {.seed = seed + 1}, seed == 0 ? 24 : 70);
            Rig whole(pair, 2, 128), rig(pair, 1, 16 + static_cast<int32_t>(seed) * 5);
            check_changed_sequences(whole, rig, seed, 6);
        }
}

TEST_CASE("assistant draft: drafts made together are those made alone, whatever the sequences share") {
    for (uint32_t seed = 0; seed < 5; ++seed) {
        CAPTURE(seed);
        const On device = seed < 4 ? On::Cpu : On::Gpu;
        AssistantPair pair(kTargets[seed % 3], {.seed = seed + 1});
        std::mt19937 rng(seed);
        Rig rig(pair, 2, 12 + static_cast<int32_t>(rng() % 30), device), other(pair, 1, 48, device);
        check_common_passes(rig, other, text_of(seed % 4 < 2 ? 64 : 40 + rng() % 40, seed), seed, 7);
    }
}

TEST_CASE(
    "assistant draft: the emulated GPU gives the logits of the CPU, with every cache type that it has") {
    using kernels::CacheType;
    for (const CacheTypes types : {CacheTypes{}, CacheTypes{CacheType::Q8_0, CacheType::Q8_0}}) {
        AssistantPair pair("gemma4-31b");
        Rig cpu(pair, 1, 48, On::Cpu, types), gpu(pair, 1, 48, On::Gpu, types);
        const std::vector<TokenId> text = text_of(70, 8);
        SingleSequence a(cpu.executor), b(gpu.executor);
        REQUIRE(a.feed(text));
        REQUIRE(b.feed(text));
        const TokenId after[] = {5, 6};
        const auto x = logits_of(cpu, a, after), y = logits_of(gpu, b, after);
        // (Devices round the products with quantized keys and values differently.)
        const float allowed = types.k == CacheType::F16 ? 0.05f : 0.3f;
        for (size_t k = 0; k < x.size(); ++k)
            for (size_t i = 0; i < x[k].size(); ++i) CHECK(std::abs(x[k][i] - y[k][i]) < allowed);
    }
}

TEST_CASE("assistant draft: drafts read the cells of the model and change none of them") {
    for (const On device : {On::Cpu, On::Gpu}) {
        CAPTURE(static_cast<int>(device));
        AssistantPair pair("gemma4");
        Rig rig(pair, 1, 48, device);
        SingleSequence sequence(rig.executor);
        REQUIRE(sequence.feed(text_of(96, 2)));  // whole blocks
        const auto bytes = [&] {
            std::vector<std::byte> all;
            for (size_t group = 0; group < 2; ++group)
                for (const kernels::BlockId block : sequence.sequence().cache().table(group)) {
                    if (block < 0) continue;
                    std::vector<std::byte> one(rig.executor.block_bytes(group));
                    rig.executor.read_block(group, block, one);
                    all.insert(all.end(), one.begin(), one.end());
                }
            return all;
        };
        const std::vector<std::byte> before = bytes();
        const std::vector<TokenId> drafted = rig.draft(sequence, 9, 6).tokens;
        CHECK(drafted.size() == 6);
        CHECK(bytes() == before);
        // Other cells give other drafts: the last layers do read them.
        SingleSequence other(rig.executor);
        REQUIRE(other.feed(text_of(96, 3)));
        CHECK(rig.draft(other, 9, 6).tokens != drafted);
    }
}

TEST_CASE("assistant draft: the text is the same as without drafts, alone and in a batch") {
    for (const char *target : kTargets)
        for (const On device : {On::Cpu, On::Gpu})
            for (const float temperature : {0.0f, 0.9f}) {
                CAPTURE(std::string(target));
                CAPTURE(static_cast<int>(device));
                CAPTURE(temperature);
                // The emulator is slow.
                if (device == On::Gpu && (temperature > 0 || std::string(target) != "gemma4")) continue;
                AssistantPair pair(target);
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
                CHECK(with.counts.sources == "assistant");
            }
}

TEST_CASE(
    "assistant draft: no draft for an empty sequence, one that is not cached, or at the end of the context") {
    AssistantPair pair;
    Rig rig(pair);
    check_no_drafts(rig);
}

TEST_CASE("assistant draft: a cache on several devices is refused") {
    AssistantPair pair;
    model::Model model = model::build(pair.target());
    const model::DraftHead head = model::add_head(model, pair.target(), pair.file());
    std::vector<std::unique_ptr<kernels::Backend>> backends;
    for (int i = 0; i < 2; ++i) backends.push_back(kernels::cpu::make_cpu_backend(1));
    Executor executor(kernels::make_split_backend(std::move(backends),
                                                  [](const kernels::Program &program) {
                                                      std::vector<uint8_t> where(program.steps.size(), 1);
                                                      std::fill_n(where.begin(), 3, uint8_t{0});
                                                      return where;
                                                  }),
                      model.program, {.context = kContext, .batch = 16});
    CHECK_THROWS_WITH_AS(
        AssistantDraft(kernels::cpu::make_cpu_backend(1), head, executor, std::make_shared<HiddenStates>()),
        "the model's cache is not on a single device", kernels::BackendError);
}
