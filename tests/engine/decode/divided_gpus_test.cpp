// A cache whose cells several emulated GPUs divide (--split context) gives the bits of one, whatever happens to the sequences.
// (Attention with long contexts: tests/kernels/divided_gpus_test.cpp.)
#include <doctest/doctest.h>

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/completion/queue.h"
#include "engine/decode/engine.h"
#include "engine/decode/error.h"
#include "engine/decode/speculation/drafting.h"
#include "engine/decode/tensor_plan.h"
#include "engine/model/model.h"
#include "kernels/tensor_backend.h"
#include "tests/engine/decode/computed_text.h"
#include "tests/engine/decode/executor_pair.h"
#include "tests/simt/nccl.h"
#include "tests/simt/simt.h"
#include "tests/support/answers.h"
#include "tests/support/model_maker.h"
#include "tests/support/split_ranks.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::decode;
using tests::ExecutorPair;
using tests::Gpus;
using tests::random_text;
using tests::TinyProgram;
using tests::TinyShape;
using tests::Tokens;

TEST_CASE("divided GPUs: forks, roll-backs, shared prefixes, branches and batches over two ranges") {
    const Gpus gpus(2);
    const simt::WithNccl nccl;
    TinyShape shape{.layers = 1, .width = 32, .feed_forward = 32, .heads = 2, .type = gguf::Type::Q8_0};
    const TinyProgram tiny(shape, 3);
    const CacheTypes types{kernels::CacheType::Q8_0, kernels::CacheType::Q8_0};
    ExecutorOptions options{.context = 640, .batch = 256, .sequences = 3, .cells = 2048, .types = types};
    Executor one(tests::one_gpu(0), tiny.program(), options);
    options.ranks = 2;
    Executor several(kernels::make_tensor_backend(tests::make_ranks(tests::one_gpu, 2), {1, 1}),
                     tiny.program(), options);
    CHECK(several.cache().pool(0).shares() == 2);
    std::mt19937 random(3);
    const Tokens text = random_text(random, 520);
    const auto part = [&](size_t from, size_t to) {
        return Tokens(text.begin() + static_cast<std::ptrdiff_t>(from),
                      text.begin() + static_cast<std::ptrdiff_t>(to));
    };
    ExecutorPair pair(one, several);
    pair.add();
    pair.step({{0, part(0, 256)}});
    pair.step({{0, part(256, 505)}});
    pair.step({{0, part(505, 515)}});  // few tokens, in both ranges
    pair.step_with_branch(0, random_text(random, 5));
    pair.fork(0);
    pair.add();
    pair.attach(2, text);
    CHECK(pair.length(2) == 512);
    pair.step({{0, random_text(random, 1)}, {1, random_text(random, 20)}, {2, random_text(random, 3)}});
    pair.truncate(1, 500);
    pair.step({{1, random_text(random, 15)}, {0, random_text(random, 1)}});
    pair.erase(0);
    pair.step({{0, random_text(random, 2)}, {1, random_text(random, 17)}});
}

TEST_CASE("divided GPUs: a model with latent attention runs with --split context, with the text of one GPU") {
    const Gpus gpus(2);
    testing::ModelShape shape;
    shape.arch = "deepseek2-lite", shape.layers = 1, shape.type = "Q8_0", shape.width = 32, shape.ff = 64,
    shape.heads = 4, shape.kv_heads = 2, shape.head_dim = 32, shape.vocab = 300;
    const testing::TemporaryModel model(shape);
    EngineOptions options{.model = model.path, .threads = 1, .context = 96, .batch = 32};
    options.device = {"cuda:0"};
    const ComputedText expected = [&] {
        Engine one(options);
        return compute(one);
    }();
    options.device = {"cuda", {}, Split::Context};
    Engine several(options);
    CHECK(several.placement() ==
          "all layers on 2 GPUs, each with some rows of every matrix and some cells of the cache");
    const ComputedText got = compute(several);
    CHECK(tests::same_bits(got.logits, expected.logits));
    CHECK(got.greedy == expected.greedy);
}

TEST_CASE("divided GPUs: a model whose layers all have windows is refused, since no cells can be divided") {
    const Gpus gpus(2);
    const testing::TemporaryModel model(testing::ModelShape{});
    EngineOptions options{.model = model.path, .threads = 1, .context = 96, .batch = 32};
    options.device = {"cuda", {}, Split::Context};
    options.cache.window = 64;
    CHECK_THROWS_WITH_AS(Engine{options},
                         "--split context divides the cells of attention without a window, which this model "
                         "does not have: choose --split tensor",
                         DecodeError);
}

TEST_CASE("divided GPUs: drafts, several answers at a time") {
    const Gpus gpus(2);
    testing::ModelShape shape;
    shape.layers = 2, shape.type = "Q8_0", shape.width = 32, shape.ff = 64, shape.heads = 2,
    shape.kv_heads = 1, shape.head_dim = 32, shape.vocab = 300;
    const testing::TemporaryModel model(shape);
    const auto texts = [&](Split split, bool drafts) {
        EngineOptions options{.model = model.path, .threads = 1, .context = 96, .batch = 32, .sequences = 2};
        options.device = {split == Split::Context ? "cuda" : "cuda:0", {}, split};
        options.first_layers = drafts ? 1 : 0;
        Engine engine(options);
        const completion::PromptFormat format(engine.file(), engine.tokenizer());
        Drafting drafting({.self_layers = drafts ? 1 : 0, .how = {.length = {.most = 3, .fixed = true}}},
                          engine, 2);
        CHECK(drafting.notes().empty());
        completion::CompletionQueue queue(engine, format,
                                          {.parallel = 2, .drafts = [&] { return drafting.speculator(); }});
        for (int32_t i = 0; i < 2; ++i) {
            std::vector<text::TokenId> prompt;
            for (int32_t k = 0; k < 18 + 2 * i; ++k) prompt.push_back(1 + (k % 7 + i) * 7 % 290);
            queue.submit({.input = completion::Tokens{prompt},
                          .sampling = {.temperature = 0, .logit_bias = {}},
                          .limits = {.max_tokens = 12, .ignore_end = true}});
        }
        std::vector<std::vector<text::TokenId>> all;
        for (const auto &[key, answer] : testing::answer_all(queue)) {
            CHECK(answer.done.error == "");
            all.push_back(answer.done.tokens);
        }
        CHECK((queue.speculation().drafted > 0) == drafts);
        return all;
    };
    const auto expected = texts(Split::None, false);
    CHECK(expected.size() == 2);
    CHECK(texts(Split::Context, true) == expected);
}

TEST_CASE("divided GPUs: three hold almost three times the context of one, besides a copy of one layer") {
    const Gpus gpus(3);
    testing::ModelShape shape;
    shape.layers = 30, shape.width = 32, shape.ff = 32, shape.heads = 6, shape.kv_heads = 3,
    shape.head_dim = 32, shape.vocab = 300;
    const testing::TemporaryModel model(shape);
    const kernels::Program program = model::build(model.file).program;
    const auto cells = [&](size_t count) {
        std::vector<kernels::DevicePtr> some = kernels::devices(1).gpus;
        some.resize(count);
        const ContextRequest request{.own = 1 << 20, .batch = 32, .ranks = static_cast<int32_t>(count)};
        return static_cast<double>(plan_tensor_split(program, some, {}, request).context.cells);
    };
    CHECK(cells(3) > 2.7 * cells(1));
    CHECK(cells(3) < 3 * cells(1));
}
