// Spans that see both ways (SequenceSpan::both_ways) in whole programs on every kind of device: compared with double
// precision, and bit for bit with every other way of computing them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/group_backend.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/split_backend.h"
#include "kernels/tensor_backend.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels;
using tests::TinyProgram;
using tests::TinyShape;
using tests::with_separate_appends;

namespace {

constexpr int32_t kPool = 48, kMaxTokens = 128, kVocab = 50;
using Floats = std::vector<float>;

// A sequence whose last `block` tokens are one span.
struct Text {
    std::vector<int32_t> tokens;
    int32_t block;
    bool both_ways;
    int32_t past() const { return static_cast<int32_t>(tokens.size()) - block; }
};

// With pasts and blocks that cross pages; at least one of them sees both ways.
std::vector<Text> random_texts(uint32_t seed) {
    std::mt19937 random(seed);
    const auto below = [&](int32_t n) { return static_cast<int32_t>(random() % static_cast<uint32_t>(n)); };
    std::vector<Text> texts(static_cast<size_t>(2 + below(3)));
    for (Text &text : texts) {
        const int32_t past = below(3) == 0 ? 24 + below(12) : below(100);
        text.block = below(4) == 0 ? 1 : 1 + below(24);
        text.both_ways = &text == &texts.front() || below(2) == 0;
        for (int32_t i = 0; i < past + text.block; ++i) text.tokens.push_back(below(kVocab));
    }
    return texts;
}

std::unique_ptr<Backend> loaded(std::unique_ptr<Backend> backend, const Program &program,
                                CacheType type = CacheType::F16) {
    backend->load(program, {{kPool}, type, type}, kMaxTokens);
    return backend;
}

// Logits of the tokens of all blocks, computed in one batch. The pages are in an order that depends on `paging`.
Floats logits_of(Backend &backend, std::span<const Text> texts, uint32_t paging) {
    std::vector<BlockId> ids(kPool);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(paging));
    std::vector<int32_t> tokens, positions;
    std::vector<SequenceSpan> spans;
    size_t next = 0;
    for (const Text &text : texts) {
        const auto pages = (text.tokens.size() + kBlockTokens - 1) / kBlockTokens;
        REQUIRE(next + pages <= ids.size());
        const std::span<const BlockId> table = std::span(ids).subspan(next, pages);
        next += pages;
        const std::span all(text.tokens);
        const auto past = static_cast<size_t>(text.past());
        std::vector<int32_t> before(text.tokens.size());
        std::iota(before.begin(), before.end(), 0);
        const SequenceSpan first{0, text.past(), 0, {table}};
        if (past > 0)
            REQUIRE(backend.execute({all.first(past), std::span(before).first(past), {&first, 1}, {}}, {}));
        SequenceSpan block{static_cast<int32_t>(tokens.size()), text.block, text.past(), {table}};
        block.both_ways = text.both_ways;
        spans.push_back(block);
        tokens.insert(tokens.end(), text.tokens.begin() + text.past(), text.tokens.end());
        positions.insert(positions.end(), before.begin() + text.past(), before.end());
    }
    std::vector<int32_t> rows(tokens.size());
    std::iota(rows.begin(), rows.end(), 0);
    Floats logits(rows.size() * kVocab, 12345);
    REQUIRE(backend.execute({tokens, positions, spans, rows}, logits));
    return logits;
}

bool same(std::span<const float> a, std::span<const float> b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

double largest_difference(const Floats &a, const Floats &b) {
    REQUIRE(a.size() == b.size());
    double largest = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        const double difference = std::abs(double{a[i]} - double{b[i]});
        largest = difference <= largest ? largest : difference;  // keeps NaN
    }
    return largest;
}

// Checks that every text has the same bits alone, and on other pages.
void check_alone(Backend &backend, std::span<const Text> texts, const Floats &together) {
    size_t at = 0;
    for (const Text &text : texts) {
        const size_t size = static_cast<size_t>(text.block) * kVocab;
        REQUIRE(same(logits_of(backend, {&text, 1}, 7), std::span(together).subspan(at, size)));
        at += size;
    }
    REQUIRE(same(logits_of(backend, texts, 8), together));
}

