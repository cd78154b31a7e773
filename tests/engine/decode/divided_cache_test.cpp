// A cache whose cells several CPUs divide (--split context) gives the bits of one, whatever happens to the sequences.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "engine/decode/error.h"
#include "engine/decode/executor.h"
#include "gguf/base/trace.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/divided_groups.h"
#include "kernels/tensor_backend.h"
#include "kernels/tensor_program.h"
#include "tests/engine/decode/executor_pair.h"
#include "tests/support/counting_communicator.h"
#include "tests/support/program_runs.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::decode;
using kernels::CacheType;
using tests::ExecutorPair;
using tests::random_text;
using tests::same_bits;
using tests::TinyProgram;
using tests::TinyShape;
using tests::Tokens;

namespace {

using Backends = std::vector<std::unique_ptr<kernels::Backend>>;

Backends cpus(int32_t ranks) {
    Backends all;
    for (int32_t r = 0; r < ranks; ++r) all.push_back(kernels::cpu::make_cpu_backend(1 + r % 2));
    return all;
}

Executor divided_executor(const kernels::Program &program, ExecutorOptions options, int32_t ranks) {
    options.ranks = ranks;
    return Executor(
        kernels::make_tensor_backend(cpus(ranks), std::vector<double>(static_cast<size_t>(ranks), 1)),
        program, options);
}

void check_divided(const kernels::Program &program, int32_t ranks, uint32_t seed, CacheTypes types = {}) {
    CAPTURE(ranks);
    CAPTURE(seed);
    std::mt19937 random(seed);
    const ExecutorOptions options{
        .context = 3000, .batch = 400, .sequences = 3, .cells = 9000, .types = types};
    Executor one(kernels::cpu::make_cpu_backend(2), program, options);
    Executor several = divided_executor(program, options, ranks);
    CHECK(several.cache().pool(0).shares() == ranks);
    ExecutorPair pair(one, several);
    const Tokens text = random_text(random, 3000);
    pair.add();
    for (int step = 0; step < 40; ++step) {
        const size_t i = random() % pair.size();
        const auto what = random() % 10;
        if (what == 0 && pair.size() < 3) {
            pair.add();
            pair.attach(pair.size() - 1, text);
        } else if (what == 1 && pair.size() < 3 && pair.length(i) < 1500) {
            pair.fork(i);
        } else if (what == 2 && pair.size() > 1) {
            pair.erase(i);
        } else if (what == 3) {
            pair.truncate(i, static_cast<int32_t>(random() % static_cast<size_t>(pair.length(i) + 1)));
        } else if (what == 4 && pair.length(i) > 0 && pair.length(i) < 2900) {
            pair.step_with_branch(i, random_text(random, 5));
        } else if (what < 8 || pair.size() == 1) {
            const auto left = static_cast<size_t>(2900 - pair.length(i));
            const size_t count =
                std::min<size_t>(left, random() % 2 ? 1 + random() % 20 : 1 + random() % 400);
            if (count == 0) continue;
            const auto at = static_cast<size_t>(pair.length(i));
            pair.step({{i, random() % 3 ? Tokens(text.begin() + static_cast<std::ptrdiff_t>(at),
                                                 text.begin() + static_cast<std::ptrdiff_t>(at + count))
                                        : random_text(random, count)}});
        } else {  // all sequences together
            std::vector<std::pair<size_t, Tokens>> parts;
            for (size_t s = 0; s < pair.size(); ++s)
                if (pair.length(s) < 2900) parts.emplace_back(s, random_text(random, 1 + random() % 40));
            if (!parts.empty()) pair.step(parts);
        }
    }
}

}  // namespace

TEST_CASE(
    "divided cache: two to eight CPUs give the bits of one, with forks, roll-backs, branches and batches") {
    constexpr gguf::Type kTypes[] = {gguf::Type::F32, gguf::Type::Q8_0, gguf::Type::Q4_0};
    for (const int32_t ranks : {2, 3, 4, 5, 8})
        for (const int32_t kv_heads : {1, 4}) {
            TinyShape shape{.layers = 2, .type = kTypes[(ranks + kv_heads) % 3]};
            shape.heads = 8, shape.kv_heads = kv_heads, shape.width = 96, shape.feed_forward = 160;
            shape.head_norm = shape.bias = ranks == 3;
            check_divided(TinyProgram(shape, 100).program(), ranks,
                          static_cast<uint32_t>(10 * ranks + kv_heads));
        }
}

