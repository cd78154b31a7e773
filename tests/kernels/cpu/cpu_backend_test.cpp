// Whole programs on the CPU: compared with double precision, and bit for bit with every other way of
// computing them (chunks, batches, threads, instruction sets, scattered pages).
#include "kernels/cpu/cpu_backend.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <variant>
#include <vector>

#include "engine/cache/block_table.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/plan.h"
#include "kernels/cpu/pool.h"
#include "kernels/split_backend.h"
#include "tests/support/cache_types.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels;
using cache::BlockPool;
using cache::BlockTable;
using tests::TinyProgram;
using tests::TinyShape;

namespace {

constexpr int32_t kBlocks = 64, kMaxTokens = 128;
using Logits2 = std::vector<std::vector<float>>;  // [token][vocab]

std::vector<int32_t> random_tokens(size_t count, int64_t vocab, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> tokens(count);
    for (int32_t &t : tokens) t = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
    return tokens;
}

class Runner {
  public:
    Runner(const Program &program, int threads, const char *isa = nullptr, CacheType type = CacheType::F16)
        : program_(program), pool_(kBlocks) {
        if (isa)
            setenv("RUNNEL_CPU", isa, 1);
        else
            unsetenv("RUNNEL_CPU");
        backend_ = cpu::make_cpu_backend(threads);
        unsetenv("RUNNEL_CPU");
        backend_->load(program, {{kBlocks}, type, type}, kMaxTokens);
    }

    BlockPool &pool() { return pool_; }

    struct Part {
        BlockTable *sequence;
        std::span<const int32_t> tokens;
    };
    // Appends each part's tokens to its sequence in one batch; logits of all tokens.
    Logits2 step(std::vector<Part> parts, const std::atomic<bool> *cancel = nullptr) {
        std::vector<int32_t> tokens, positions;
        std::vector<SequenceSpan> spans;
        for (const Part &part : parts) {
            const int32_t past = part.sequence->length(), count = static_cast<int32_t>(part.tokens.size());
            REQUIRE(part.sequence->append(count));
            spans.push_back({static_cast<int32_t>(tokens.size()), count, past, {}});
            tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
            for (int32_t i = 0; i < count; ++i) positions.push_back(past + i);
        }
        for (size_t i = 0; i < parts.size(); ++i) spans[i].tables = {parts[i].sequence->table()};
        std::vector<int32_t> rows(tokens.size());
        std::iota(rows.begin(), rows.end(), 0);
        const size_t vocab = static_cast<size_t>(program_.vocab);
        std::vector<float> logits(rows.size() * vocab);
        finished = backend_->execute({tokens, positions, spans, rows, cancel}, logits);
        Logits2 result;
        for (size_t t = 0; t < rows.size(); ++t)
            result.emplace_back(logits.begin() + static_cast<std::ptrdiff_t>(t * vocab),
                                logits.begin() + static_cast<std::ptrdiff_t>((t + 1) * vocab));
        return result;
    }

    // A fresh sequence fed in chunks of the given size.
    Logits2 run(std::span<const int32_t> tokens, size_t chunk) {
        BlockTable sequence(pool_);
        Logits2 all;
        for (size_t at = 0; at < tokens.size(); at += chunk) {
            const Logits2 part = step({{&sequence, tokens.subspan(at, std::min(chunk, tokens.size() - at))}});
            all.insert(all.end(), part.begin(), part.end());
        }
        return all;
    }

    bool finished = false;

