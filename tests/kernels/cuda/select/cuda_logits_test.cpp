// Whole programs on the emulated device: compared with double precision and the CPU, and bit for bit with
// every other way of computing them.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/kernels/cuda/sequence_runner.h"
#include "tests/simt/simt.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels;
using namespace runnel::tests;

TEST_CASE("cuda backend: tiny programs in every format agree with double precision and the CPU") {
    const struct {
        gguf::Type type;
        TinyShape shape;
    } cases[] = {
        {gguf::Type::F32, {}},
        {gguf::Type::F16, {.head_norm = true, .bias = true}},
        {gguf::Type::BF16, {.window = 7}},
        {gguf::Type::Q8_0, {.pairs = RopeTable::Pairs::Halves, .bias = true}},
        {gguf::Type::Q4_0, {}},
        {gguf::Type::Q5_1, {}},
        {gguf::Type::MXFP4, {}},
        {gguf::Type::Q4_K,
         {.layers = 1,
          .width = 256,
          .feed_forward = 256,
          .heads = 8,
          .kv_heads = 1,
          .head_dim_k = 32,
          .head_dim_v = 32}},
        {gguf::Type::NVFP4, {.feed_forward = 192}},
        {gguf::Type::IQ3_S,
         {.layers = 1,
          .width = 256,
          .feed_forward = 256,
          .heads = 8,
          .kv_heads = 2,
          .head_dim_k = 32,
          .head_dim_v = 32}},
        {gguf::Type::IQ1_M,
         {.layers = 1,
          .width = 256,
          .feed_forward = 512,
          .heads = 8,
          .kv_heads = 2,
          .head_dim_k = 32,
          .head_dim_v = 32}},
        {gguf::Type::Q6_K,
         {.layers = 1,
          .width = 256,
          .feed_forward = 256,
          .heads = 4,
          .kv_heads = 4,
          .head_dim_k = 64,
          .head_dim_v = 64}},
    };
    for (const auto &[type, base] : cases) {
        CAPTURE(gguf::traits(type).name);
        TinyShape shape = base;
        shape.type = type;
        const TinyProgram tiny(shape, 41);
        const std::vector<int32_t> tokens = random_tokens(20, shape.vocab, 7);
        const auto expected = tests::reference_logits(tiny.program(), tokens);
        Runner gpu(cuda::make_cuda_backend(0), tiny.program());
        const Distance d = distance(expected, gpu.run(tokens, 20));
        CHECK(d.kl < 1e-5);
        CHECK(d.other_best == 0);
        Runner cpu(cpu::make_cpu_backend(1), tiny.program());
        std::vector<reference::Row> of_cpu;
        for (const auto &row : cpu.run(tokens, 20)) of_cpu.push_back(reference::to_row(row));
        CHECK(distance(of_cpu, gpu.run(tokens, 20)).kl < 1e-3);
    }
}

TEST_CASE("cuda backend: logits depend on neither chunks, nor graphs replayed, nor the order of threads") {
    const std::vector<int32_t> tokens = random_tokens(45, 50, 3);
    // Which kernel prepares the input of the next one depends on the number of tokens and on the shape.
    for (const TinyShape &shape : {TinyShape{.heads = 6, .kv_heads = 2, .type = gguf::Type::Q4_0},
                                   TinyShape{.width = 288,
                                   .feed_forward = 544,
                                   .heads = 8,
                                   .kv_heads = 2,
                                   .head_dim_k = 64,
                                   .head_dim_v = 64,
                                   .type = gguf::Type::Q8_0},
                                   TinyShape{.width = 72, .type = gguf::Type::BF16}}) {
        CAPTURE(gguf::traits(shape.type).name);
        const TinyProgram one(shape, 44);
        Runner runner(cuda::make_cuda_backend(0), one.program());
        const Logits2 whole = runner.run(tokens, 45);
        for (const size_t chunk : {size_t{1}, size_t{5}, size_t{16}, size_t{33}})
            check_equal(runner.run(tokens, chunk), whole, "in chunks of " + std::to_string(chunk));
    }
    const TinyProgram tiny({.heads = 6, .kv_heads = 2, .type = gguf::Type::Q4_0}, 43);
    const Logits2 whole = Runner(cuda::make_cuda_backend(0), tiny.program()).run(tokens, 45);
    simt::settings().seed = 99;
    simt::settings().multiprocessors = 1;
    simt::settings().devices = 2;
    Runner other(cuda::make_cuda_backend(simt::emulated() ? 1 : 0), tiny.program());
    check_equal(other.run(tokens, 7), whole, "another device with one multiprocessor, in another order");
    simt::settings() = {};
}