TEST_CASE("divided cache: packed, rotated and full keys and values") {
    constexpr CacheTypes kTypes[] = {{CacheType::Q8_0, CacheType::Q4_0},
                                     {CacheType::Q5_1, CacheType::IQ4_NL},
                                     {CacheType::F32, CacheType::BF16},
                                     {CacheType::FP8, CacheType::Q5_0}};
    uint32_t seed = 1;
    for (const CacheTypes &types : kTypes) {
        TinyShape shape{.layers = 2, .head_dim_k = 32, .head_dim_v = 32, .type = gguf::Type::Q8_0};
        shape.kv_heads = seed % 2 ? 2 : 4;
        check_divided(TinyProgram(shape, seed).program(), 2 + static_cast<int32_t>(seed % 3), seed, types);
        ++seed;
    }
}

TEST_CASE("divided cache: programs with random options, whose windows and other layers stay whole") {
    int divided = 0;
    for (uint32_t seed = 1; seed <= 30 && divided < 6; ++seed) {
        TinyShape shape{.layers = 2, .type = gguf::Type::Q8_0};
        shape.varied = true;
        const TinyProgram tiny(shape, seed);
        if (kernels::divided_groups(tiny.program(), 3).front() == 1) continue;
        ++divided;
        check_divided(tiny.program(), 3, seed);
    }
    CHECK(divided == 6);
}

TEST_CASE("divided cache: four devices with a quarter of the cells each run what one with all of them runs") {
    TinyShape shape{.layers = 1, .type = gguf::Type::Q8_0};
    const TinyProgram tiny(shape, 7);
    constexpr int32_t kCells = 8192;
    const ExecutorOptions options{.context = kCells, .batch = 512};
    Executor one(kernels::cpu::make_cpu_backend(2), tiny.program(), options);
    Executor four = divided_executor(tiny.program(), options, 4);
    CHECK(four.cache().pool(0).size() == one.cache().pool(0).size());  // of which each device has a quarter
    std::mt19937 random(7);
    ExecutorPair pair(one, four);
    pair.add();
    for (int32_t at = 0; at < kCells; at += 512) pair.step({{0, random_text(random, 512)}});
    CHECK(pair.length(0) == kCells);
    CHECK(four.cache().pool(0).free_blocks() == 0);
}

TEST_CASE("divided cache: what goes around is the pages, or sums, of other ranks, and nothing else") {
    TinyShape shape{.layers = 3, .type = gguf::Type::Q8_0};
    shape.width = 128, shape.feed_forward = 192, shape.heads = 8;
    for (const int32_t kv_heads : {2, 8}) {  // 3 ranks do not divide these heads; 4 ranks do divide 8
        shape.kv_heads = kv_heads;
        const TinyProgram tiny(shape, 6);
        const kernels::Program &program = tiny.program();
        const int32_t ranks = kv_heads == 8 ? 4 : 3;
        CAPTURE(ranks);
        std::atomic<size_t> bytes = 0;
        ExecutorOptions options{.context = 4096, .batch = 512, .ranks = ranks};
        Executor executor(kernels::make_tensor_backend(
                              cpus(ranks), std::vector<double>(static_cast<size_t>(ranks), 1), {},
                              [&](int size) { return tests::counting_communicators(size, bytes); }),
                          program, options);
        SequenceCache sequence = executor.new_sequence();
        std::vector<float> logits;
        std::mt19937 random(6);
        const auto received = [&](size_t count) {
            const Tokens tokens = random_text(random, count);
            const StepInput input{.cache = &sequence, .tokens = tokens, .logit_rows = 1};
            bytes = 0;
            REQUIRE(executor.step({&input, 1}, logits));
            return bytes.load();
        };
        const kernels::TensorProgram tensor =
            kernels::cut_program(program, std::vector<double>(static_cast<size_t>(ranks), 1),
                                 kernels::divided_groups(program, ranks));
        // Everything but attention, for `count` tokens: activations, whether the batch is cancelled, and logits.
        size_t gathers = 0;
        for (const auto &stage : tensor.stages) gathers += stage.gathers.size();
        const auto others = static_cast<size_t>(ranks) - 1;
        const auto rest = [&](size_t count) {
            return count * kernels::gathered_bytes_per_token(tensor) + 4 * others * gathers +
                   4 * static_cast<size_t>(shape.vocab - tensor.vocabulary.front().size());
        };
        const auto layers = static_cast<size_t>(shape.layers), heads = static_cast<size_t>(shape.heads),
                   kv = static_cast<size_t>(kv_heads);
        size_t cells = 0;
        for (int step = 0; step < 4; ++step) {
            cells += 512;
            // Every rank gets the pages that it does not hold, of its K/V heads if these can be dealt; then the outputs.
            const size_t page_bytes = cells * kv * 2 * (16 + 16);
            const size_t pages =
                kv_heads == 8 ? page_bytes * others / static_cast<size_t>(ranks) : page_bytes * others;
            const size_t outputs = 512 * heads * 16 * 4 * others;
            CHECK(received(512) == rest(512) + layers * (pages + outputs));
        }
        for (int step = 0; step < 3; ++step) {
            const size_t ranges = cells / 512 + 1;
            ++cells;
            CHECK(received(1) == rest(1) + layers * ranges * heads * (16 + 2) * 4 * others);
        }
    }
}