  private:
    const Program &program_;
    BlockPool pool_;
    std::unique_ptr<Backend> backend_;
};

void check_equal(const Logits2 &a, const Logits2 &b, const std::string &what) {
    CAPTURE(what);
    REQUIRE(a.size() == b.size());
    for (size_t t = 0; t < a.size(); ++t) {
        CAPTURE(t);
        REQUIRE(std::memcmp(a[t].data(), b[t].data(), a[t].size() * sizeof(float)) == 0);
    }
}

const std::vector<const char *> &instruction_sets() {
    static const std::vector<const char *> available = [] {
        std::vector<const char *> names = {"scalar"};
        for (const char *name : {"avx2", "avx512", "amx"}) {
            setenv("RUNNEL_CPU", name, 1);
            try {
                cpu::instruction_set();
                names.push_back(name);
            } catch (const BackendError &) {
                MESSAGE("this CPU has no " << std::string(name));
            }
            unsetenv("RUNNEL_CPU");
        }
        return names;
    }();
    return available;
}

const std::vector<TinyShape> &shapes() {
    static const std::vector<TinyShape> all = {
        {},
        {.layers = 1,
         .width = 33,
         .feed_forward = 47,
         .vocab = 11,
         .heads = 1,
         .kv_heads = 1,
         .head_dim_k = 34,
         .head_dim_v = 33},
        {.layers = 3, .heads = 6, .kv_heads = 1, .head_dim_k = 32, .head_dim_v = 24, .head_norm = true},
        {.heads = 4, .kv_heads = 4, .window = 37, .pairs = RopeTable::Pairs::Halves, .bias = true},
        {.layers = 5, .head_dim_k = 24, .bias = true, .varied = true},
        {.layers = 5, .width = 96, .heads = 3, .kv_heads = 1, .varied = true},
    };
    return all;
}

TinyShape mixture(const tests::TinyExperts &experts) {
    return {.feed_forward = 80, .head_norm = true, .experts = experts};
}

// Every way of routing, and of storing experts.
std::vector<TinyShape> mixtures() {
    using Score = Routing::Score;
    return {
        mixture({.count = 5, .routing = {.used = 2}}),
        mixture({.count = 9, .routing = {.used = 3, .normalize = true, .scale = 2.5f}, .shared = true}),
        mixture({.count = 6, .routing = {.used = 3, .normalize = true}, .scales = true}),
        mixture({.count = 4,
                 .routing = {.score = Score::SelectedSoftmax, .used = 4},
                 .biases = true,
                 .act = Activation::Kind::SiluClamped}),
        mixture({.count = 16,
                 .routing = {.score = Score::Sigmoid,
                             .used = 5,
                             .groups = 4,
                             .groups_used = 2,
                             .normalize = true,
                             .scale = 1.5f},
                 .selection_bias = true,
                 .merged = true}),
        mixture({.count = 8,
                 .routing = {.used = 2, .groups = 2, .groups_used = 1, .group_best = 1},
                 .biases = true,
                 .merged = true}),
        mixture({.count = 3,
                 .routing = {.score = Score::Sigmoid, .used = 1},
                 .weights_on_input = true,
                 .shared = true}),
        mixture({.count = 6, .routing = {.score = Score::SparseMixer, .used = 2}}),
        mixture({.count = 6, .routing = {.score = Score::SqrtSoftplus, .used = 3, .normalize = true}}),
        mixture({.count = 6, .routing = {.used = 3}, .act = Activation::Kind::SiluThenLimit}),
        mixture({.count = 4, .routing = {.used = 2}, .merged = true, .act = Activation::Kind::LimitThenSilu}),
        mixture({.count = 6, .routing = {.used = 3}, .biases = true, .in_scales = true}),
        mixture({.count = 4, .routing = {.used = 2}, .merged = true, .in_scales = true}),
        mixture({.count = 4,
                 .routing = {.score = Score::Sigmoid, .used = 2},
                 .weights_on_input = true,
                 .in_scales = true}),
    };
}

}  // namespace

TEST_CASE("cpu backend: logits agree with double precision") {
    std::vector<TinyShape> all = shapes();
    for (const TinyShape &shape : mixtures()) all.push_back(shape);
    for (size_t i = 0; i < all.size(); ++i)
        for (const char *isa : instruction_sets()) {
            CAPTURE(i);
            CAPTURE(isa);
            const TinyProgram tiny(all[i], 7);
            const std::vector<int32_t> tokens = random_tokens(75, all[i].vocab, 3);
            const auto expected = tests::reference_logits(tiny.program(), tokens);
            const Logits2 got = Runner(tiny.program(), 2, isa).run(tokens, 40);
            for (size_t t = 0; t < tokens.size(); ++t)
                for (size_t v = 0; v < expected[t].size(); ++v) {
                    CAPTURE(t);
                    REQUIRE(static_cast<double>(got[t][v]) ==
                            doctest::Approx(expected[t][v]).epsilon(2e-3).scale(1));
                }
        }
}