// Mixtures of experts like those of Mixtral, Qwen3, gpt-oss, DeepSeek and Llama 4, and the
// formats whose kernels differ.
TEST_CASE("cuda backend: experts agree with double precision, whatever the chunks") {
    using Score = Routing::Score;
    const struct {
        gguf::Type type;
        tests::TinyExperts experts;
    } cases[] = {
        {gguf::Type::Q4_0, {.count = 6, .routing = {.used = 2}}},
        {gguf::Type::Q8_0,
         {.count = 9,
          .routing = {.used = 3, .normalize = true, .scale = 2.5f},
          .scales = true,
          .shared = true}},
        {gguf::Type::MXFP4,
         {.count = 4,
          .routing = {.score = Score::SelectedSoftmax, .used = 3},
          .biases = true,
          .act = Activation::Kind::SiluClamped}},
        {gguf::Type::Q4_0, {.count = 6, .routing = {.used = 2}, .act = Activation::Kind::SiluThenLimit}},
        {gguf::Type::Q8_0,
         {.count = 6, .routing = {.used = 2}, .merged = true, .act = Activation::Kind::LimitThenSilu}},
        {gguf::Type::F16,
         {.count = 16,
          .routing = {.score = Score::Sigmoid,
                      .used = 5,
                      .groups = 4,
                      .groups_used = 2,
                      .normalize = true,
                      .scale = 1.5f},
          .selection_bias = true,
          .merged = true}},
        {gguf::Type::Q5_1,
         {.count = 3,
          .routing = {.score = Score::Sigmoid, .used = 1},
          .weights_on_input = true,
          .scales = true}},
        {gguf::Type::IQ2_XS, {.count = 4, .routing = {.used = 2}}},
        {gguf::Type::NVFP4, {.count = 6, .routing = {.used = 3}, .scales = true, .in_scales = true}},
        {gguf::Type::Q8_0,
         {.count = 4,
          .routing = {.score = Score::Sigmoid, .used = 2},
          .biases = true,
          .weights_on_input = true,
          .in_scales = true}},
        {gguf::Type::Q4_0,
         {.count = 4, .routing = {.used = 2}, .biases = true, .merged = true, .in_scales = true}},
    };
    for (const auto &[type, experts] : cases) {
        CAPTURE(gguf::traits(type).name);
        TinyShape shape{.layers = 1, .type = type, .experts = experts};
        if (gguf::traits(type).block_size == 64) shape.feed_forward = 128;
        if (gguf::traits(type).block_size == 256) {
            shape.width = shape.feed_forward = 256;
            shape.heads = 8, shape.head_dim_k = shape.head_dim_v = 32;
        }
        const TinyProgram tiny(shape, 19);
        const std::vector<int32_t> tokens = random_tokens(36, 50, 11);
        const auto expected = tests::reference_logits(tiny.program(), tokens);
        Runner gpu(cuda::make_cuda_backend(0), tiny.program());
        const Logits2 whole = gpu.run(tokens, 36);
        const Distance d = distance(expected, whole);
        CHECK(d.kl < 1e-5);
        CHECK(d.other_best == 0);
        Runner cpu(cpu::make_cpu_backend(1), tiny.program());
        const Logits2 by_cpu = cpu.run(tokens, 36);
        std::vector<reference::Row> of_cpu;
        for (const auto &row : by_cpu) of_cpu.push_back(reference::to_row(row));
        // The CPU's 8-bit activations sometimes choose another expert, which is not an error of the GPU.
        CHECK(distance(of_cpu, whole).kl < 1e-3 + 2 * distance(expected, by_cpu).kl);
        simt::settings().seed = 7;
        for (const size_t chunk : {size_t{5}, size_t{33}})
            check_equal(gpu.run(tokens, chunk), whole, "in chunks of " + std::to_string(chunk));
        simt::settings() = {};
    }
}

