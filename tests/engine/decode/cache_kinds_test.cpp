// Whole programs on the CPU over every kind of cache: windows that free blocks, sinks, forks, quantized K and
// V.
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "engine/decode/single_sequence.h"
#include "engine/model/window.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/cache_types.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::decode;
using kernels::CacheType;
using tests::TinyProgram;

namespace {

std::vector<TokenId> random_tokens(size_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<TokenId> tokens(count);
    for (TokenId &t : tokens) t = static_cast<TokenId>(random() % 50);
    return tokens;
}

Executor executor_for(const kernels::Program &program, const ExecutorOptions &options,
                      const char *isa = nullptr, int threads = 2) {
    if (isa) setenv("RUNNEL_CPU", isa, 1);
    auto backend = kernels::cpu::make_cpu_backend(threads);
    unsetenv("RUNNEL_CPU");
    return Executor(std::move(backend), program, options);
}

std::vector<float> logits_after(SingleSequence &session, std::span<const TokenId> tokens) {
    REQUIRE(session.feed(tokens));
    return {session.logits().begin(), session.logits().end()};
}

bool same(const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("cache kinds: with a window, memory is bounded and no bit changes") {
    const TinyProgram tiny({.window = 40}, 3);
    const std::vector<TokenId> text = random_tokens(900, 1);
    Executor small = executor_for(tiny.program(), {.context = 1000, .batch = 32, .slack = 40});
    Executor large = executor_for(tiny.program(), {.context = 1000, .batch = 128, .slack = 2000});
    CHECK(small.cache().pool(0).size() <= 8);
    CHECK(large.cache().pool(0).size() >= 32);
    SingleSequence a(small), b(large);
    for (size_t at = 0; at < text.size();) {
        const size_t count = std::min<size_t>(text.size() - at, at < 300 ? 77 : 1 + at % 5);
        REQUIRE(same(logits_after(a, std::span(text).subspan(at, count)),
                     logits_after(b, std::span(text).subspan(at, count))));
        at += count;
    }
    for (const size_t length :
         {size_t{897}, size_t{870}, size_t{500}, size_t{33}}) {  // in the slack, and beyond
        CAPTURE(length);
        a.truncate(length);
        b.truncate(length);
        CHECK(a.tokens() == b.tokens());
        CHECK((a.sequence().pending() == 0) == (length >= 870));
        const std::vector<TokenId> more = random_tokens(9, static_cast<uint32_t>(length));
        CHECK(same(logits_after(a, more), logits_after(b, more)));
    }
}

TEST_CASE("cache kinds: a window with sinks gives the logits of the sinks and the window alone") {
    // With one layer, keys and values depend only on token and position, so the remaining text determines
    // them.
    for (const auto &[window, sinks] : std::vector<std::pair<int32_t, int32_t>>{{40, 4}, {33, 1}, {20, 40}}) {
        const TinyProgram tiny({.layers = 1, .head_norm = true}, 5);
        kernels::Program program = tiny.program();
        model::impose_window(program, window, sinks);
        Executor executor = executor_for(program, {.context = 600, .batch = 50, .slack = 20});
        SingleSequence session(executor);
        const std::vector<TokenId> text = random_tokens(500, 2);
        for (const size_t length : {10, 40, 44, 45, 61, 300, 500}) {
            const auto logits = logits_after(
                session, std::span(text).subspan(session.tokens().size(), length - session.tokens().size()));
            std::vector<TokenId> left(
                text.begin(),
                text.begin() + std::min<std::ptrdiff_t>(sinks, static_cast<std::ptrdiff_t>(length)));
            const size_t first =
                std::max(left.size(), length - std::min(length, static_cast<size_t>(window)));
            left.insert(left.end(), text.begin() + static_cast<std::ptrdiff_t>(first),
                        text.begin() + static_cast<std::ptrdiff_t>(length));
            const auto expected = tests::reference_logits(tiny.program(), left).back();
            CAPTURE(length);
            for (size_t id = 0; id < expected.size(); ++id)
                REQUIRE(static_cast<double>(logits[id]) ==
                        doctest::Approx(expected[id]).epsilon(2e-3).scale(1));
        }
        const auto table = executor.cache().pool(0);
        CHECK(table.size() - table.free_blocks() <= table.size());
    }
}

TEST_CASE("cache kinds: in every type, chunks, threads, instruction sets and forks change no bit") {
    const TinyProgram tiny({.heads = 4, .kv_heads = 2, .head_dim_k = 32, .head_dim_v = 24}, 7);
    const std::vector<TokenId> text = random_tokens(90, 3), more = random_tokens(8, 4);
    std::string errors;
    const ExecutorOptions plain{.context = 200, .batch = 64};
    Executor exact_executor = executor_for(tiny.program(), plain);
    SingleSequence exact_session(exact_executor);
    const std::vector<float> exact = logits_after(exact_session, text);
    for (const CacheType type : runnel::testing::kCacheTypes) {
        CAPTURE(static_cast<int>(type));
        ExecutorOptions options = plain;
        options.sequences = 3;
        options.types = {type, type};
        Executor executor = executor_for(tiny.program(), options, "scalar", 1);
        SingleSequence session(executor);
        const std::vector<float> expected = logits_after(session, text), after = logits_after(session, more);
        double sum = 0;
        for (size_t i = 0; i < exact.size(); ++i) sum += std::pow(double(exact[i]) - double(expected[i]), 2);
        const double error = std::sqrt(sum / double(exact.size()));
        errors += " " + std::to_string(error);
        if (type == CacheType::F16) CHECK(error == 0);
        CHECK(error < (cache_row_bytes(type, 32) > 32 ? 0.1 : 1));
        for (const char *isa : {static_cast<const char *>(nullptr), "scalar"})
            for (const int32_t chunk : {1, 7, 64}) {
                options.batch = chunk;
                Executor other = executor_for(tiny.program(), options, isa, 2);
                SingleSequence again(other);
                CHECK(same(logits_after(again, text), expected));
                SequenceCache fork = other.fork(other.new_sequence());
                CHECK(fork.length() == 0);
                CHECK(same(logits_after(again, more), after));
            }
        // Two forks get different continuations.
        SequenceCache trunk = executor.new_sequence();
        std::vector<float> logits;
        const StepInput all{&trunk, std::span(text).first(64), 1};
        REQUIRE(executor.step({&all, 1}, logits));
        SequenceCache branch = executor.fork(trunk);
        const StepInput both[] = {{&trunk, std::span(text).subspan(64), 1}, {&branch, more, 1}};
        REQUIRE(executor.step(both, logits));
        CHECK(std::memcmp(logits.data(), expected.data(), expected.size() * sizeof(float)) == 0);
    }
    MESSAGE("logit error of the types: " << errors);
}
