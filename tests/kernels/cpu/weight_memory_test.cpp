#include "kernels/cpu/weight_memory.h"

#include <doctest/doctest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/linear.h"
#include "kernels/steps.h"
#include "tests/support/program_runs.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels;
using tests::TinyProgram;
using tests::TinyShape;

namespace {

std::set<WeightId> read_weights(const Program &program) {
    std::set<WeightId> ids;
    for (const Step &step : program.steps) visit_read_weights(step, [&](WeightId id) { ids.insert(id); });
    return ids;
}

const Weight &weight(const Program &program, WeightId id) {
    return program.weights[static_cast<size_t>(id)];
}

TinyShape random_shape(uint32_t seed) {
    TinyShape shape{.varied = seed % 2 == 1};
    if (seed % 3 == 0) shape.experts = {.count = 5, .biases = true, .shared = true};
    return shape;
}

}  // namespace

TEST_CASE("weight memory: a program with copied weights gives the same bits, and reads the copies") {
    for (uint32_t seed = 1; seed <= 12; ++seed) {
        CAPTURE(seed);
        TinyProgram tiny(random_shape(seed), seed);
        const Program &program = tiny.program();
        const std::vector<int32_t> tokens = tests::random_tokens(20, seed);
        const auto mapped = cpu::make_cpu_backend(2);
        mapped->load(program, {{tests::kBlocks}}, tests::kMaxTokens);
        const auto expected = tests::run(*mapped, program, tokens, 7);

        const auto memory = std::make_shared<cpu::WeightMemory>(WeightStorage{.copied = true});
        const auto copied = cpu::make_cpu_backend(2, {}, memory);
        std::vector<std::pair<size_t, size_t>> told;
        copied->on_load([&](size_t done, size_t all) {
            told.emplace_back(done, all);
            return true;
        });
        copied->load(program, {{tests::kBlocks}}, tests::kMaxTokens);
        REQUIRE(!told.empty());
        CHECK(told.back().first == told.back().second);
        CHECK(told.back().second <= cpu::weights_read(program));
        CHECK(tests::same(tests::run(*copied, program, tokens, 7), expected));

        // Only tables are read where they were.
        for (const WeightId id : read_weights(program))
            std::memset(const_cast<std::byte *>(weight(program, id).data), 0x55, weight(program, id).bytes());
        CHECK(tests::same(tests::run(*copied, program, tokens, 7), expected));
        CHECK_FALSE(tests::same(tests::run(*mapped, program, tokens, 7), expected));
    }
}

TEST_CASE("weight memory: copies are aligned, made once, and of what passes read") {
    const TinyProgram tiny({.experts = {.count = 4}}, 7);
    const Program &original = tiny.program();
    cpu::Pool pool(2);
    cpu::WeightMemory memory({.copied = true});
    Program first = original, second = original;
    memory.take(first, pool, {});
    int loads = 0;
    memory.take(second, pool, [&](size_t, size_t) { return ++loads > 0; });
    CHECK(loads == 0);  // all were there
    const std::set<WeightId> read = read_weights(original);
    size_t bytes = 0;
    for (WeightId id = 0; id < static_cast<WeightId>(original.weights.size()); ++id) {
        CAPTURE(id);
        const Weight &from = weight(original, id), &to = weight(first, id);
        CHECK(weight(second, id).data == to.data);
        if (!read.contains(id)) {
            CHECK(to.data == from.data);
            continue;
        }
        CHECK(to.data != from.data);
        CHECK(reinterpret_cast<uintptr_t>(to.data) % 64 == 0);
        REQUIRE(to.bytes() == from.bytes());
        CHECK(std::memcmp(to.data, from.data, from.bytes()) == 0);
        bytes += from.bytes();
    }
    CHECK(cpu::weights_read(original) >= bytes);
    CHECK(cpu::weights_read(original) < bytes + 64 * read.size());
}

TEST_CASE("weight memory: matrices apart from each other are copied next to each other") {
    constexpr int64_t kRows = 3, kCols = 40, kCount = 4;
    constexpr size_t kEach = kRows * kCols * sizeof(float), kStride = kEach + 96;
    std::vector<std::byte> bytes(kStride * kCount);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
    Program program;
    program.slots = {{"in", kCols * kCount}, {"out", kRows * kCount}};
    program.weights = {{"heads", gguf::Type::F32, kRows, kCols, bytes.data(), kCount, kStride}};
    program.steps = {HeadLinear{.in = 0, .out = 1, .from = {0, kCols}, .to = {0, kRows}, .weight = 0}};
    cpu::Pool pool(1);
    cpu::WeightMemory memory({.copied = true});
    Program copied = program;
    memory.take(copied, pool, {});
    for (int64_t i = 0; i < kCount; ++i) {
        CHECK(copied.weights[0].matrix(i) == copied.weights[0].data + kEach * static_cast<size_t>(i));
        CHECK(std::memcmp(copied.weights[0].matrix(i), program.weights[0].matrix(i), kEach) == 0);
    }
    // Adjacent matrices at the same address are another weight.
    Program other = program;
    other.weights[0].stride = 0;
    memory.take(other, pool, {});
    CHECK(std::memcmp(other.weights[0].data, bytes.data(), kEach * kCount) == 0);
}