// Features of GPT-2, OLMo 2 and Falcon that a llama does not have.
TEST_CASE("cuda backend: norms, positions and activations of every kind agree with double precision") {
    const TinyProgram tiny({.layers = 1, .bias = true, .type = gguf::Type::Q8_0}, 53);
    for (const Activation::Kind act :
         {Activation::Kind::GeluErf, Activation::Kind::GeluTanh, Activation::Kind::ReluSquared}) {
        Program program = tiny.program();
        std::mt19937 random(5);
        std::normal_distribution<float> value(0, 1);
        const auto floats = [&](int64_t rows, int64_t cols) {
            auto values = std::make_shared<std::vector<float>>(static_cast<size_t>(rows * cols));
            for (float &v : *values) v = value(random);
            program.weights.push_back({"made here", gguf::Type::F32, rows, cols,
                                       reinterpret_cast<const std::byte *>(values->data())});
            program.constants.push_back(values);
            return static_cast<WeightId>(program.weights.size() - 1);
        };
        std::vector<Step> steps;
        for (Step step : program.steps) {
            if (auto *embed = std::get_if<Embed>(&step)) embed->positions = floats(17, 64);
            if (auto *gate = std::get_if<Activation>(&step)) gate->act = act;
            auto *norm = std::get_if<Norm>(&step);
            if (norm) norm->kind = Norm::Kind::Layer, norm->bias = floats(1, 64);
            steps.push_back(step);
            if (norm == nullptr) continue;
            // Three more norms of its output: one with parts, one with an add, and one without weights.
            const Slot slot = norm->out;
            using Kind = Norm::Kind;
            steps.push_back(Norm{slot, slot, floats(1, 16), 1e-5f, Kind::Rms, kNoWeight, kNoSlot, 4});
            steps.push_back(Norm{slot, slot, floats(1, 64), 1e-5f, Kind::Layer, kNoWeight, slot, 2});
            steps.push_back(Norm{slot, slot, kNoWeight, 1e-5f});
            // Two norms with a scale, one of them with an add.
            steps.push_back(
                Norm{.in = slot, .out = slot, .weight = floats(1, 64), .eps = 1e-5f, .scale = 0.75f});
            steps.push_back(Norm{
                .in = slot, .out = slot, .weight = floats(1, 64), .eps = 1e-5f, .add = slot, .scale = -1.5f});
        }
        program.steps = steps;
        const std::vector<int32_t> tokens = random_tokens(20, 50, 7);
        const auto expected = tests::reference_logits(program, tokens);
        Runner gpu(cuda::make_cuda_backend(0), program);
        const Logits2 whole = gpu.run(tokens, 20);
        const Distance d = distance(expected, whole);
        CHECK(d.kl < 1e-5);
        CHECK(d.other_best == 0);
        check_equal(gpu.run(tokens, 6), whole, "in chunks of 6");
    }
}

TEST_CASE("cuda backend: sequences in a batch are independent, and only requested rows are computed") {
    const TinyProgram tiny({.type = gguf::Type::Q8_0}, 47);
    const std::vector<int32_t> first = random_tokens(9, 50, 1), second = random_tokens(4, 50, 2);
    Runner alone(cuda::make_cuda_backend(0), tiny.program());
    const Logits2 a = alone.run(first, 9), b = alone.run(second, 4);

    auto backend = cuda::make_cuda_backend(0);
    backend->load(tiny.program(), {{kBlocks}}, kMaxTokens);
    std::vector<int32_t> tokens = first, positions(13);
    tokens.insert(tokens.end(), second.begin(), second.end());
    std::iota(positions.begin(), positions.begin() + 9, 0);
    std::iota(positions.begin() + 9, positions.end(), 0);
    const std::vector<BlockId> table_a = {3}, table_b = {11};
    const SequenceSpan spans[] = {{0, 9, 0, {table_a}}, {9, 4, 0, {table_b}}};
    const std::vector<int32_t> rows = {2, 8, 12};
    std::vector<float> logits(rows.size() * 50);
    for (int again = 0; again < 2; ++again) {
        REQUIRE(backend->execute({tokens, positions, spans, rows}, logits));
        check_equal({{logits.begin(), logits.begin() + 50},
                     {logits.begin() + 50, logits.begin() + 100},
                     {logits.begin() + 100, logits.end()}},
                    {a[2], a[8], b[3]}, "side by side");
    }
    std::atomic<bool> stop = true;
    CHECK(!backend->execute({tokens, positions, spans, rows, &stop}, logits));
}

