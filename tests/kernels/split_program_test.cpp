// A program split over two devices gives the results of one device: bit for bit if both are of the same kind,
// otherwise as close as the kinds are.
#include "kernels/split_program.h"

#include <doctest/doctest.h>

#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/split_backend.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels;
using tests::TinyProgram;
using tests::TinyShape;

namespace {

constexpr int32_t kBlocks = 4, kMaxTokens = 40;

std::unique_ptr<Backend> one_cpu() {
    return cpu::make_cpu_backend(1);
}
std::unique_ptr<Backend> cpu_device_of_threads() {
    return cpu::make_cpu_backend(3);
}
std::unique_ptr<Backend> gpu_device() {
    return cuda::make_cuda_backend(0);
}
using MakeDevice = std::unique_ptr<Backend> (*)();

// Logits of all tokens, fed in chunks.
std::vector<float> run(Backend &backend, const Program &program, std::span<const int32_t> tokens,
                       size_t chunk, int32_t past = 0) {
    std::vector<float> all;
    std::vector<BlockId> table(kBlocks);
    std::iota(table.rbegin(), table.rend(), 0);
    for (size_t at = 0; at < tokens.size(); at += chunk) {
        const auto part = tokens.subspan(at, std::min(chunk, tokens.size() - at));
        const int32_t first = past + static_cast<int32_t>(at);
        std::vector<int32_t> positions(part.size()), rows(part.size());
        std::iota(positions.begin(), positions.end(), first);
        std::iota(rows.begin(), rows.end(), 0);
        const SequenceSpan span{0, static_cast<int32_t>(part.size()), first, {table}};
        std::vector<float> logits(part.size() * static_cast<size_t>(program.vocab), 12345);
        REQUIRE(backend.execute({part, positions, {&span, 1}, rows}, logits));
        all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
}

std::vector<int32_t> random_tokens(size_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> tokens(count);
    for (int32_t &t : tokens) t = static_cast<int32_t>(random() % 50);
    return tokens;
}

bool same(const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Assigns runs of steps to random devices.
std::vector<uint8_t> random_assignment(const Program &program, uint32_t seed, uint32_t devices) {
    std::mt19937 random(seed);
    std::vector<uint8_t> device;
    auto now = static_cast<uint8_t>(random() % devices);
    for (size_t i = 0; i < program.steps.size(); ++i) {
        if (random() % 3 == 0) now = static_cast<uint8_t>(random() % devices);
        device.push_back(now);
    }
    return device;
}

std::unique_ptr<Backend> split_over(const std::vector<MakeDevice> &devices, std::vector<uint8_t> device) {
    std::vector<std::unique_ptr<Backend>> backends;
    for (const MakeDevice make : devices) backends.push_back(make());
    return make_split_backend(std::move(backends), [device](const Program &) { return device; });
}

// Logits of a draft tree after the first `past` tokens, which fill block 3 - past / 32 and those after
// it (run()): a sequence continues with six tokens, and a branch, in another block, with the first three
// of them and two of its own.
std::vector<float> run_branch(Backend &backend, const Program &program, std::span<const int32_t> tokens,
                              int32_t past) {
    std::vector<BlockId> table(kBlocks), other;
    std::iota(table.rbegin(), table.rend(), 0);
    other = table;
    const auto last = static_cast<size_t>(past / kBlockTokens);
    other[last] = 0;
    backend.copy_blocks(0, std::vector<BlockCopy>{{table[last], 0}});
    std::vector<int32_t> positions, rows(8);
    for (const int32_t i : {0, 1, 2, 3, 4, 5, 3, 4}) positions.push_back(past + i);
    std::iota(rows.begin(), rows.end(), 0);
    const SequenceSpan spans[] = {{0, 6, past, {table}}, {6, 2, past + 3, {other}, 3, 0}};
    std::vector<float> logits(8 * static_cast<size_t>(program.vocab), 12345);
    REQUIRE(backend.execute({tokens.first(8), positions, spans, rows}, logits));
    return logits;
}

void check_splits(const Program &program, MakeDevice make, uint32_t seed, int rounds,
                  CacheType k = CacheType::F16, CacheType v = CacheType::F16, uint32_t devices = 2) {
    const std::vector<int32_t> tokens = random_tokens(kMaxTokens, seed);
    const CacheConfig cache{{kBlocks}, k, v};
    const auto whole = make();
    whole->load(program, cache, kMaxTokens);
    const std::vector<float> expected = run(*whole, program, tokens, tokens.size());
    const std::vector<float> guesses = run_branch(*whole, program, tokens, 37);
    for (int round = 0; round < rounds; ++round) {
        CAPTURE(seed);
        CAPTURE(round);
        const auto backend =
            split_over(std::vector<MakeDevice>(devices, make),
                       random_assignment(program, seed * 100 + static_cast<uint32_t>(round), devices));
        backend->load(program, cache, kMaxTokens);
        REQUIRE(same(run(*backend, program, tokens, tokens.size()), expected));
        REQUIRE(same(run_branch(*backend, program, tokens, 37), guesses));
        REQUIRE(same(run(*backend, program, tokens, 7), expected));
        // A saved block, and a copied one, have the content of both devices.
        std::vector<std::byte> kept(cache_block_bytes(program, 0, k, v));
        backend->read_block(0, kBlocks - 1, kept);
        run(*backend, program, random_tokens(32, seed + 1), 32);
        backend->write_block(0, 1, kept);
        backend->copy_blocks(0, std::vector<BlockCopy>{{1, kBlocks - 1}});
        const std::vector<float> tail = run(*backend, program, std::span(tokens).last(8), 3, 32);
        REQUIRE(same(tail, {expected.end() - static_cast<std::ptrdiff_t>(tail.size()), expected.end()}));
    }
}

}  // namespace

TEST_CASE("split program: on two CPUs, any assignment of the steps gives the bits of one") {
    for (uint32_t seed = 1; seed <= 6; ++seed) {
        TinyShape shape{.layers = 3, .type = seed % 2 ? gguf::Type::Q8_0 : gguf::Type::F32};
        shape.varied = seed > 2;
        if (seed == 2) shape.experts = {.count = 5, .routing = {.used = 2}, .shared = true};
        const TinyProgram tiny(shape, seed);
        check_splits(tiny.program(), one_cpu, seed, 6);
    }
}

TEST_CASE("split program: three and four devices give the bits of one") {
    for (uint32_t seed = 31; seed <= 34; ++seed) {
        const TinyProgram tiny({.layers = 3, .varied = seed > 32, .type = gguf::Type::Q8_0}, seed);
        check_splits(tiny.program(), one_cpu, seed, 4, CacheType::F16, CacheType::F16, 3 + seed % 2);
    }
}

TEST_CASE("split program: CPUs with several threads and packed caches give the bits of one") {
    for (uint32_t seed = 21; seed <= 24; ++seed) {
        TinyShape shape{.layers = 2, .head_dim_k = 32, .head_dim_v = 32, .type = gguf::Type::Q8_0};
        if (seed == 24) shape.experts = {.count = 5, .routing = {.used = 2}, .shared = true};
        const TinyProgram tiny(shape, seed);
        const CacheType k = seed % 2 ? CacheType::F16 : CacheType::Q8_0;
        check_splits(tiny.program(), cpu_device_of_threads, seed, 3, k, CacheType::Q4_0);
    }
}

TEST_CASE("split program: on two GPUs, any assignment of the steps gives the bits of one") {
    const TinyProgram dense({.layers = 1, .head_norm = true, .bias = true, .type = gguf::Type::Q4_0}, 11);
    check_splits(dense.program(), gpu_device, 11, 1);
    const TinyProgram experts(
        {.layers = 1, .type = gguf::Type::Q8_0, .experts = {.count = 5, .routing = {.used = 2}}}, 12);
    check_splits(experts.program(), gpu_device, 12, 2);
    const TinyProgram packed({.layers = 1, .head_dim_k = 32, .head_dim_v = 32, .type = gguf::Type::Q8_0}, 13);
    check_splits(packed.program(), gpu_device, 13, 1, CacheType::Q8_0, CacheType::Q4_0);
}

TEST_CASE("split program: a partition has what its steps need, and nothing else") {
    const TinyProgram tiny({.layers = 4, .type = gguf::Type::Q8_0}, 3);
    const Program &program = tiny.program();
    std::vector<uint8_t> device(program.steps.size(), 1);
    for (size_t i = program.steps.size() / 2; i < device.size(); ++i) device[i] = 0;
    const SplitProgram split = split_program(program, device, 2);
    REQUIRE(split.stages.size() == 2);
    CHECK(split.stages[0].device == 1);
    const Program &head = split.programs[1], &tail = split.programs[0];
    REQUIRE(head.parts.size() == 1);
    CHECK(head.parts[0].in.empty());
    CHECK(!head.parts[0].out.empty());
    CHECK(tail.parts[0].in == head.parts[0].out);
    size_t bytes = 0, whole = 0;
    for (const Weight &w : head.weights) bytes += w.bytes();
    for (const Weight &w : tail.weights) bytes += w.bytes();
    for (const Weight &w : program.weights) whole += w.bytes();
    CHECK(bytes == whole);
    CHECK(cache_block_bytes(head, 0) + cache_block_bytes(tail, 0) == cache_block_bytes(program, 0));
    CHECK(cache_block_bytes(head, 0) > 0);
    CHECK(cache_block_bytes(tail, 0) > 0);
    // All steps on one device: no partition for the other.
    const SplitProgram none = split_program(program, std::vector<uint8_t>(program.steps.size(), 0), 2);
    CHECK(none.programs[1].steps.empty());
    CHECK(none.stages.size() == 1);
}

TEST_CASE("split program: attention that reads another layer's keys runs where they are") {
    const TinyProgram tiny({.layers = 2}, 5);
    Program program = tiny.program();
    bool first = true;
    for (Step &step : program.steps)
        if (auto *a = std::get_if<Attention>(&step)) {
            if (!first) a->cache = 0, a->k = a->v = kNoSlot;
            first = false;
        }
    check_splits(program, one_cpu, 5, 4);
}
