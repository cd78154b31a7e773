// Faults injected into the kernels' own launches: a missing fence, a missing wait, a launch attribute without the
// wait, and a stream of memory that is not constant. The emulator finds each.
// (Faults in inline assembly and fragments: inline_assembly_test.cpp, tests/ptx/replay_test.cpp, tests/simt/.)
#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/experts/experts.h"
#include "tests/kernels/cuda/attention/attention_problem.h"
#include "tests/kernels/cuda/linear/linear_support.h"
#include "tests/kernels/cuda/sequence_runner.h"
#include "tests/simt/simt.h"
#include "tests/support/skip.h"

using namespace runnel;
using namespace runnel::kernels::cuda;
using namespace runnel::tests;

namespace {

// The Violation of the work with these faults; empty if there is none.
std::string found(const simt::Faults &faults, const std::function<void()> &work, uint64_t seed = 1) {
    simt::settings().faults = faults;
    simt::settings().seed = seed;
    std::string error;
    try {
        work();
    } catch (const simt::Violation &e) {
        error = e.what();
    }
    simt::settings() = {};
    return error;
}

bool mentions(const std::string &error, const std::string &words) {
    return error.find(words) != std::string::npos;
}

// A step of decode: launches that prepare the next one's input.
void decode_step() {
    const TinyProgram tiny({.width = 256,
                            .feed_forward = 512,
                            .heads = 8,
                            .kv_heads = 2,
                            .head_dim_k = 64,
                            .head_dim_v = 64,
                            .type = gguf::Type::Q8_0},
                           45);
    Runner runner(make_cuda_backend(0), tiny.program());
    const std::vector<int32_t> table = {0}, first = {0};
    const kernels::SequenceSpan span{0, 1, 0, {table}};
    std::vector<float> logits(static_cast<size_t>(tiny.program().vocab));
    (void)runner.backend().execute({first, first, {&span, 1}, first}, logits);
}

// Decode attention in several splits, combined by the last block.
void split_attention() {
    run(make_problem({attention(4, 2, 32, 32), {{700, 1}}, {}}, 1), Way::Decode);
}

void prefill_attention() {
    run(make_problem({attention(4, 2, 32, 32), {{0, 90}}, {}}, 1), Way::Prefill);
}

// The router of one token: the last of two blocks chooses its experts.
void route() {
    using namespace tests::device;
    constexpr int32_t kExperts = 16, kUsed = 2, kCols = 256;
    Stream stream;
    std::mt19937 random(5);
    const Matrix matrix(stream, gguf::Type::F32, kExperts, kCols, random);
    const Input input(stream, random_activations(kCols, random), kCols, 1);
    const auto memory = [&](size_t count) { return upload(stream, std::vector<uint32_t>(count), "routing"); };
    const DeviceMemory logits = memory(kExperts), arrivals = memory(1), chosen = memory(kUsed),
                       weights = memory(kUsed), sources = memory(kUsed), gate = memory(kUsed),
                       up = memory(kUsed), rows = memory(kUsed), few = memory(3 * kUsed), count = memory(1);
    RouteGroupsParams p{};
    p.route.logits = logits.as<const float>(), p.route.stride = kExperts;
    p.route.tokens = 1, p.route.experts = kExperts, p.route.used = kUsed;
    p.route.groups = p.route.groups_used = p.route.group_best = 1;
    p.route.scale = 1;
    p.route.chosen = chosen.as<int32_t>(), p.route.weights = weights.as<float>();
    p.groups.chosen = chosen.as<const int32_t>(), p.groups.weights = weights.as<const float>();
    p.groups.pairs = p.groups.used = kUsed, p.groups.experts = kExperts;
    p.groups.sources = sources.as<int32_t>(), p.groups.rows = rows.as<int32_t>();
    p.groups.row_weights[0] = gate.as<float>(), p.groups.row_weights[1] = up.as<float>();
    p.groups.few = few.as<TokenGroup>(), p.groups.few_count = count.as<int32_t>();
    p.router = {matrix.tiles.data(),
                nullptr,
                input.plain.as<const float>(),
                input.stride,
                kCols,
                1,
                logits.as<float>(),
                arrivals.as<uint32_t>()};
    launch(stream, route_groups_kernel(),
           {static_cast<uint32_t>(router_blocks(kExperts)), kRouteGroupsShared}, p);
    stream.wait();
}

// The sum of one token's experts: the last of two blocks quantizes it.
void sum_experts() {
    using namespace tests::device;
    constexpr int32_t kUsed = 2, kWidth = 512;
    Stream stream;
    std::mt19937 random(6);
    const DeviceMemory y = upload(stream, random_activations(kUsed * kWidth, random), "outputs"),
                       rows = upload(stream, std::vector<int32_t>{1, 0}, "rows"),
                       out = upload(stream, std::vector<float>(kWidth), "out"),
                       arrivals = upload(stream, std::vector<uint32_t>(1), "arrivals");
    const Input prepared(stream, std::vector<float>(kWidth), kWidth, 1);
    CombineParams p{};
    p.y = y.as<const float>(), p.rows = rows.as<const int32_t>(), p.out = out.as<float>();
    p.y_stride = p.out_stride = p.width = kWidth;
    p.tokens = 1, p.used = kUsed;
    p.prepare = {out.as<const float>(), nullptr, nullptr, 0, kWidth, kWidth, prepared.quantized};
    p.arrivals = arrivals.as<uint32_t>();
    launch(stream, combine_kernel(), {static_cast<uint32_t>(combine_blocks(1, kWidth)), kCombineShared}, p);
    stream.wait();
}

// Outputs of two experts, each quantized by the block that completes it.
void multiply_experts() {
    using namespace tests::device;
    constexpr int32_t kRows = 32, kCols = 2048;
    Stream stream;
    std::mt19937 random(7);
    const Matrix matrix(stream, gguf::Type::Q8_0, 2 * kRows, kCols, random);
    const Input input(stream, random_activations(kCols, random), kCols, 1);
    const DeviceMemory groups = upload(stream, std::vector<TokenGroup>{{0, 0, 1}, {1, 1, 1}}, "groups"),
                       count = upload(stream, std::vector<int32_t>{2}, "count"),
                       sources = upload(stream, std::vector<int32_t>{0, 0}, "sources"),
                       out = upload(stream, std::vector<float>(2 * kRows), "out"),
                       arrivals = upload(stream, std::vector<uint32_t>(2), "arrivals");
    const Input prepared(stream, std::vector<float>(2 * kRows), kRows, 2);
    LinearParams p = params_for(input, 2);
    p.groups = groups.as<const TokenGroup>(), p.group_count = count.as<const int32_t>();
    p.sources = sources.as<const int32_t>();
    p.x_rows = p.matrices = 1;
    p.matrix[0] = {matrix.tiles.data(), nullptr, nullptr, out.as<float>(), 0, kRows, kRows};
    p.prepare = {out.as<const float>(), nullptr, nullptr, 0, kRows, kRows, prepared.quantized};
    p.prepare.out.halves = nullptr;
    p.arrivals = arrivals.as<uint32_t>();
    const LinearVersion version{kSmallGroupTokens, true, true};
    launch(stream, linear_kernel(TileFormat::Q8_0, version), {4, linear_shared(TileFormat::Q8_0, version, p)},
           p);
    stream.wait();
}

}  // namespace

