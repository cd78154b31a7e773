// Sequences of models with recurrent layers: forks, roll-backs and other sequences do not change their
// logits, and little is recomputed.
#include <doctest/doctest.h>

#include <cstring>
#include <list>
#include <random>
#include <vector>

#include "engine/decode/cache_plan.h"
#include "engine/decode/prompt_file.h"
#include "engine/decode/single_sequence.h"
#include "engine/model/model.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/model_maker.h"
#include "tests/support/temporary.h"
#include "tests/support/toy_rig.h"

using namespace runnel;
using namespace runnel::decode;
using namespace runnel::testing;

namespace {

constexpr int32_t kVocab = kToyVocab, kInterval = cache::kStateInterval;

void check_logits(std::span<const float> logits, const std::vector<TokenId> &prefix) {
    REQUIRE(logits.size() == kVocab);
    const uint64_t hash = hash_tokens(prefix);
    for (int32_t id = 0; id < kVocab; ++id) REQUIRE(logits[static_cast<size_t>(id)] == toy_logit(hash, id));
}

size_t tokens_computed(const ToyRig &rig) {
    size_t tokens = 0;
    for (const ToyBackend::Record &record : rig.backend->records) tokens += record.tokens;
    return tokens;
}

std::vector<TokenId> with(std::vector<TokenId> text, TokenId last) {
    text.push_back(last);
    return text;
}

ModelShape tiny(const std::string &arch) {
    ModelShape shape;
    shape.arch = arch, shape.layers = 4, shape.width = 32, shape.ff = 40, shape.heads = 4, shape.vocab = 260;
    shape.context = 2048, shape.threads = 1, shape.seed = 5;
    return shape;
}

}  // namespace

TEST_CASE("recurrent: after any feeding, forking and truncating, the logits are those of the tokens") {
    for (uint32_t seed = 0; seed < 40; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        ToyRig rig({.context = 1500,
                    .batch = 1 + static_cast<int32_t>(rng() % 600),
                    .sequences = 4,
                    .cells = 5000 + static_cast<int32_t>(rng() % 4000)},
                   kVocab, true);
        struct Text {
            Text(Sequence sequence, std::vector<TokenId> tokens)
                : session(std::move(sequence)), expected(std::move(tokens)) {}
            SingleSequence session;
            std::vector<TokenId> expected;
        };
        std::list<Text> texts;
        texts.emplace_back(Sequence(rig.executor), std::vector<TokenId>());
        const std::vector<TokenId> common = random_tokens(rng, 700);
        for (int step = 0; step < 30; ++step) {
            Text &text = *std::next(texts.begin(), static_cast<std::ptrdiff_t>(rng() % texts.size()));
            switch (rng() % 6) {
                case 0: {  // cut anywhere
                    const size_t keep = rng() % (text.expected.size() + 1);
                    text.session.truncate(keep);
                    text.expected.resize(keep);
                    break;
                }
                case 1:
                    if (texts.size() < 3) texts.emplace_back(text.session.sequence().fork(), text.expected);
                    continue;
                case 2: {  // continue a text that other sequences have
                    std::vector<TokenId> wanted(common.begin(), common.begin() + 1 + rng() % 699);
                    const size_t known = text.session.reuse(wanted);
                    text.expected.assign(wanted.begin(), wanted.begin() + static_cast<std::ptrdiff_t>(known));
                    wanted.erase(wanted.begin(), wanted.begin() + static_cast<std::ptrdiff_t>(known));
                    REQUIRE(text.session.feed(wanted));
                    text.expected.insert(text.expected.end(), wanted.begin(), wanted.end());
                    check_logits(text.session.logits(), text.expected);
                    continue;
                }
                case 3:
                    text.session.entry().evict();
                    break;
                default:
                    break;
            }
            const std::vector<TokenId> more = random_tokens(rng, 1 + rng() % 300);
            if (text.expected.size() + more.size() > 1500) continue;
            REQUIRE(text.session.feed(more));
            text.expected.insert(text.expected.end(), more.begin(), more.end());
            check_logits(text.session.logits(), text.expected);
        }
        texts.clear();
        const auto *states = rig.executor.cache().states();
        CHECK(states->free_blocks() + states->idle_blocks() == states->size());  // nothing is held
    }
}