TEST_CASE("cpu backend: random programs agree with double precision") {
    for (uint32_t seed = 100; seed < 140; ++seed) {
        CAPTURE(seed);
        const TinyShape shape{
            .width = 48, .feed_forward = 40, .head_dim_k = 20, .bias = true, .varied = true};
        const TinyProgram tiny(shape, seed);
        const std::vector<int32_t> tokens = random_tokens(60, shape.vocab, seed);
        const auto expected = tests::reference_logits(tiny.program(), tokens);
        const Logits2 got = Runner(tiny.program(), 2).run(tokens, 17);
        for (size_t t = 0; t < tokens.size(); ++t)
            for (size_t v = 0; v < expected[t].size(); ++v) {
                CAPTURE(t);
                REQUIRE(static_cast<double>(got[t][v]) ==
                        doctest::Approx(expected[t][v]).epsilon(2e-3).scale(1));
            }
    }
}

TEST_CASE("cpu backend: chunks, threads and instruction sets change no bit") {
    std::vector<TinyShape> all = shapes();
    for (gguf::Type type : {gguf::Type::Q4_0, gguf::Type::Q8_0, gguf::Type::F16})
        all.push_back({.feed_forward = 160, .type = type});
    for (gguf::Type type : {gguf::Type::Q4_K, gguf::Type::Q6_K})
        all.push_back({.width = 256,
                       .feed_forward = 512,
                       .heads = 4,
                       .kv_heads = 2,
                       .head_dim_k = 64,
                       .head_dim_v = 64,
                       .type = type});
    for (size_t i = 0; i < all.size(); ++i) {
        CAPTURE(i);
        const TinyProgram tiny(all[i], 11);
        const std::vector<int32_t> tokens = random_tokens(100, all[i].vocab, 5);
        const Logits2 expected = Runner(tiny.program(), 1, "scalar").run(tokens, 100);
        for (const std::vector<float> &row : expected)
            REQUIRE(std::all_of(row.begin(), row.end(), [](float logit) { return std::isfinite(logit); }));
        for (const char *isa : instruction_sets())
            for (int threads : {1, 2, 3}) {
                Runner runner(tiny.program(), threads, isa);
                // All chunk sizes with two threads; one chunk size with other numbers of threads.
                std::vector<size_t> chunks = {1, 3, 7, 32, 33, 100};
                if (threads != 2) chunks = {chunks[(i + static_cast<size_t>(threads)) % chunks.size()]};
                for (const size_t chunk : chunks)
                    check_equal(runner.run(tokens, chunk), expected,
                                std::string(isa) + ", " + std::to_string(threads) + " threads, chunk " +
                                    std::to_string(chunk));
            }
    }
}

TEST_CASE("cpu backend: chunks and threads change no bit of any kind of cache") {
    for (const CacheType type : runnel::testing::kCacheTypes)
        for (const int32_t kv_heads : {1, 2}) {
            CAPTURE(static_cast<int>(type));
            CAPTURE(kv_heads);
            const TinyShape shape{.layers = 1, .heads = 4, .kv_heads = kv_heads, .head_dim_k = 64};
            const TinyProgram tiny(shape, 23);
            const std::vector<int32_t> tokens = random_tokens(100, shape.vocab, 6);
            const Logits2 expected = Runner(tiny.program(), 1, nullptr, type).run(tokens, 1);
            for (int threads : {2, 3, 4})
                for (size_t chunk : {7, 32, 33, 100}) {
                    Runner runner(tiny.program(), threads, nullptr, type);
                    for (int again = 0; again < 3; ++again)
                        check_equal(runner.run(tokens, chunk), expected,
                                    std::to_string(threads) + " threads, chunk " + std::to_string(chunk));
                }
        }
}

// Tokens 16 apart, whose keys share bytes, computed by two threads at the same time.
TEST_CASE("cpu backend: threads do not overwrite each other's keys") {
    const TinyShape shape{.layers = 6, .heads = 1, .kv_heads = 1, .head_dim_k = 128};
    const TinyProgram tiny(shape, 31);
    const std::vector<int32_t> tokens = random_tokens(64, shape.vocab, 9);
    const Logits2 expected = Runner(tiny.program(), 1, nullptr, CacheType::Q5_0).run(tokens, 32);
    Runner runner(tiny.program(), 2, nullptr, CacheType::Q5_0);
    for (int again = 0; again < 100; ++again)
        check_equal(runner.run(tokens, 32), expected, "run " + std::to_string(again));
}

