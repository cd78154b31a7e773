// Attention steps that only append keys and values: the same cache and the same bits as steps that also attend, on every
// kind of device.
#include <doctest/doctest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/split_backend.h"
#include "kernels/tensor_backend.h"
#include "tests/simt/simt.h"
#include "tests/support/program_runs.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels;
using tests::random_tokens;
using tests::run;
using tests::run_branch;
using tests::same;
using tests::TinyProgram;
using tests::TinyShape;
using tests::with_separate_appends;

namespace {

constexpr int32_t kPool = 32, kMaxTokens = 45, kVocab = 50;

std::unique_ptr<Backend> loaded(std::unique_ptr<Backend> backend, const Program &program,
                                CacheType type = CacheType::F16) {
    backend->load(program, {{kPool}, type, type}, kMaxTokens);
    return backend;
}

std::vector<std::unique_ptr<Backend>> some_cpus(int count) {
    std::vector<std::unique_ptr<Backend>> all;
    for (int i = 0; i < count; ++i) all.push_back(cpu::make_cpu_backend(1 + i % 2));
    return all;
}

TinyShape shape_of(uint32_t seed) {
    TinyShape shape{.layers = 3, .vocab = kVocab, .heads = 8, .kv_heads = seed % 2 == 0 ? 1 : 4};
    shape.varied = seed % 3 != 0;
    shape.window = seed % 2 == 0 ? 0 : 20;
    return shape;
}

// The separate steps have the logits of the whole ones, for a text, a draft tree and small chunks.
void check_same(Backend &whole, const Program &program, Backend &separate, const Program &in_two,
                uint32_t seed) {
    const std::vector<int32_t> tokens = random_tokens(40, seed);
    const std::vector<float> expected = run(whole, program, tokens, tokens.size());
    REQUIRE(same(run(separate, in_two, tokens, tokens.size()), expected));
    REQUIRE(same(run_branch(separate, in_two, tokens, 37), run_branch(whole, program, tokens, 37)));
    REQUIRE(same(run(separate, in_two, tokens, 7), expected));
}

// A layer of K/V heads, and the same program up to its keys and values, which are appended only.
struct AppendProgram {
    AppendProgram(uint32_t seed, bool latent, int32_t dim)
        : tiny({.layers = 1,
                .vocab = kVocab,
                .heads = 4,
                .kv_heads = 2,
                .head_dim_k = dim,
                .head_dim_v = latent ? dim / 16 * 8 : dim,
                .head_norm = true},
               seed),
          whole(tiny.program()) {
        if (latent) {
            whole.cache_layers[0].head_dim_v = 0;
            for (Step &step : whole.steps)
                if (auto *a = std::get_if<Attention>(&step)) a->v = kNoSlot;
        }
        appends = whole;
        appends.steps.clear();
        for (Step step : whole.steps) {
            auto *attention = std::get_if<Attention>(&step);
            if (auto *linear = std::get_if<Linear>(&step)) linear->parts.erase(linear->parts.begin());  // q
            if (attention) attention->q = attention->out = kNoSlot;
            appends.steps.push_back(step);
            if (attention) break;
        }
        without = appends;
        without.steps.pop_back();
    }

    TinyProgram tiny;
    Program whole, appends, without;  // without: the keys and values are computed, but not appended
};

// Bytes of all blocks after three spans, one of them a branch that shares tokens.
std::vector<std::byte> cache_after(Backend &backend, const Program &program, CacheType type) {
    std::vector<std::byte> block(cache_block_bytes(program, 0, type, type), std::byte{0x2b});
    for (BlockId id = 0; id < kPool; ++id) backend.write_block(0, id, block);
    const std::vector<BlockId> tables[] = {{5, 9, 2}, {30, 31, 7}, {5, 9, 3}};
    const SequenceSpan spans[] = {
        {0, 40, 26, {tables[0]}}, {40, 3, 63, {tables[1]}}, {43, 2, 66, {tables[2]}, 1, 39}};
    std::vector<int32_t> tokens, positions;
    for (const SequenceSpan &span : spans)
        for (int32_t i = 0; i < span.count; ++i) {
            tokens.push_back((7 * span.first + 3 * i) % kVocab);
            positions.push_back(span.past + i);
        }
    REQUIRE(backend.execute({tokens, positions, spans, {}}, {}));
    std::vector<std::byte> all;
    for (BlockId id = 0; id < kPool; ++id) {
        backend.read_block(0, id, block);
        all.insert(all.end(), block.begin(), block.end());
    }
    return all;
}

}  // namespace

