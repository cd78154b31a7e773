// Drafts of a file's own draft block, on real backends.
#include "engine/decode/speculation/draft_block.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/decode/hidden_states.h"
#include "engine/decode/single_sequence.h"
#include "engine/decode/speculation/speculator.h"
#include "engine/model/draft_block.h"
#include "engine/model/model.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/support/draft_model.h"
#include "tests/support/draft_rig.h"

using namespace runnel;
using namespace runnel::completion;
using namespace runnel::decode;
using namespace runnel::testing;

namespace {

constexpr int32_t kContext = kRigContext;
static_assert(kDraftVocab == kRigVocab);

// A model and its draft block on a device.
struct Rig {
    Rig(const gguf::File &file, int threads = 1, int32_t batch = 48, On device = On::Cpu)
        : programs(model::draft_blocks(file)),
          executor(keep_hidden_states(backend_on(device, threads), states, model::state_of(programs.at(0))),
                   model::build(file).program, {.context = kContext, .batch = batch, .sequences = 6}),
          block([=] { return backend_on(device, threads); }, programs, executor, states, 3),
          sampler(sampling_of(0), static_cast<int32_t>(kDraftVocab)) {}

    Draft draft(const SingleSequence &sequence, TokenId last, int32_t most) {
        return draft_of(block, sampler, {&sequence, last, most});
    }
    std::vector<Draft> draft_all(std::span<const Asked> asked) { return drafts_of(block, sampler, asked); }
    MakeSpeculator speculators(int32_t branches) { return speculators_of(block, branches); }

    std::shared_ptr<HiddenStates> states = std::make_shared<HiddenStates>();
    std::vector<kernels::Program> programs;
    Executor executor;
    DraftBlock block;
    Sampler sampler;
};

}  // namespace

TEST_CASE("block draft: the block gets the model's hidden state of the token before") {
    for (const char *arch : kDraftArchs) {
        CAPTURE(arch);
        // A block that repeats its hidden state predicts what the model predicts at the token before.
        DraftModel model(arch);
        model.silence("blk.2.");
        model.project(0, 1);
        const bool removes_mean = arch == std::string("cohere2moe") || arch == std::string("nemotron_h_moe");
        if (removes_mean) model.fill("output_norm.weight", 1), model.ignore_mean();
        model.fill("blk.2.nextn.hnorm.weight", 1);
        if (arch == std::string("mimo2"))  // the state before the last norm
            model.tensors["blk.2.nextn.shared_head_norm.weight"] = model.tensors.at("output_norm.weight");
        else
            model.fill("blk.2." + model.last_norm() + ".weight", 1);
        const gguf::File file = model.write();
        const std::vector<TokenId> text = text_of(40, 1);
        const std::vector<float> logits = kernels::reference::logits_of(model::build(file).program, text);
        for (const On device : {On::Cpu, On::Gpu}) {
            CAPTURE(static_cast<int>(device));
            if (device == On::Gpu && arch == std::string("mimo2"))
                continue;  // no kernel for such small heads
            Rig rig(file, 1, 48, device);
            for (const size_t length :
                 {size_t{1}, size_t{2}, size_t{31}, size_t{32}, size_t{33}, text.size()}) {
                CAPTURE(length);
                SingleSequence sequence(rig.executor);
                REQUIRE(sequence.feed(std::span(text).first(length)));
                const Draft draft = rig.draft(sequence, 7, 3);
                const auto row = std::span(logits).subspan((length - 1) * kDraftVocab, kDraftVocab);
                REQUIRE(draft.tokens.size() == 3);
                CHECK(draft.tokens[0] == std::ranges::max_element(row) - row.begin());
            }
        }
    }
}

TEST_CASE("block draft: drafts are the same after any chunks, roll-backs, forks and shared prefixes") {
    for (const char *arch : kDraftArchs)
        for (uint32_t seed = 0; seed < 2; ++seed) {
            CAPTURE(arch);
            CAPTURE(seed);
            DraftModel model(arch);
            const size_t blocks = seed % 2 == 0 ? 1 : 3, drafts = blocks == 1 ? 6 : 3;
            model.chain(static_cast<int32_t>(blocks));
            const gguf::File file = model.write();
            Rig whole(file, 2, 128), rig(file, 1, 16 + static_cast<int32_t>(seed) * 5);
            REQUIRE(whole.programs.size() == blocks);
            check_changed_sequences(whole, rig, seed, drafts);
        }
}