TEST_CASE("weight memory: an interrupted copy leaves the program as it was") {
    const TinyProgram tiny({}, 3);
    cpu::Pool pool(1);
    cpu::WeightMemory memory({.copied = true});
    Program program = tiny.program();
    try {
        memory.take(program, pool, [](size_t, size_t) { return false; });
        FAIL("not interrupted");
    } catch (const BackendError &error) {
        CHECK(error.kind == BackendError::Kind::Cancelled);
    }
    for (size_t id = 0; id < program.weights.size(); ++id)
        CHECK(program.weights[id].data == tiny.program().weights[id].data);
}

TEST_CASE("weight memory: copies that do not fit are refused before any is made") {
    const TinyProgram tiny({}, 3);
    Program program = tiny.program();
    for (const WeightId id : read_weights(program))
        program.weights[static_cast<size_t>(id)].rows = int64_t{1} << 40;  // not there, so not to be read
    cpu::Pool pool(1);
    cpu::WeightMemory memory({.copied = true});
    try {
        memory.take(program, pool, {});
        FAIL("not refused");
    } catch (const BackendError &error) {
        CHECK(error.kind == BackendError::Kind::OutOfMemory);
        CHECK(std::string(error.what()).starts_with("a copy of the weights needs "));
        CHECK(std::string(error.what()).ends_with("leave out --load-mode"));
    }
}

TEST_CASE("weight memory: tiles of weights give the same bits, and passes of few tokens read only them") {
    const std::array types = {gguf::Type::Q1_0, gguf::Type::Q2_0, gguf::Type::PQ2_0, gguf::Type::PTQ1_0};
    for (const cpu::LinearKernels *kernels :
         {&cpu::linear_scalar(), cpu::linear_avx2(), cpu::linear_avx512(), cpu::linear_amx()}) {
        if (kernels == nullptr) continue;  // not of this CPU
        for (uint32_t seed = 1; seed <= 4; ++seed) {
            CAPTURE(kernels->name);
            CAPTURE(seed);
            TinyShape shape = random_shape(seed);
            shape.type = types[seed % 4], shape.varied = false;
            shape.width = 256, shape.feed_forward = 384, shape.head_dim_k = shape.head_dim_v = 64;
            shape.vocab = 50 + seed;  // rows that are no whole tiles
            const int32_t most = kernels->lookup ? kernels->lookup->most_tokens(shape.type) : 0;
            const TinyProgram tiny(shape, seed);
            const Program &program = tiny.program();
            const std::vector<int32_t> tokens = tests::random_tokens(20, seed);
            const auto result = [&](Backend &backend, int32_t at_once) {
                return tests::run(backend, program, tokens, static_cast<size_t>(at_once));
            };
            const auto mapped = cpu::make_cpu_backend(2, kernels->name);
            mapped->load(program, {{tests::kBlocks}}, tests::kMaxTokens);
            const auto memory = std::make_shared<cpu::WeightMemory>(WeightStorage{.rearranged = true});
            const auto tiled = cpu::make_cpu_backend(2, kernels->name, memory);
            tiled->load(program, {{tests::kBlocks}}, tests::kMaxTokens);
            std::vector<std::vector<float>> expected;  // by tokens at once
            for (int32_t n = 1; n <= most + 1; ++n) {
                expected.push_back(result(*mapped, n));
                CHECK(tests::same(result(*tiled, n), expected.back()));
            }

            int64_t tiles = 0;
            for (const Weight &w : program.weights) {
                if (memory->tiles(w) == nullptr) continue;
                ++tiles;
                CHECK(w.type == shape.type);
                CHECK(w.count == 1);
                std::memset(const_cast<std::byte *>(w.data), 0x55, w.bytes());
            }
            CHECK((tiles > 0) == (most > 0));
            for (int32_t n = 1; n <= most + 1; ++n) {
                CAPTURE(n);
                const bool same = tests::same(result(*tiled, n), expected[static_cast<size_t>(n) - 1]);
                CHECK(same == (n <= most || tiles == 0));
            }
        }
    }
}