TEST_CASE("append only: a step that appends and one that attends have the bits of one step") {
    for (uint32_t seed = 1; seed <= 9; ++seed) {
        CAPTURE(seed);
        const TinyProgram tiny(shape_of(seed), seed);
        const Program &program = tiny.program(), in_two = with_separate_appends(program);
        const auto exact = [] { return reference::make_reference_backend(); };
        check_same(*loaded(exact(), program), program, *loaded(exact(), in_two), in_two, seed);
        for (const CacheType type : {CacheType::F16, CacheType::Q8_0, CacheType::Q4_0}) {
            const auto whole = loaded(cpu::make_cpu_backend(1), program, type);
            const auto check = [&](std::unique_ptr<Backend> other) {
                check_same(*whole, program, *loaded(std::move(other), in_two, type), in_two, seed);
            };
            check(cpu::make_cpu_backend(1, "scalar"));
            check(cpu::make_cpu_backend(3));
            check(make_split_backend(some_cpus(2), [](const Program &p) {
                std::vector<uint8_t> device(p.steps.size());
                for (size_t i = 0; i < device.size(); ++i) device[i] = static_cast<uint8_t>(i / 2 % 2);
                return device;
            }));
            check(make_tensor_backend(some_cpus(3), {1, 2, 1}));
        }
    }
}

TEST_CASE("cuda append only: a step that appends and one that attends have the bits of one step") {
    for (uint32_t seed = 1; seed <= 3; ++seed) {
        CAPTURE(seed);
        const TinyProgram tiny(shape_of(seed), seed);
        const Program &program = tiny.program(), in_two = with_separate_appends(program);
        const CacheType type = seed == 2 ? CacheType::Q4_0 : CacheType::F16;
        const auto gpu = [&](const Program &of) { return loaded(cuda::make_cuda_backend(0), of, type); };
        check_same(*gpu(program), program, *gpu(in_two), in_two, seed);
    }
}

TEST_CASE("append only: the cache has the bytes of whole steps, and nothing else is written") {
    for (const bool latent : {false, true})
        for (const int32_t dim : {16, 64, 264})
            for (const CacheType type : {CacheType::F16, CacheType::Q8_0, CacheType::Q4_0}) {
                CAPTURE(latent);
                CAPTURE(dim);
                CAPTURE(static_cast<int>(type));
                const AppendProgram program(3, latent, dim);
                const auto after = [&](auto make, const Program &of) {
                    return cache_after(*loaded(make(), of, type), of, type);
                };
                for (const int threads : {1, 3}) {
                    const auto cpu = [&] { return cpu::make_cpu_backend(threads); };
                    CHECK(after(cpu, program.appends) == after(cpu, program.whole));
                    CHECK(after(cpu, program.appends) != after(cpu, program.without));
                }
                const auto gpu = [] { return cuda::make_cuda_backend(0); };
                CHECK(after(gpu, program.appends) == after(gpu, program.whole));
                if (type != CacheType::F16 || latent) continue;
                const auto exact = [] { return reference::make_reference_backend(); };
                CHECK(after(exact, program.appends) == after(exact, program.whole));
            }
}

TEST_CASE("cuda append only: a step is one launch, which writes nothing but the cache") {
    for (const int32_t dim : {64, 264})  // narrow and wide heads
        for (const CacheType type : {CacheType::F16, CacheType::Q4_0})
            for (const int32_t tokens : {1, 40}) {
                const AppendProgram program(5, false, dim);
                const auto launches_of = [&](const Program &each) {
                    const auto gpu = loaded(cuda::make_cuda_backend(0), each, type);
                    std::vector<int32_t> ids(static_cast<size_t>(tokens), 3), positions(ids.size());
                    std::iota(positions.begin(), positions.end(), 0);
                    const std::vector<BlockId> table = {1, 2};
                    const SequenceSpan span{0, tokens, 0, {table}};
                    const int64_t before = gpu->launches();
                    simt::take_reports();
                    REQUIRE(gpu->execute({ids, positions, {&span, 1}, {}}, {}));
                    return gpu->launches() - before;
                };
                const int64_t without = launches_of(program.without);
                CHECK(launches_of(program.appends) == without + 1);
                if (!simt::emulated()) continue;
                const auto reports = simt::take_reports();
                REQUIRE(!reports.empty());
                CHECK(reports.back().kernel == "attention append");
                for (const auto &[region, traffic] : reports.back().traffic) {
                    CAPTURE(region);
                    CHECK((traffic.written > 0) == (region == "the K cache" || region == "the V cache"));
                }
            }
}

TEST_CASE("cuda append only: attention with queries and no output is refused") {
    AppendProgram program(5, false, 64);
    auto &attention = std::get<Attention>(program.appends.steps.back());
    const auto missing = [&] { return cuda::missing_kernels(program.appends).back(); };
    CHECK(missing().empty());
    attention.out = 0;
    CHECK(missing().find("queries and outputs") != std::string::npos);
    attention.out = kNoSlot, attention.k = attention.v = kNoSlot;
    CHECK(missing().find("nor keys") != std::string::npos);
}