TEST_CASE(
    "recurrent: after a truncation or with a shared prefix, only tokens after the last checkpoint are "
    "recomputed") {
    std::mt19937 rng(1);
    ToyRig rig({.context = 9000, .batch = 512, .sequences = 10, .cells = 30000}, kVocab, true);
    SingleSequence session(rig.executor);
    std::vector<TokenId> text = random_tokens(rng, 8000);
    REQUIRE(session.feed(text));
    const auto again = [&](SingleSequence &of, size_t keep) {
        const size_t before = tokens_computed(rig);
        of.truncate(keep);
        REQUIRE(of.feed(std::vector<TokenId>{7}));
        const std::vector<TokenId> kept(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(keep));
        check_logits(of.logits(), with(kept, 7));
        return tokens_computed(rig) - before - 1;
    };
    SUBCASE("an edit anywhere") {
        for (const size_t keep : {7999u, 7990u, 7000u, 5001u, 700u, 20u}) {
            SingleSequence edited(session.sequence().fork());
            CHECK(again(edited, keep) < kInterval);
        }
    }
    SUBCASE("the end of a prompt") {
        for (int i = 0; i < 100; ++i) REQUIRE(session.feed(random_tokens(rng, 1)));
        CHECK(again(session, 8000) < 32);
    }
    SUBCASE("forks recompute nothing") {
        for (int i = 0; i < 8; ++i) {
            SingleSequence fork(session.sequence().fork());
            CHECK(again(fork, 8000) == 0);
        }
    }
    SUBCASE("another sequence with the same beginning") {
        SingleSequence other(rig.executor);
        std::vector<TokenId> beginning(text.begin(), text.begin() + 5000);
        const size_t known = other.reuse(beginning);
        CHECK(known + kInterval >= 5000);
        CHECK(known < 5000);
    }
    SUBCASE("a sequence that was evicted") {
        session.entry().evict();
        const size_t before = tokens_computed(rig);
        session.entry().append(std::vector<TokenId>{3});
        REQUIRE(session.compute());
        check_logits(session.logits(), with(text, 3));
        CHECK(tokens_computed(rig) - before < 40);
    }
}

TEST_CASE("recurrent: rejected drafts are rolled back without recomputing") {
    std::mt19937 rng(2);
    ToyRig rig({.context = 2000, .batch = 64, .cells = 8000}, kVocab, true);
    SingleSequence session(rig.executor);
    std::vector<TokenId> text = random_tokens(rng, 50);
    REQUIRE(session.feed(text));
    for (int round = 0; round < 100; ++round) {
        CAPTURE(round);
        const std::vector<TokenId> due = random_tokens(rng, 1), guesses = random_tokens(rng, rng() % 12);
        const size_t before = tokens_computed(rig);
        session.entry().append(due);
        session.entry().append_drafts(guesses);
        REQUIRE(session.compute());
        text.push_back(due[0]);
        const size_t replayed = tokens_computed(rig) - before - 1 - guesses.size();
        CHECK(replayed <= 4);  // only if more tokens were accepted than states are kept
        const size_t accepted = rng() % (guesses.size() + 1);
        for (size_t i = 0; i < accepted; ++i) text.push_back(guesses[i]);
        session.truncate(text.size());
        CHECK(static_cast<size_t>(session.sequence().cache().length()) + 4 >= text.size());
    }
    REQUIRE(session.feed(std::vector<TokenId>{1}));
    check_logits(session.logits(), with(text, 1));
}

TEST_CASE("recurrent: texts that diverge within an interval share the checkpoint where they diverge") {
    std::mt19937 rng(3);
    ToyRig rig({.context = 1000, .batch = 512, .sequences = 4, .cells = 4000}, kVocab, true);
    const std::vector<TokenId> common = random_tokens(rng, 200);  // 192 tokens of whole blocks
    size_t computed[3];
    for (size_t &count : computed) {
        std::vector<TokenId> text = common;
        const std::vector<TokenId> own = random_tokens(rng, 150);
        text.insert(text.end(), own.begin(), own.end());
        const size_t before = tokens_computed(rig);
        SingleSequence session(rig.executor);
        const size_t known = session.reuse(text);
        REQUIRE(session.feed(std::span(text).subspan(known)));
        check_logits(session.logits(), text);
        count = tokens_computed(rig) - before;
    }
    CHECK(computed[0] == 350);
    CHECK(computed[1] == 350);  // no state is kept yet where the texts diverge
    CHECK(computed[2] == 350 - 192);
}