TEST_CASE("weight memory: tiles are made once, only if there is room, and not after an interrupt") {
    TinyShape shape{.width = 256, .feed_forward = 384, .vocab = 300, .head_dim_k = 64, .head_dim_v = 64};
    shape.type = gguf::Type::Q1_0;
    const TinyProgram tiny(shape, 9);
    const Program &program = tiny.program();
    const cpu::LookupKernels lookup{[](gguf::Type type) { return type == gguf::Type::Q1_0 ? 4 : 0; }, nullptr,
                                    nullptr};
    cpu::Pool pool(2);
    cpu::WeightMemory memory({.rearranged = true});
    const auto tiled = [&] {
        return std::ranges::count_if(program.weights,
                                     [&](const Weight &w) { return memory.tiles(w) != nullptr; });
    };
    try {
        memory.rearrange(program, lookup, SIZE_MAX, pool, [](size_t, size_t) { return false; });
        FAIL("not interrupted");
    } catch (const BackendError &error) {
        CHECK(error.kind == BackendError::Kind::Cancelled);
    }
    CHECK(tiled() == 0);
    size_t bytes = 0;
    for (const Weight &w : program.weights)
        if (w.type == gguf::Type::Q1_0 && w.rows >= 4 * 16 * pool.threads() &&
            &w != &weight(program, std::get<Embed>(program.steps.front()).table))
            bytes += cpu::lookup_bytes(w.type, w.rows, w.cols);
    REQUIRE(bytes > 0);
    size_t told = 0, all = 0;
    const auto progress = [&](size_t done, size_t of) {
        told = done, all = of;
        return true;
    };
    memory.rearrange(program, lookup, bytes - 1, pool, progress);
    CHECK(tiled() == 0);
    memory.rearrange(program, lookup, bytes, pool, progress);
    CHECK(told == all);
    CHECK(all >= bytes);
    CHECK(tiled() > 0);
    memory.rearrange(program, lookup, 0, pool, [](size_t, size_t) { return false; });  // all were there

    cpu::WeightMemory plain({.copied = true});
    plain.rearrange(program, lookup, SIZE_MAX, pool, {});
    CHECK(std::ranges::none_of(program.weights, [&](const Weight &w) { return plain.tiles(w) != nullptr; }));
}

TEST_CASE("weight memory: matrices of different shapes at one address have tiles of their own") {
    std::vector<std::byte> bytes(128 * 18);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
    Program program;
    program.slots = {{"a", 128}, {"b", 128}, {"c", 256}, {"d", 64}};
    program.weights = {{"tall", gguf::Type::Q1_0, 128, 128, bytes.data()},
                       {"wide", gguf::Type::Q1_0, 64, 256, bytes.data()}};
    program.steps = {Linear{.in = 0, .parts = {{.weight = 0, .bias = kNoWeight, .out = 1, .add = kNoSlot}}},
                     Linear{.in = 2, .parts = {{.weight = 1, .bias = kNoWeight, .out = 3, .add = kNoSlot}}}};
    const cpu::LookupKernels lookup{[](gguf::Type) { return 4; }, nullptr, nullptr};
    cpu::Pool pool(1);
    cpu::WeightMemory memory({.rearranged = true});
    memory.rearrange(program, lookup, SIZE_MAX, pool, {});
    for (const Weight &w : program.weights) {
        CAPTURE(w.name);
        std::vector<std::byte> expected(cpu::lookup_bytes(w.type, w.rows, w.cols));
        cpu::write_lookup_tiles(w.type, w.data, w.cols, 0, w.rows, expected.data());
        REQUIRE(memory.tiles(w) != nullptr);
        CHECK(std::memcmp(memory.tiles(w), expected.data(), expected.size()) == 0);
    }
}

#ifndef __SANITIZE_ADDRESS__  // the sanitizer's mlock() does nothing

namespace {

// A process that may lock nothing, until the end of the scope: without the privileges of root, which has no limit.
class NoLocks {
  public:
    NoLocks() {
        REQUIRE(getrlimit(RLIMIT_MEMLOCK, &before_) == 0);
        rlimit none = before_;
        none.rlim_cur = 0;
        REQUIRE(setrlimit(RLIMIT_MEMLOCK, &none) == 0);
        constexpr uid_t kNobody = 65534;
        if (was_root_) REQUIRE(seteuid(kNobody) == 0);
    }
    ~NoLocks() {
        if (was_root_) CHECK(seteuid(0) == 0);
        prctl(PR_SET_DUMPABLE, 1);  // LeakSanitizer needs it; a change of user takes it away
        CHECK(setrlimit(RLIMIT_MEMLOCK, &before_) == 0);
    }

  private:
    const bool was_root_ = geteuid() == 0;
    rlimit before_{};
};

}  // namespace

TEST_CASE("weight memory: weights that cannot be locked are used, and the reason is kept") {
    const TinyProgram tiny({}, 5);
    for (const WeightStorage storage :
         {WeightStorage{.copied = true, .locked = true}, WeightStorage{.locked = true}}) {
        CAPTURE(storage.copied);
        cpu::Pool pool(1);
        cpu::WeightMemory memory(storage);
        CHECK(memory.problem().empty());
        const NoLocks none;
        Program program = tiny.program();
        memory.take(program, pool, {});
        CHECK(memory.problem().starts_with("the weights are not locked in memory: "));
        CHECK(memory.problem().ends_with("(ulimit -l: 0 KiB)"));
        const WeightId id = *read_weights(program).begin();
        CHECK((weight(program, id).data != weight(tiny.program(), id).data) == storage.copied);
    }
}

#endif