namespace {

// The text of greedy decoding: `count` tokens after a prompt.
std::vector<int32_t> greedy(Runner &runner, std::vector<int32_t> prompt, int count) {
    std::vector<int32_t> text;
    Logits2 logits = runner.run(prompt, prompt.size());
    auto past = static_cast<int32_t>(prompt.size());
    while (count-- > 0) {
        const auto &last = logits.back();
        text.push_back(static_cast<int32_t>(std::max_element(last.begin(), last.end()) - last.begin()));
        logits = runner.run(std::span(text).last(1), 1, past++);
    }
    return text;
}

// Attention with all of its options except those without GPU kernels.
Program with_attention_options(const TinyProgram &tiny, bool temperature, bool chunked) {
    Program program = tiny.program();
    for (Step &step : program.steps)
        if (auto *a = std::get_if<Attention>(&step)) {
            a->norm_after_rope = chunked;
            if (temperature) a->temperature = {.beta = 0.5f, .length = 8, .offset = 1};
            if (chunked) a->window = 9, a->window_kind = Attention::Window::Chunked;
            a->softcap = chunked ? 1.5f : 0;
        }
    return program;
}

}  // namespace

TEST_CASE("cuda backend: every type of cache gives the CPU's text, and its distributions") {
    using enum CacheType;
    for (const auto &[k, v] : {std::pair{F16, F16},
                               {BF16, BF16},
                               {Q8_0, Q8_0},
                               {Q4_0, Q4_0},
                               {FP8, FP8},
                               {Q8_0, F16},
                               {BF16, Q4_0},
                               {Q5_1, IQ4_NL},
                               {Q4_1, Q5_0}}) {
        CAPTURE(static_cast<int>(k));
        CAPTURE(static_cast<int>(v));
        const TinyProgram tiny({.layers = 1,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim_k = 32,
                                .head_dim_v = 24,
                                .head_norm = true,
                                .type = gguf::Type::F32},
                               51);
        const std::vector<int32_t> tokens = random_tokens(40, 50, 9);
        Runner gpu(cuda::make_cuda_backend(0), tiny.program(), k, v);
        Runner cpu(cpu::make_cpu_backend(1), tiny.program(), k, v);
        const Logits2 whole = gpu.run(tokens, 40);
        CHECK(distance(rows_of(cpu.run(tokens, 40)), whole).kl < 1e-3);
        check_equal(gpu.run(tokens, 7), whole, "in chunks");
        const std::vector<int32_t> prompt(tokens.begin(), tokens.begin() + 20);
        CHECK(greedy(gpu, prompt, 12) == greedy(cpu, prompt, 12));
    }
}

TEST_CASE("cuda backend: sinks, temperature, chunks and shared keys and values as on the CPU") {
    const TinyProgram tiny({.heads = 4, .kv_heads = 2, .head_norm = true}, 53);
    const std::vector<int32_t> tokens = random_tokens(48, 50, 11);
    const auto compare = [&](const Program &program, CacheType type) {
        Runner gpu(cuda::make_cuda_backend(0), program, type, type);
        Runner cpu(cpu::make_cpu_backend(1), program, type, type);
        const Logits2 whole = gpu.run(tokens, 48);
        CHECK(distance(rows_of(cpu.run(tokens, 48)), whole).kl < 1e-3);
        check_equal(gpu.run(tokens, 5), whole, "in chunks");
    };
    compare(with_attention_options(tiny, true, false), CacheType::F16);
    compare(with_attention_options(tiny, true, true), CacheType::F16);
    Program sinks = tiny.program();
    for (Step &step : sinks.steps)
        if (auto *a = std::get_if<Attention>(&step)) a->window = 11, a->sink_cells = 3;
    compare(sinks, CacheType::F16);
    compare(sinks, CacheType::Q8_0);
    // The second layer reads the cells that the first has appended.
    Program shared = tiny.program();
    bool first = true;
    for (Step &step : shared.steps)
        if (auto *a = std::get_if<Attention>(&step)) {
            if (!first) a->cache = 0, a->k = a->v = kNoSlot;
            first = false;
        }
    compare(shared, CacheType::F16);
}