TEST_CASE("block draft: drafts made together are those made alone, whatever the sequences share") {
    for (const char *arch : {"glm4moe", "qwen35"})
        for (uint32_t seed = 0; seed < 6; ++seed) {
            CAPTURE(arch);
            CAPTURE(seed);
            const On device = seed < 5 ? On::Cpu : On::Gpu;
            DraftModel model(arch);
            const int32_t blocks = seed % 2 == 0 ? 1 : 3;
            model.chain(blocks);
            const gguf::File file = model.write();
            std::mt19937 rng(seed);  // (Drafts together are made in chunks of three.)
            Rig rig(file, 2, 12 + static_cast<int32_t>(rng() % 30), device), other(file, 1, 48, device);
            check_common_passes(rig, other, text_of(40 + rng() % 40, seed), seed, blocks == 1 ? 7 : 3);
        }
}

TEST_CASE("block draft: the text is the same as without drafts, alone and in a batch") {
    for (const char *arch : kDraftArchs) {
        DraftModel model(arch);
        if (arch == std::string("mimo2")) model.chain(3);
        const gguf::File file = model.write();
        for (const On device : {On::Cpu, On::Gpu})
            for (const float temperature : {0.0f, 0.9f}) {
                CAPTURE(arch);
                CAPTURE(static_cast<int>(device));
                CAPTURE(temperature);
                // The emulator is slow.
                if (device == On::Gpu && std::string(arch) != (temperature > 0 ? "cohere2moe" : "qwen35"))
                    continue;
                const size_t prompts = device == On::Cpu ? 5 : 2;
                Executor plain(backend_on(device), model::build(file).program,
                               {.context = kContext, .batch = 48, .sequences = 6});
                const Texts without = answers(plain, {}, prompts, temperature);
                Rig rig(file, 1, 48, device);
                const Texts with = answers(rig.executor, rig.speculators(4), prompts, temperature);
                CHECK(with.tokens == without.tokens);
                CHECK(with.counts.failure == "");
                CHECK(with.counts.drafted > 0);
            }
    }
}

TEST_CASE("block draft: blocks that know the model's rule are always right") {
    for (const char *arch : kDraftArchs)
        for (const int32_t blocks : {1, 2}) {
            CAPTURE(arch);
            CAPTURE(blocks);
            DraftModel model(arch);
            model.chain(blocks);
            model.obey_rule();
            const gguf::File file = model.write();
            Rig rig(file);
            const Texts texts = answers(rig.executor, rig.speculators(1), 3, 0);
            CHECK(texts.counts.drafted >= (blocks == 1 ? 90 : 70));
            CHECK(texts.counts.accepted == texts.counts.drafted);
        }
}

namespace {

using StateRows = std::vector<std::vector<float>>;

struct Step {
    TokenId best;
    std::vector<float> state, logits;  // of the last token
};

// A block over a whole text; `before`: the states before its tokens.
Step run_block(const kernels::Program &block, std::span<const TokenId> text, const StateRows &before) {
    const auto count = static_cast<int32_t>(text.size());
    const auto backend = kernels::cpu::make_cpu_backend(1);
    backend->load(block, {.blocks = {4}, .context = kContext}, count);
    const kernels::Program::Part &part = block.parts.front();
    const kernels::SlotRows in = backend->exchange(part.in.front());
    for (size_t i = 0; i < text.size(); ++i)
        std::ranges::copy(before[i], in.data + static_cast<int64_t>(i) * in.stride);
    std::vector<int32_t> positions(text.size());
    std::iota(positions.begin(), positions.end(), 0);
    const kernels::BlockId table[] = {0, 1, 2, 3};
    const kernels::SequenceSpan span{0, count, 0, {table}};
    std::vector<float> logits(text.size() * kDraftVocab);
    REQUIRE(backend->execute({text, positions, {&span, 1}, positions}, logits));
    const auto last = std::span(logits).last(kDraftVocab);
    const kernels::SlotRows out = backend->exchange(part.out.front());
    const float *state = out.data + (count - 1) * out.stride;
    return {static_cast<TokenId>(std::ranges::max_element(last) - last.begin()),
            {state, state + kDraftWidth},
            {last.begin(), last.end()}};
}

// The states before the cached tokens of a sequence and the next one.
StateRows states_before(const Rig &rig, const SingleSequence &sequence) {
    const cache::SequenceCache &cache = sequence.sequence().cache();
    StateRows before;
    for (int32_t p = 0; p <= cache.length(); ++p) {
        before.emplace_back(kDraftWidth);
        rig.states->get(cache.table(rig.states->group()), p - 1, before.back());
    }
    return before;
}

}  // namespace

