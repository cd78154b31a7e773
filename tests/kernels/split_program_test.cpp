// A program split over several devices gives the results of one, bit for bit, if all are of the same kind.
#include "kernels/split_program.h"

#include <doctest/doctest.h>

#include <atomic>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/runtime/memory_need.h"
#include "kernels/split_backend.h"
#include "tests/simt/simt.h"
#include "tests/support/program_runs.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels;
using tests::CancellingBackend;
using tests::kBlocks;
using tests::kMaxTokens;
using tests::random_tokens;
using tests::run;
using tests::run_branch;
using tests::same;
using tests::TinyProgram;
using tests::TinyShape;

namespace {

// Makes device number `number` of several.
using MakeDevice = std::unique_ptr<Backend> (*)(int number);
std::unique_ptr<Backend> one_cpu(int) {
    return cpu::make_cpu_backend(1);
}
std::unique_ptr<Backend> cpu_device_of_threads(int) {
    return cpu::make_cpu_backend(3);
}
std::unique_ptr<Backend> gpu_device(int number) {
    return cuda::make_cuda_backend(number);
}

// While this exists, there are this many emulated GPUs.
struct Gpus {
    explicit Gpus(int count) { simt::settings().devices = count; }
    ~Gpus() { simt::settings() = {}; }
};

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

std::unique_ptr<Backend> split_over(MakeDevice make, uint32_t devices, std::vector<uint8_t> device) {
    std::vector<std::unique_ptr<Backend>> backends;
    std::vector<std::string> names;
    for (uint32_t i = 0; i < devices; ++i) {
        backends.push_back(make(static_cast<int>(i)));
        names.push_back("number " + std::to_string(i));
    }
    return make_split_backend(
        std::move(backends), [device](const Program &) { return device; }, names);
}

// The first, second and last third of the steps.
std::vector<uint8_t> in_three(const Program &program) {
    std::vector<uint8_t> device(program.steps.size());
    for (size_t i = 0; i < device.size(); ++i) device[i] = static_cast<uint8_t>(3 * i / device.size());
    return device;
}

// Bytes of the rows that cross devices in a batch of `tokens` tokens.
uint64_t crossing_bytes(const Program &program, std::span<const uint8_t> device, uint32_t devices,
                        uint64_t tokens) {
    const SplitProgram split = split_program(program, device, devices);
    uint64_t bytes = 0;
    for (const SplitProgram::Stage &stage : split.stages)
        for (const Slot slot : split.programs[stage.device].parts[static_cast<size_t>(stage.part)].in) {
            const int64_t width = program.slots[static_cast<size_t>(slot)].width;
            bytes += tokens * static_cast<uint64_t>(cuda::stride_of(width)) * sizeof(float);
        }
    return bytes;
}

void check_splits(const Program &program, MakeDevice make, uint32_t seed, int rounds,
                  CacheType k = CacheType::F16, CacheType v = CacheType::F16, uint32_t devices = 2) {
    const std::vector<int32_t> tokens = random_tokens(kMaxTokens, seed);
    const CacheConfig cache{{kBlocks}, k, v};
    const auto whole = make(0);
    whole->load(program, cache, kMaxTokens);
    const std::vector<float> expected = run(*whole, program, tokens, tokens.size());
    const std::vector<float> guesses = run_branch(*whole, program, tokens, 37);
    for (int round = 0; round < rounds; ++round) {
        CAPTURE(seed);
        CAPTURE(round);
        const auto backend = split_over(
            make, devices, random_assignment(program, seed * 100 + static_cast<uint32_t>(round), devices));
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

TEST_CASE("split program: one to eight CPUs give the bits of one") {
    for (uint32_t devices = 1; devices <= 8; ++devices) {
        CAPTURE(devices);
        const uint32_t seed = 30 + devices;
        const TinyProgram tiny({.layers = 3, .varied = devices > 2, .type = gguf::Type::Q8_0}, seed);
        check_splits(tiny.program(), one_cpu, seed, 2, CacheType::F16, CacheType::F16, devices);
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
    const Gpus gpus(2);
    const TinyProgram dense({.layers = 1, .head_norm = true, .bias = true, .type = gguf::Type::Q4_0}, 11);
    check_splits(dense.program(), gpu_device, 11, 1);
    const TinyProgram experts(
        {.layers = 1, .type = gguf::Type::Q8_0, .experts = {.count = 5, .routing = {.used = 2}}}, 12);
    check_splits(experts.program(), gpu_device, 12, 2);
    const TinyProgram packed({.layers = 1, .head_dim_k = 32, .head_dim_v = 32, .type = gguf::Type::Q8_0}, 13);
    check_splits(packed.program(), gpu_device, 13, 1, CacheType::Q8_0, CacheType::Q4_0);
}

TEST_CASE("split program: three to eight GPUs give the bits of one, with and without copies between them") {
    for (uint32_t devices = 3; devices <= 8; ++devices) {
        CAPTURE(devices);
        const Gpus gpus(static_cast<int>(devices));
        simt::settings().peers = devices % 2 == 0;
        const uint32_t seed = 40 + devices;
        const TinyProgram tiny({.layers = 1, .type = devices > 5 ? gguf::Type::Q8_0 : gguf::Type::F32}, seed);
        check_splits(tiny.program(), gpu_device, seed, 1, CacheType::F16, CacheType::F16, devices);
    }
}

TEST_CASE("split program: GPUs copy what the next one reads, and nothing goes through the host") {
    const TinyProgram tiny({.layers = 3, .type = gguf::Type::Q8_0}, 51);
    const Program &program = tiny.program();
    const std::vector<int32_t> tokens = random_tokens(5, 51);
    std::vector<uint8_t> device = random_assignment(program, 52, 3);
    for (const bool peers : {true, false}) {
        CAPTURE(peers);
        const Gpus gpus(3);
        simt::settings().peers = peers;
        const auto backend = split_over(gpu_device, 3, device);
        backend->load(program, {{kBlocks}}, kMaxTokens);
        run(*backend, program, tokens, tokens.size());
        simt::take_host_traffic();
        run(*backend, program, tokens, tokens.size());
        const simt::HostTraffic traffic = simt::take_host_traffic();
        const uint64_t crossing = crossing_bytes(program, device, 3, tokens.size());
        const uint64_t logits = tokens.size() * static_cast<uint64_t>(program.vocab) * sizeof(float);
        CHECK(crossing > 0);
        CHECK(traffic.peer_bytes == (peers ? crossing : 0));
        // Through the host, a slot that two devices read is copied there once.
        if (peers) CHECK(traffic.bytes_to_host == logits);
        if (!peers) CHECK(traffic.bytes_to_host > logits);
    }
}

TEST_CASE(
    "split program: a batch that is cancelled on the second of three devices leaves earlier cells intact") {
    const Gpus gpus(3);
    const TinyProgram tiny({.layers = 3, .type = gguf::Type::Q8_0}, 53);
    const Program &program = tiny.program();
    std::atomic<bool> cancel = false, armed = false;
    std::vector<std::unique_ptr<Backend>> three;
    for (int i = 0; i < 3; ++i) three.push_back(gpu_device(i));
    three[1] = std::make_unique<CancellingBackend>(std::move(three[1]), armed, cancel);
    const auto backend = make_split_backend(std::move(three), in_three);
    backend->load(program, {{kBlocks}}, kMaxTokens);
    const std::vector<int32_t> tokens = random_tokens(20, 53);
    const std::vector<float> expected = run(*backend, program, tokens, 10);
    run(*backend, program, std::span(tokens).first(10), 10);
    std::vector<BlockId> table(kBlocks);
    std::iota(table.rbegin(), table.rend(), 0);
    const std::vector<int32_t> positions = {10, 11}, rows = {0};
    const SequenceSpan span{0, 2, 10, {table}};
    std::vector<float> logits(static_cast<size_t>(program.vocab));
    armed = true;
    CHECK(
        !backend->execute({std::span(tokens).subspan(10, 2), positions, {&span, 1}, rows, &cancel}, logits));
    CHECK(cancel);
    armed = false;
    const std::vector<float> tail = run(*backend, program, std::span(tokens).last(10), 10, 10);
    CHECK(same(tail, {expected.end() - static_cast<std::ptrdiff_t>(tail.size()), expected.end()}));
}

TEST_CASE("split program: errors name the device that failed") {
    const Gpus gpus(3);
    const TinyProgram tiny({.layers = 3, .type = gguf::Type::Q8_0}, 54);
    const Program &program = tiny.program();
    const std::vector<uint8_t> device = in_three(program);
    const auto error_of = [](auto f) -> std::string {
        try {
            f();
        } catch (const BackendError &error) {
            return error.what();
        }
        return "none";
    };
    simt::settings().device_without_memory = 1;
    CHECK(error_of([&] {
              split_over(gpu_device, 3, device)->load(program, {{kBlocks}}, kMaxTokens);
          }).starts_with("number 1: emulated device: no memory for "));
    simt::settings().device_without_memory = -1;
    simt::settings().memory_of = {size_t{1} << 30, size_t{1} << 30, 1000};
    CHECK(error_of([&] {
              split_over(gpu_device, 3, device)->load(program, {{kBlocks}}, kMaxTokens);
          }).starts_with("number 2: the GPU has 1 MiB free, but "));
    simt::settings().memory_of.clear();
    // Nothing of the failed attempts remains, and the next one works.
    const auto backend = split_over(gpu_device, 3, device);
    backend->load(program, {{kBlocks}}, kMaxTokens);
    CHECK(run(*backend, program, random_tokens(3, 55), 3).size() == 3 * static_cast<size_t>(program.vocab));
    CHECK(backend->info().name == "3 x emulated device");
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

TEST_CASE("split program: a program in two parts gives the slot between them, and the same logits") {
    for (uint32_t seed = 61; seed <= 66; ++seed) {
        CAPTURE(seed);
        const uint32_t devices = seed - 59;
        const Gpus gpus(static_cast<int>(devices));
        const TinyProgram tiny({.layers = 2, .type = gguf::Type::Q8_0}, seed);
        Program program = tiny.program();
        const std::vector<uint8_t> device = random_assignment(program, seed, devices);
        const Slot hidden = std::get<Logits>(program.steps.back()).in;
        const int64_t width = program.slots[static_cast<size_t>(hidden)].width;
        program.parts = {{program.steps.size() - 1, {}, {hidden}}, {program.steps.size(), {}, {}}};
        const MakeDevice make = seed % 2 ? gpu_device : one_cpu;
        std::vector<float> logits[2], states[2];
        for (const bool split : {false, true}) {
            const auto backend = split ? split_over(make, devices, device) : make(0);
            backend->load(program, {{kBlocks}}, kMaxTokens);
            const std::vector<int32_t> tokens = random_tokens(6, seed), positions = {0, 1, 2, 3, 4, 5},
                                       rows = {5};
            const std::vector<BlockId> table = {0};
            const SequenceSpan span{0, 6, 0, {table}};
            Batch batch{tokens, positions, {&span, 1}, rows};
            REQUIRE(backend->execute(batch, {}));
            const SlotRows rows_of = backend->exchange(hidden);
            for (int64_t t = 0; t < 6; ++t)
                states[split].insert(states[split].end(), rows_of.data + t * rows_of.stride,
                                     rows_of.data + t * rows_of.stride + width);
            logits[split].resize(static_cast<size_t>(program.vocab));
            batch.part = 1;
            REQUIRE(backend->execute(batch, logits[split]));
        }
        CHECK(same(states[0], states[1]));
        CHECK(same(logits[0], logits[1]));
    }
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
