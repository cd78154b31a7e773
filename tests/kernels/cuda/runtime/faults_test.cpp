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

}  // namespace

TEST_CASE("cuda faults: each fence of the kernels is needed, and its absence is found for any order") {
    if (!simt::emulated()) return testing::skip("the emulator's faults");
    for (uint64_t seed = 1; seed <= 5; ++seed) {
        CAPTURE(seed);
        for (const auto &work : {decode_step, split_attention}) {
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