// A random program whose spans may see both ways.
class BlockProgram {
  public:
    explicit BlockProgram(uint32_t seed) : tiny_(shape_of(seed), seed), program_(tiny_.program()) {
        for (Step &step : program_.steps)
            if (auto *a = std::get_if<Attention>(&step)) a->window_kind = Attention::Window::Sliding;
        REQUIRE(sees_both_ways(program_));
    }
    const Program &program() const { return program_; }

  private:
    static TinyShape shape_of(uint32_t seed) {
        TinyShape shape{.layers = 3, .vocab = kVocab};
        constexpr int32_t kHeads[][2] = {{4, 2}, {8, 1}, {3, 3}, {10, 2}};
        shape.heads = kHeads[seed % 4][0], shape.kv_heads = kHeads[seed % 4][1];
        shape.head_dim_k = shape.head_dim_v = seed % 3 == 0 ? 32 : 16;
        shape.window = seed % 2 == 0 ? 0 : 20;
        shape.head_norm = seed % 4 == 1, shape.bias = seed % 4 == 2;
        shape.varied = seed % 3 != 0;
        if (seed % 5 == 0) shape.pairs = RopeTable::Pairs::Halves;
        return shape;
    }

    TinyProgram tiny_;
    Program program_;
};

std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (const char *name : {"scalar", "avx2", "avx512"}) try {
            cpu::make_cpu_backend(1, name);
            names.push_back(name);
        } catch (const BackendError &) {
            MESSAGE("this CPU has no " << std::string(name));
        }
    return names;
}

std::vector<std::unique_ptr<Backend>> some_cpus(int count) {
    std::vector<std::unique_ptr<Backend>> all;
    for (int i = 0; i < count; ++i) all.push_back(cpu::make_cpu_backend(1));
    return all;
}

// What a leader with one follower computes.
Floats logits_of_group(const Program &program, std::span<const Text> texts) {
    const std::vector<double> shares = {1, 2};
    const auto communicators = make_local_communicators(2, std::chrono::seconds(60));
    std::thread follower([&] {
        const auto device = cpu::make_cpu_backend(1);
        follow(*device, *communicators[1], program, shares);
    });
    Floats logits;
    {
        const auto leader = make_leading_backend(cpu::make_cpu_backend(1), *communicators[0], shares);
        leader->load(program, {{kPool}}, kMaxTokens);
        logits = logits_of(*leader, texts, 1);
    }
    follower.join();
    return logits;
}

}  // namespace

TEST_CASE(
    "both ways: random batches on the CPU agree with double precision, with the same bits in any batch") {
    for (uint32_t seed = 1; seed <= 12; ++seed) {
        CAPTURE(seed);
        const BlockProgram block(seed);
        const std::vector<Text> texts = random_texts(seed);
        const Floats exact =
            logits_of(*loaded(reference::make_reference_backend(), block.program()), texts, seed);
        const auto cpu = loaded(cpu::make_cpu_backend(1), block.program());
        const Floats together = logits_of(*cpu, texts, seed);
        CHECK(largest_difference(together, exact) < 1e-3);
        check_alone(*cpu, texts, together);
        for (const std::string &name : instruction_sets())
            for (const int threads : {1, 3}) {
                CAPTURE(name);
                CAPTURE(threads);
                const auto other = loaded(cpu::make_cpu_backend(threads, name), block.program());
                REQUIRE(same(logits_of(*other, texts, 3), together));
                REQUIRE(same(logits_of(*other, texts, 4), together));
            }
    }
}

TEST_CASE("both ways: a packed cache changes the logits little, and no bit from batch to batch") {
    for (uint32_t seed = 20; seed < 26; ++seed) {
        CAPTURE(seed);
        const BlockProgram block(seed);
        const std::vector<Text> texts = random_texts(seed);
        const Floats exact =
            logits_of(*loaded(reference::make_reference_backend(), block.program()), texts, seed);
        const auto cpu = loaded(cpu::make_cpu_backend(2), block.program(), CacheType::Q8_0);
        const Floats together = logits_of(*cpu, texts, seed);
        CHECK(largest_difference(together, exact) < 0.15);
        check_alone(*cpu, texts, together);
    }
}