TEST_CASE("cpu backend: a partition with only the logits computes the requested rows") {
    const TinyShape shape{.layers = 1};
    const TinyProgram tiny(shape, 29);
    const Program &program = tiny.program();
    std::vector<uint8_t> device(program.steps.size(), 0);
    device.back() = 1;
    std::vector<std::unique_ptr<Backend>> two;
    for (int i = 0; i < 2; ++i) two.push_back(cpu::make_cpu_backend(1));
    const auto backend = make_split_backend(std::move(two), [&](const Program &) { return device; });
    backend->load(program, {{kBlocks}}, kMaxTokens);
    const std::vector<int32_t> tokens = random_tokens(9, shape.vocab, 8);
    const Logits2 expected = Runner(program, 1).run(tokens, 9);
    std::vector<int32_t> positions(tokens.size());
    std::iota(positions.begin(), positions.end(), 0);
    const std::vector<BlockId> table{0};
    const std::vector<SequenceSpan> spans{{0, static_cast<int32_t>(tokens.size()), 0, {table}}};
    for (const std::vector<int32_t> &rows : {std::vector<int32_t>{8}, {2, 5}, {}}) {
        CAPTURE(rows.size());
        std::vector<float> logits(rows.size() * static_cast<size_t>(program.vocab));
        REQUIRE(backend->execute({tokens, positions, spans, rows}, logits));
        for (size_t i = 0; i < rows.size(); ++i)
            REQUIRE(std::equal(expected[static_cast<size_t>(rows[i])].begin(),
                               expected[static_cast<size_t>(rows[i])].end(),
                               logits.begin() + static_cast<std::ptrdiff_t>(i) * program.vocab));
    }
}

TEST_CASE("cpu backend: experts: chunks, threads and instruction sets change no bit") {
    std::vector<TinyShape> all = mixtures();
    for (auto [type, hidden] : {std::pair{gguf::Type::Q4_K, 256},
                                {gguf::Type::MXFP4, 256},
                                {gguf::Type::Q4_K, 512},
                                {gguf::Type::MXFP4, 320}})
        all.push_back({.layers = 1,
                       .width = 256,
                       .feed_forward = hidden,
                       .head_dim_k = 64,
                       .head_dim_v = 64,
                       .type = type,
                       .experts = {.count = 12, .routing = {.used = 4, .normalize = true}, .shared = true}});
    for (size_t i = 0; i < all.size(); ++i) {
        CAPTURE(i);
        const TinyProgram tiny(all[i], 11);
        const std::vector<int32_t> tokens = random_tokens(60, all[i].vocab, 5);
        const Logits2 expected = Runner(tiny.program(), 1, "scalar").run(tokens, 60);
        for (const char *isa : instruction_sets())
            for (size_t chunk : {1, 5, 9, 60})
                check_equal(Runner(tiny.program(), 2, isa).run(tokens, chunk), expected,
                            std::string(isa) + ", chunk " + std::to_string(chunk));
        check_equal(Runner(tiny.program(), 3).run(tokens, 20), expected, "3 threads");
    }
}

TEST_CASE("cpu backend: a sequence is not changed by others in its batch, nor by scattered pages") {
    const TinyShape shape{.window = 50, .bias = true};
    const TinyProgram tiny(shape, 13);
    Runner runner(tiny.program(), 2);
    std::vector<std::vector<int32_t>> texts;
    std::vector<Logits2> alone;
    for (uint32_t s = 0; s < 4; ++s) {
        texts.push_back(random_tokens(60 + 17 * s, shape.vocab, 100 + s));
        alone.push_back(runner.run(texts.back(), 64));
    }
    std::vector<BlockTable> sequences;
    for (size_t s = 0; s < texts.size(); ++s) sequences.emplace_back(runner.pool());
    std::vector<Logits2> together(texts.size());
    const uint32_t seed = 77;
    CAPTURE(seed);
    std::mt19937 random(seed);
    for (bool more = true; more;) {
        std::vector<Runner::Part> parts;
        std::vector<size_t> owners;
        for (size_t s = 0; s < texts.size(); ++s) {
            const size_t done = together[s].size(), left = texts[s].size() - done;
            const size_t count = std::min<size_t>(left, random() % 20);
            if (count == 0) continue;
            parts.push_back({&sequences[s], std::span(texts[s]).subspan(done, count)});
            owners.push_back(s);
        }
        if (!parts.empty()) {
            const Logits2 logits = runner.step(parts);
            size_t at = 0;
            for (size_t p = 0; p < parts.size(); ++p)
                for (size_t i = 0; i < parts[p].tokens.size(); ++i)
                    together[owners[p]].push_back(logits[at++]);
        }
        more = false;
        for (size_t s = 0; s < texts.size(); ++s) more = more || together[s].size() < texts[s].size();
    }
    for (size_t s = 0; s < texts.size(); ++s)
        check_equal(together[s], alone[s], "sequence " + std::to_string(s));
}