TEST_CASE("cuda faults: each fence of the kernels is needed, and its absence is found for any order") {
    if (!simt::emulated()) return testing::skip("the emulator's faults");
    for (uint64_t seed = 1; seed <= 5; ++seed) {
        CAPTURE(seed);
        for (const auto &work : {decode_step, split_attention, route, sum_experts, multiply_experts}) {
            CHECK(found({}, work, seed) == "");
            for (const int fence : {1, 2}) {  // before and after the atomic
                CAPTURE(fence);
                CHECK(mentions(found({.fence = fence}, work, seed), "race: "));
            }
        }
    }
}

TEST_CASE("cuda faults: a dependent launch without the wait is found") {
    if (!simt::emulated()) return testing::skip("the emulator's faults");
    for (uint64_t seed = 1; seed <= 5; ++seed) {
        CAPTURE(seed);
        // The launch reads too early: bytes that are not written yet, or any bytes.
        const std::string error = found({.dependent_wait = true}, decode_step, seed);
        CAPTURE(error);
        CHECK((mentions(error, "never written") || mentions(error, "grid_dep_wait()")));
    }
    // The kernels' waits are not needed where the launches are not dependent.
    const auto alone = [] {
        simt::settings().major = 8;
        decode_step();
    };
    CHECK(found({.dependent_wait = true}, alone) == "");
}

TEST_CASE("cuda faults: a missing wait for asynchronous copies is found") {
    if (!simt::emulated()) return testing::skip("the emulator's faults");
    for (const auto &work : {split_attention, prefill_attention}) {
        CHECK(found({}, work) == "");
        CHECK(mentions(found({.async_wait = true}, work), "cp_async_wait is missing"));
    }
}

TEST_CASE("cuda faults: weights in memory that may change must not be streamed") {
    if (!simt::emulated()) return testing::skip("the emulator's faults");
    using namespace tests::device;
    const auto multiply = [](bool constant) {
        Stream stream;
        std::mt19937 random(3);
        const Matrix matrix(stream, gguf::Type::Q6_K, 21, 512, random);
        if (!constant) name_region(matrix.tiles.data(), matrix.tiles.size(), "tiles", Region::Data);
        const Input input(stream, random_activations(512, random), 512, 1);
        const DeviceMemory out = upload(stream, std::vector<float>(21), "out");
        LinearParams p = params_for(input, 1);
        p.matrices = 1;
        p.matrix[0] = {matrix.tiles.data(), nullptr, nullptr, out.as<float>(), 0, 21, 21};
        const SharedBytes shared = linear_shared(TileFormat::Q6_K, {.tokens = 1, .staged = true}, p);
        launch(stream, linear_kernel(TileFormat::Q6_K, {.tokens = 1, .staged = true}), {2, shared, false}, p);
        stream.wait();
    };
    CHECK(found({}, [&] { multiply(true); }) == "");
    CHECK(mentions(found({}, [&] { multiply(false); }), "ldg*_stream of tiles, which is not a weight"));
}