TEST_CASE("both ways: tokens see later ones of their span, and a span of one token is an ordinary one") {
    const BlockProgram block(4);
    const auto cpu = loaded(cpu::make_cpu_backend(1), block.program());
    std::vector<Text> texts = random_texts(4);
    texts.resize(1);
    for (const int32_t count : {1, 5}) {
        texts[0].block = count;
        texts[0].both_ways = true;
        const Floats both = logits_of(*cpu, texts, 1);
        texts[0].both_ways = false;
        CHECK(same(logits_of(*cpu, texts, 1), both) == (count == 1));
    }
}

TEST_CASE("both ways: several devices give the bits of one") {
    for (uint32_t seed = 30; seed < 36; ++seed) {
        CAPTURE(seed);
        const BlockProgram block(seed);
        const Program &program = block.program();
        const std::vector<Text> texts = random_texts(seed);
        const Floats expected = logits_of(*loaded(cpu::make_cpu_backend(1), program), texts, 1);
        const auto alternating = [](const Program &p) {
            std::vector<uint8_t> device(p.steps.size());
            for (size_t i = 0; i < device.size(); ++i) device[i] = static_cast<uint8_t>(i / 2 % 2);
            return device;
        };
        for (const Program &each : {program, with_separate_appends(program)}) {
            CHECK(same(logits_of(*loaded(make_split_backend(some_cpus(2), alternating), each), texts, 2),
                       expected));
            CHECK(same(logits_of(*loaded(make_tensor_backend(some_cpus(3), {1, 2, 1}), each), texts, 2),
                       expected));
            CHECK(same(logits_of_group(each, texts), expected));
        }
    }
}

TEST_CASE("both ways: programs and batches that cannot are known") {
    const auto with = [](const std::function<void(Attention &)> &change) {
        Program program = TinyProgram({.window = 9}, 1).program();
        for (Step &step : program.steps)
            if (auto *a = std::get_if<Attention>(&step)) change(*a);
        return program;
    };
    const Program plain = with([](Attention &) {});
    CHECK(sees_both_ways(plain));
    CHECK(!sees_both_ways(with([](Attention &a) { a.window_kind = Attention::Window::Chunked; })));
    CHECK(!sees_both_ways(with([](Attention &a) { a.sink_cells = 4; })));
    CHECK(!sees_both_ways(with([](Attention &a) { a.slopes = 0; })));
    CHECK(!sees_both_ways(with([](Attention &a) { a.chosen = 0; })));
    Program recurrent = plain;
    recurrent.state_layers.push_back({16});
    CHECK(!sees_both_ways(recurrent));
    SequenceSpan span{0, 2, 3, {}, 1, 0};
    Batch batch{};
    batch.sequences = {&span, 1};
    CHECK(sees_both_ways(recurrent, batch));
    span.both_ways = true;
    CHECK(!sees_both_ways(plain, batch));
    span.shared = 0;
    CHECK(sees_both_ways(plain, batch));
    CHECK(!sees_both_ways(recurrent, batch));
}

TEST_CASE("cuda both ways: random batches agree with double precision, with the same bits in any batch") {
    for (uint32_t seed = 40; seed < 42; ++seed) {
        CAPTURE(seed);
        const BlockProgram block(seed);
        const std::vector<Text> texts = random_texts(seed);
        const Floats exact =
            logits_of(*loaded(reference::make_reference_backend(), block.program()), texts, seed);
        const CacheType type = seed % 2 == 0 ? CacheType::F16 : CacheType::Q8_0;
        const auto gpu = loaded(cuda::make_cuda_backend(0), block.program(), type);
        const Floats together = logits_of(*gpu, texts, seed);
        CHECK(largest_difference(together, exact) < (type == CacheType::F16 ? 5e-3 : 0.15));
        check_alone(*gpu, texts, together);
        const auto separate =
            loaded(cuda::make_cuda_backend(0), with_separate_appends(block.program()), type);
        CHECK(same(logits_of(*separate, texts, 5), together));
    }
}