TEST_CASE("cpu backend: rolling back to any earlier length continues as a fresh run") {
    const TinyShape shape{.window = 40};
    const TinyProgram tiny(shape, 17);
    Runner runner(tiny.program(), 2);
    const std::vector<int32_t> text = random_tokens(70, shape.vocab, 1),
                               other = random_tokens(70, shape.vocab, 2);
    for (int32_t keep : {0, 1, 31, 32, 33, 45, 63, 64, 69}) {
        CAPTURE(keep);
        BlockTable sequence(runner.pool());
        runner.step({{&sequence, text}});
        sequence.truncate(keep);
        const Logits2 continued =
            runner.step({{&sequence, std::span(other).subspan(static_cast<size_t>(keep))}});
        std::vector<int32_t> fresh(text.begin(), text.begin() + keep);
        fresh.insert(fresh.end(), other.begin() + keep, other.end());
        const Logits2 expected = runner.run(fresh, 70);
        check_equal(continued, {expected.begin() + keep, expected.end()}, "after roll-back");
    }
}

TEST_CASE("cpu backend: only the requested logits are computed, with the same bits") {
    const TinyProgram tiny({}, 19);
    auto backend = cpu::make_cpu_backend(2);
    backend->load(tiny.program(), {{kBlocks}}, kMaxTokens);
    BlockPool pool(kBlocks);
    const std::vector<int32_t> tokens = random_tokens(50, 50, 4);
    std::vector<int32_t> positions(50);
    std::iota(positions.begin(), positions.end(), 0);
    const auto run = [&](std::vector<int32_t> rows) {
        BlockTable sequence(pool);
        REQUIRE(sequence.append(50));
        const SequenceSpan span{0, 50, 0, {sequence.table()}};
        std::vector<float> logits(rows.size() * 50);
        REQUIRE(backend->execute({tokens, positions, {&span, 1}, rows}, logits));
        return logits;
    };
    std::vector<int32_t> every(50);
    std::iota(every.begin(), every.end(), 0);
    const std::vector<float> all = run(every);
    for (const std::vector<int32_t> &rows : {std::vector<int32_t>{49}, {0, 7, 8, 31}, {}}) {
        const std::vector<float> some = run(rows);
        for (size_t r = 0; r < rows.size(); ++r)
            CHECK(std::memcmp(some.data() + r * 50, all.data() + static_cast<size_t>(rows[r]) * 50,
                              50 * sizeof(float)) == 0);
    }
}

TEST_CASE("cpu backend: a cancelled batch says so and leaves earlier cells intact") {
    const TinyProgram tiny({}, 23);
    Runner runner(tiny.program(), 2);
    const std::vector<int32_t> tokens = random_tokens(64, 50, 6);
    const Logits2 expected = runner.run(tokens, 64);
    BlockTable sequence(runner.pool());
    runner.step({{&sequence, std::span(tokens).first(40)}});
    const std::atomic<bool> cancel = true;
    runner.step({{&sequence, std::span(tokens).subspan(40)}}, &cancel);
    CHECK_FALSE(runner.finished);
    sequence.truncate(40);
    const Logits2 rest = runner.step({{&sequence, std::span(tokens).subspan(40)}});
    CHECK(runner.finished);
    check_equal(rest, {expected.begin() + 40, expected.end()}, "after cancellation");
}

TEST_CASE("cpu backend: an instruction set that does not exist is refused") {
    setenv("RUNNEL_CPU", "mmx", 1);
    CHECK_THROWS_AS(cpu::make_cpu_backend(1), BackendError);
    unsetenv("RUNNEL_CPU");
}