TEST_CASE("recurrent: a prompt file holds the state, and the text continues from it") {
    const TemporaryDirectory directory;
    const auto path = directory / "prompt.kv";
    std::mt19937 rng(4);
    const std::vector<TokenId> text = random_tokens(rng, 300);
    const ExecutorOptions options{.context = 600, .batch = 128};
    {
        ToyRig rig(options, kVocab, true);
        SingleSequence session(rig.executor);
        REQUIRE(session.feed(text));
        save_prompt_file(path, {}, rig.executor, session.sequence().cache(), text.size());
    }
    ToyRig rig(options, kVocab, true), other(options, kVocab, false);
    CHECK(load_prompt_file(path, {}, rig.executor).state == PromptFileResult::State::Loaded);
    CHECK(load_prompt_file(path, {}, other.executor).state == PromptFileResult::State::Rejected);
    SingleSequence session(rig.executor);
    CHECK(session.reuse(text) == 288);
    REQUIRE(session.feed(std::span(text).subspan(288)));
    check_logits(session.logits(), text);
    CHECK(tokens_computed(rig) == 12);
}

TEST_CASE("recurrent: memory for states is planned, and no context makes it grow without bound") {
    kernels::Program program = toy_program(40, true);
    const CacheShape shape{.cells = 8192, .sequences = 3};
    CHECK(state_slots(toy_program(40, false), shape) == 0);
    CHECK(state_slots(program, shape) == 2 * 3 + 8192 / kInterval + 1);
    const size_t before = cache_bytes(program, shape);
    program.state_layers = {{1 << 20}, {1 << 20}};
    CHECK(kernels::state_bytes(program) == size_t{8} << 20);
    CHECK(state_slots(program, shape) == 2 * 3 + 16);  // K and V have fewer bytes than 16 states: 16
    CHECK(cache_bytes(program, shape) - before ==
          22 * kernels::state_bytes(program) - static_cast<size_t>(2 * 3 + 33) * 2 * sizeof(float));
    CHECK(cache_config(program, shape, 8192).states == 22);
}

TEST_CASE(
    "recurrent: on the CPU, bits are the same alone and after any batching, chunking, fork, truncation and "
    "preemption") {
    for (const char *arch : {"qwen35", "qwen3next", "lfm2", "jamba", "nemotron_h", "plamo2", "minimax-01",
                             "kimi-linear", "bailingmoe3", "rwkv7", "arwkv7", "rwkv6", "rwkv6qwen2"}) {
        CAPTURE(arch);
        std::mt19937 rng(6);
        const TemporaryModel file(tiny(arch));
        const model::Model model = model::build(file.file);
        std::vector<TokenId> text(420);
        for (TokenId &id : text) id = static_cast<TokenId>(rng() % 260);
        Executor calm(kernels::cpu::make_cpu_backend(1), model.program, {.context = 600, .batch = 500});
        std::vector<std::vector<float>> expected;  // logits after the first n tokens, for n from 400 on
        SingleSequence alone(calm);
        REQUIRE(alone.feed(std::span(text).first(400)));
        for (size_t n = 400; n < text.size(); ++n) {
            expected.emplace_back(alone.logits().begin(), alone.logits().end());
            REQUIRE(alone.feed(std::span(text).subspan(n, 1)));
        }
        Executor crowded(kernels::cpu::make_cpu_backend(2, "scalar"), model.program,
                         {.context = 600, .batch = 37, .sequences = 3, .cells = 1200});
        SingleSequence other(crowded), session(crowded);
        for (int trial = 0; trial < 3; ++trial) {
            CAPTURE(trial);
            const size_t n = 400 + rng() % 20;
            if (trial == 1) REQUIRE(other.feed(std::span(text).subspan(40, 100)));
            session.truncate(std::min(session.tokens().size(), rng() % 420));
            while (session.tokens().size() < n) {
                const size_t from = session.tokens().size();
                REQUIRE(session.feed(std::span(text).subspan(from, std::min(n - from, 1 + rng() % 200))));
            }
            const std::vector<float> &wanted = expected[n - 400];
            REQUIRE(std::memcmp(session.logits().data(), wanted.data(), wanted.size() * sizeof(float)) == 0);
            if (trial == 1) session.entry().evict();
        }
    }
}