TEST_CASE("block draft: of several blocks, each drafts one token, from the states of those before it") {
    for (const char *arch : {"mimo2", "glm4moe", "cohere2moe"})
        for (const int32_t blocks : {1, 3})
            for (const size_t length : {size_t{1}, size_t{32}, size_t{75}}) {
                CAPTURE(arch);
                CAPTURE(blocks);
                CAPTURE(length);
                DraftModel model(arch);
                model.chain(blocks);
                const gguf::File file = model.write();
                Rig rig(file, 1, 20);
                SingleSequence sequence(rig.executor);
                std::vector<TokenId> text = text_of(length, 3);
                REQUIRE(sequence.feed(text));
                text.push_back(9);
                const Draft draft = rig.draft(sequence, text.back(), 3);
                REQUIRE(draft.tokens.size() == 3);
                StateRows before = states_before(rig, sequence);
                for (size_t k = 0; k < 3; ++k) {
                    CAPTURE(k);
                    Step step = run_block(rig.programs[blocks == 1 ? 0 : k], text, before);
                    CHECK(draft.tokens[k] == step.best);
                    text.push_back(step.best);
                    before.push_back(std::move(step.state));
                }
            }
}

TEST_CASE("block draft: the logits of the blocks are llama.cpp's") {
    struct Peer {
        const char *arch;
        size_t blocks, block;
        std::vector<double> logits;  // the first ones, of the last of 40 tokens
    };
    const Peer peers[] = {
#include "tests/engine/decode/speculation/peer_drafts.inc"
    };
    // For scripts/record-drafts, which gives these files to llama.cpp.
    if (const char *folder = std::getenv("RUNNEL_DRAFT_MODELS"))
        for (const char *arch : kDraftArchs) {
            DraftModel model(arch);
            if (arch == std::string("mimo2")) model.chain(3);
            model.write();
            std::filesystem::copy_file(model.path(),
                                       std::filesystem::path(folder) / (arch + std::string(".gguf")));
        }
    std::vector<TokenId> text(40);
    std::iota(text.begin(), text.end(), 0);
    for (const Peer &peer : peers) {
        CAPTURE(peer.arch);
        CAPTURE(peer.block);
        DraftModel model(peer.arch);
        model.chain(static_cast<int32_t>(peer.blocks));
        const gguf::File file = model.write();
        Rig rig(file);
        SingleSequence sequence(rig.executor);
        REQUIRE(sequence.feed(std::span(text).first(text.size() - 1)));
        const Step step = run_block(rig.programs.at(peer.block), text, states_before(rig, sequence));
        REQUIRE(peer.logits.size() == 8);
        for (size_t i = 0; i < peer.logits.size(); ++i)
            CHECK(std::abs(double{step.logits[i]} - peer.logits[i]) < 1e-2);
    }
}

TEST_CASE("block draft: one that is never right is seldom asked") {
    DraftModel model("glm4moe");
    model.obey_rule();
    // Its output matrix has the model's rows in another order.
    DraftModel::Values rows = model.tensors.at("output.weight");
    std::rotate(rows.all.begin(), rows.all.begin() + kDraftWidth, rows.all.end());
    model.tensors["blk.2.nextn.shared_head_head.weight"] = std::move(rows);
    const gguf::File file = model.write();
    Rig rig(file);
    const Texts texts =
        answers(rig.executor, speculators_of(rig.block, 1, std::make_shared<SharedCosts>()), 1, 0, 140);
    const auto count = static_cast<int64_t>(texts.tokens.at(0).size());
    REQUIRE(count == 140);
    CHECK(texts.counts.accepted == 0);
    // An account of one plain step, and of 0.6% of the passes after it, pays at least 2% of a step for a token.
    CHECK(texts.counts.drafted <= 50 + count * 6 / 20);
}

TEST_CASE("block draft: no draft for a sequence that is not cached, or at the end of the context") {
    const DraftModel model("qwen35");
    const gguf::File file = model.write();
    Rig rig(file);
    SingleSequence sequence(rig.executor);
    REQUIRE(sequence.feed(text_of(kContext - 3, 1)));
    CHECK(rig.draft(sequence, 5, 8).tokens.size() == 2);
    REQUIRE(sequence.feed(text_of(2, 1)));
    CHECK(rig.draft(sequence, 5, 8).tokens.empty());
    sequence.truncate(10);
    sequence.entry().evict();
    CHECK(rig.draft(sequence, 5, 8).tokens.empty());
    StateDraft alone(rig.block, false);
    CHECK(alone.draft(text_of(4, 1), 8, 0, rig.sampler).tokens.empty());
}