TEST_CASE("cuda backend: latent layers and wide heads agree with double precision and the CPU") {
    using enum CacheType;
    const std::vector<int32_t> tokens = random_tokens(30, 50, 15);
    const auto compare = [&](const Program &program, CacheType k, CacheType v) {
        CAPTURE(static_cast<int>(k));
        Runner gpu(cuda::make_cuda_backend(0), program, k, v);
        Runner cpu(cpu::make_cpu_backend(1), program, k, v);
        const Logits2 whole = gpu.run(tokens, 30);
        CHECK(distance(rows_of(cpu.run(tokens, 30)), whole).kl < 1e-3);
        if (k == F16 && v == F16) {
            const Distance d = distance(tests::reference_logits(program, tokens), whole);
            CHECK(d.kl < 1e-5);
            CHECK(d.other_best == 0);
        }
        check_equal(gpu.run(tokens, 7), whole, "in chunks");
    };
    const TinyProgram latent(
        {.layers = 1, .heads = 6, .kv_heads = 1, .head_dim_k = 40, .head_dim_v = 32, .head_norm = true}, 61);
    for (const auto &[k, v] : {std::pair{F16, F16}, {Q8_0, Q8_0}, {Q4_0, F16}})
        compare(with_latents(latent), k, v);
    // Like Gemma 4's full layers, with a second layer that reads the cells of the first.
    const TinyProgram wide({.heads = 2, .kv_heads = 1, .head_dim_k = 264, .head_dim_v = 272}, 62);
    Program shared = wide.program();
    bool first = true;
    for (Step &step : shared.steps)
        if (auto *a = std::get_if<Attention>(&step)) {
            if (!first) a->cache = 0, a->k = a->v = kNoSlot;
            first = false;
        }
    compare(shared, F16, F16);
    compare(wide.program(), Q4_0, Q4_0);
}

TEST_CASE("cuda backend: branches of latent layers read the cells they share with another sequence") {
    const TinyProgram tiny({.layers = 1, .heads = 4, .kv_heads = 1, .head_dim_k = 40, .head_dim_v = 32}, 63);
    const Program program = with_latents(tiny);
    const std::vector<int32_t> text = random_tokens(40, 50, 16);
    Runner alone(cuda::make_cuda_backend(0), program);
    const Logits2 expected = alone.run(text, 40);

    // Both have 34 cells in the cache; of the 6 tokens after them the branch shares 2 and continues
    // differently from the 3rd.
    const auto backend = cuda::make_cuda_backend(0);
    backend->load(program, {{kBlocks}}, kMaxTokens);
    const std::vector<BlockId> trunk = {5, 2}, branch = {5, 9};
    std::vector<int32_t> positions(34);
    std::iota(positions.begin(), positions.end(), 0);
    const SequenceSpan past{0, 34, 0, {trunk}};
    REQUIRE(backend->execute({std::span(text).first(34), positions, {&past, 1}, {}}, {}));
    backend->copy_blocks(0, std::vector<BlockCopy>{{2, 9}});
    std::vector<int32_t> tokens(text.begin() + 34, text.end());
    tokens.push_back(text[36]);
    const std::vector<int32_t> at = {34, 35, 36, 37, 38, 39, 36}, rows = {5, 6};
    const SequenceSpan spans[] = {{0, 6, 34, {trunk}}, {6, 1, 36, {branch}, 2, 0}};
    std::vector<float> logits(2 * 50);
    REQUIRE(backend->execute({tokens, at, spans, rows}, logits));
    check_equal({{logits.begin(), logits.begin() + 50}, {logits.begin() + 50, logits.end()}},
                {expected[39], expected[36]}, "trunk and branch");
}
