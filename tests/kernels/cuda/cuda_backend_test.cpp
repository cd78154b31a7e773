// Whole programs on the emulated device: against double precision and the CPU, and against themselves in
// every other way of computing them, bit for bit.
#include "kernels/cuda/cuda_backend.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "tests/simt/simt.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels;
using tests::TinyProgram;
using tests::TinyShape;

namespace {

constexpr int32_t kBlocks = 16, kMaxTokens = 48;
using Logits2 = std::vector<std::vector<float>>;  // [token][vocab]

std::vector<int32_t> random_tokens(size_t count, int64_t vocab, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> tokens(count);
    for (int32_t &t : tokens) t = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
    return tokens;
}

// One sequence on a backend. Its blocks are handed out backwards, so that pages are not in order.
class Runner {
  public:
    Runner(std::unique_ptr<Backend> backend, const Program &program)
        : program_(program), backend_(std::move(backend)) {
        backend_->load(program, {{kBlocks}}, kMaxTokens);
        for (int32_t i = 0; i < kBlocks; ++i) table_.push_back(kBlocks - 1 - i);
    }

    // Logits of all tokens, fed in chunks to cells from `past` on.
    Logits2 run(std::span<const int32_t> tokens, size_t chunk, int32_t past = 0) {
        Logits2 all;
        for (size_t at = 0; at < tokens.size(); at += chunk) {
            const auto part = tokens.subspan(at, std::min(chunk, tokens.size() - at));
            const auto first = past + static_cast<int32_t>(at);
            std::vector<int32_t> positions(part.size()), rows(part.size());
            std::iota(positions.begin(), positions.end(), first);
            std::iota(rows.begin(), rows.end(), 0);
            const SequenceSpan span{0, static_cast<int32_t>(part.size()), first, {table_}};
            const size_t vocab = static_cast<size_t>(program_.vocab);
            std::vector<float> logits(part.size() * vocab, 12345);
            REQUIRE(backend_->execute({part, positions, {&span, 1}, rows}, logits));
            for (size_t t = 0; t < part.size(); ++t)
                all.emplace_back(logits.begin() + static_cast<std::ptrdiff_t>(t * vocab),
                                 logits.begin() + static_cast<std::ptrdiff_t>((t + 1) * vocab));
        }
        return all;
    }
    Backend &backend() { return *backend_; }

  private:
    const Program &program_;
    std::unique_ptr<Backend> backend_;
    std::vector<BlockId> table_;
};

void check_equal(const Logits2 &a, const Logits2 &b, const std::string &what) {
    CAPTURE(what);
    REQUIRE(a.size() == b.size());
    for (size_t t = 0; t < a.size(); ++t) {
        CAPTURE(t);
        REQUIRE(std::memcmp(a[t].data(), b[t].data(), a[t].size() * sizeof(float)) == 0);
    }
}

// Mean KL divergence of the distributions that logits stand for, in nats; and how often the best token
// differs.
struct Distance {
    double kl = 0;
    int other_best = 0;
};
Distance distance(const std::vector<reference::Row> &expected, const Logits2 &logits) {
    Distance d;
    for (size_t t = 0; t < logits.size(); ++t) {
        const reference::Row y = reference::to_row(logits[t]);
        const double p0 = reference::log_sum_exp(expected[t]), q0 = reference::log_sum_exp(y);
        for (size_t i = 0; i < y.size(); ++i)
            d.kl += std::exp(expected[t][i] - p0) * ((expected[t][i] - p0) - (y[i] - q0)) /
                    static_cast<double>(logits.size());
        d.other_best += std::max_element(y.begin(), y.end()) - y.begin() !=
                        std::max_element(expected[t].begin(), expected[t].end()) - expected[t].begin();
    }
    return d;
}

}  // namespace

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
    const TinyProgram tiny({.heads = 6, .kv_heads = 2, .type = gguf::Type::Q4_0}, 43);
    const std::vector<int32_t> tokens = random_tokens(45, 50, 3);
    Runner runner(cuda::make_cuda_backend(0), tiny.program());
    const Logits2 whole = runner.run(tokens, 45);
    for (const size_t chunk : {size_t{1}, size_t{5}, size_t{16}, size_t{33}})
        check_equal(runner.run(tokens, chunk), whole, "in chunks of " + std::to_string(chunk));
    simt::settings().seed = 99;
    simt::settings().multiprocessors = 1;
    Runner other(cuda::make_cuda_backend(0), tiny.program());
    check_equal(other.run(tokens, 7), whole, "one multiprocessor, another order");
    simt::settings() = {};
}

TEST_CASE("cuda backend: several sequences in a batch, each as by itself, and only the rows asked for") {
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

TEST_CASE("cuda backend: what does not fit, and what has no kernel, is said before anything is uploaded") {
    const TinyProgram tiny({.layers = 1}, 5);
    simt::settings().memory = size_t{65} << 20;
    try {
        cuda::make_cuda_backend(0)->load(tiny.program(), {{4096}}, kMaxTokens);
        FAIL("accepted");
    } catch (const BackendError &error) {
        CHECK(error.kind == BackendError::Kind::OutOfMemory);
        CHECK(std::string(error.what()).find("choose a smaller context with -c") != std::string::npos);
    }
    simt::settings() = {};
    Program program = tiny.program();
    for (Step &step : program.steps)
        if (auto *norm = std::get_if<Norm>(&step)) norm->parts = 2;
    try {
        cuda::make_cuda_backend(0)->load(program, {{4}}, kMaxTokens);
        FAIL("accepted");
    } catch (const BackendError &error) {
        CHECK(error.kind == BackendError::Kind::Failed);
        CHECK(std::string(error.what()) ==
              "the GPU has no kernel for this kind of norm yet: run it with --device cpu");
    }
}