TEST_CASE(
    "divided cache: while keys and values are exchanged, the other threads attend to the previous ones") {
    TinyShape shape{.layers = 2, .type = gguf::Type::Q8_0};
    const TinyProgram tiny(shape, 8);
    Backends two;
    for (int r = 0; r < 2; ++r) two.push_back(kernels::cpu::make_cpu_backend(2));
    std::atomic<size_t> bytes = 0;
    const auto slow = [&](int size) {
        return tests::counting_communicators(size, bytes, std::chrono::milliseconds(5));
    };
    Executor executor(kernels::make_tensor_backend(std::move(two), {1, 1}, {}, slow), tiny.program(),
                      {.context = 4096, .batch = 512, .ranks = 2});
    SequenceCache sequence = executor.new_sequence();
    std::mt19937 random(8);
    std::vector<float> logits;
    const base::Trace trace;  // of the first device's first thread, which exchanges
    for (int step = 0; step < 8; ++step) {
        const Tokens tokens = random_text(random, 512);
        const StepInput input{.cache = &sequence, .tokens = tokens, .logit_rows = 1};
        REQUIRE(executor.step({&input, 1}, logits));
    }
    std::map<bool, int64_t> meanwhile;  // by whether there was a turn before
    size_t exchanges = 0;
    for (const base::Trace::Event &event : trace.events()) {
        if (std::string_view(event.name) != "keys and values") continue;
        ++exchanges;
        REQUIRE(event.notes.size() == 2);
        meanwhile[event.notes[0].second > 0] += event.notes[1].second;
    }
    // Steps with 1 to 8 ranges, two of them in a turn.
    CHECK(exchanges == 2 * (1 + 1 + 2 + 2 + 3 + 3 + 4 + 4));
    CHECK(meanwhile[false] == 0);
    CHECK(meanwhile[true] > 0);
}

TEST_CASE(
    "divided cache: a device that fails is named, whatever the others wait for, and the next step works") {
    const TinyProgram tiny({.layers = 2, .type = gguf::Type::Q8_0}, 54);
    std::mt19937 random(54);
    const Tokens tokens = random_text(random, 700);
    for (const size_t failing : {0, 1, 2}) {
        std::atomic<bool> armed = false;
        Backends three = cpus(3);
        three[failing] = std::make_unique<tests::FailingBackend>(std::move(three[failing]), armed, 1);
        const std::vector<std::string> names = {"number 0", "number 1", "number 2"};
        Executor executor(kernels::make_tensor_backend(std::move(three), {1, 1, 1}, names), tiny.program(),
                          {.context = 1024, .batch = 700, .ranks = 3});
        std::vector<float> expected, logits;
        for (const bool fails : {false, true, false}) {
            SequenceCache sequence = executor.new_sequence();
            const StepInput input{.cache = &sequence, .tokens = tokens, .logit_rows = 1};
            armed = fails;
            if (fails) {
                const std::string message = "number " + std::to_string(failing) + ": the device is lost";
                CHECK_THROWS_WITH_AS(executor.step({&input, 1}, logits), message.c_str(),
                                     kernels::BackendError);
                continue;
            }
            REQUIRE(executor.step({&input, 1}, logits));
            if (expected.empty()) expected = logits;
            CHECK(same_bits(logits, expected));
        }
    }
}