// Only embedding, norm and output: still only the requested rows are computed, because the caller's
// buffer has no space for more.
TEST_CASE("cpu backend: a program without attention computes only the requested logits") {
    const TinyProgram tiny({.layers = 0}, 31);
    const std::vector<int32_t> tokens = random_tokens(20, 50, 8);
    std::vector<int32_t> positions(20);
    std::iota(positions.begin(), positions.end(), 0);
    const SequenceSpan span{0, 20, 0, {}};
    const auto expected = tests::reference_logits(tiny.program(), tokens);
    for (int threads : {1, 2}) {
        auto backend = cpu::make_cpu_backend(threads);
        backend->load(tiny.program(), {}, kMaxTokens);
        const std::vector<int32_t> rows = {3, 19};
        std::vector<float> logits(rows.size() * 50 + 18 * 50, 12345);  // with a margin that must not change
        REQUIRE(backend->execute({tokens, positions, {&span, 1}, rows}, std::span(logits).first(100)));
        for (size_t r = 0; r < rows.size(); ++r)
            for (size_t i = 0; i < 50; ++i)
                CHECK(static_cast<double>(logits[r * 50 + i]) ==
                      doctest::Approx(expected[static_cast<size_t>(rows[r])][i]).epsilon(1e-4));
        CHECK(std::all_of(logits.begin() + 100, logits.end(), [](float x) { return x == 12345; }));
    }
}

TEST_CASE("cpu backend: a linear step of any number of parts, several of them with an add") {
    const TinyProgram tiny({.layers = 1}, 37);
    Program program = tiny.program();
    for (Step &step : program.steps) {
        auto *linear = std::get_if<Linear>(&step);
        if (!linear || linear->parts.size() != 2) continue;  // gate and up
        // Six parts: a phase can have at most four, and at most one with a product buffer.
        const std::vector<Linear::Part> pair = linear->parts;
        for (int copy = 0; copy < 2; ++copy)
            for (Linear::Part part : pair) {
                program.slots.push_back(program.slots[static_cast<size_t>(part.out)]);
                part.add = part.out;
                part.out = static_cast<Slot>(program.slots.size() - 1);
                linear->parts.push_back(part);
            }
        const auto parts_of_program = cpu::plan(program);
        REQUIRE(parts_of_program.size() == 1);
        for (const cpu::Phase &phase : parts_of_program.front())
            if (const auto *multiply = std::get_if<cpu::MultiplyPhase>(&phase)) {
                const auto &parts = multiply->step.parts;
                CHECK(parts.size() <= static_cast<size_t>(cpu::Pool::kLoops));
                CHECK(std::count_if(parts.begin(), parts.end(),
                                    [](const Linear::Part &p) { return p.add != kNoSlot; }) <= 1);
            }
    }
    const std::vector<int32_t> tokens = random_tokens(30, 50, 9);
    for (int threads : {1, 2, 4})
        check_equal(Runner(program, threads).run(tokens, 7), Runner(tiny.program(), 1).run(tokens, 30),
                    "with " + std::to_string(threads) + " threads");
}

TEST_CASE("cpu backend: a cache whose size overflows is refused") {
    Program program;
    program.cache_layers = {{1 << 30, 1, 1}};
    try {
        const cpu::CacheMemory memory(program, {{1 << 27}});  // 2^37 bytes a block: 2^64 in all
        FAIL("accepted");
    } catch (const BackendError &error) {
        CHECK(error.kind == BackendError::Kind::OutOfMemory);
        CHECK(std::string(error.what()).find("K/V cache") != std::string::npos);
    }
}

TEST_CASE("cpu backend: a cache beyond the address space is refused before anything runs") {
    const TinyProgram tiny({.layers = 64, .width = 8, .feed_forward = 8, .vocab = 8}, 29);
    REQUIRE(cache_block_bytes(tiny.program(), 0) == size_t{1} << 18);  // 2^49 bytes in all
    auto backend = cpu::make_cpu_backend(1);
    try {
        backend->load(tiny.program(), {{INT32_MAX}}, kMaxTokens);
        FAIL("accepted");
    } catch (const BackendError &error) {
        CHECK(error.kind == BackendError::Kind::OutOfMemory);
        CHECK(std::string(error.what()).find("a smaller context (-c)") != std::string::npos);
    }
}
