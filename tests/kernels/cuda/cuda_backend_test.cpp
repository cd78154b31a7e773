// Everything that the backend does besides computing: loading, launching, freeing and refusing.
#include "kernels/cuda/cuda_backend.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/linear/tiles.h"
#include "kernels/cuda/runtime/switches.h"
#include "tests/kernels/cuda/sequence_runner.h"
#include "tests/simt/simt.h"
#include "tests/simt/turing.h"
#include "tests/support/cache_types.h"
#include "tests/support/skip.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels;
using namespace runnel::tests;

TEST_CASE("cuda backend: weights that several threads read arrive as they are") {
    const TinyProgram tiny({.layers = 1,
                            .width = 512,
                            .feed_forward = 768,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim_k = 64,
                            .head_dim_v = 64},
                           46);
    size_t bytes = 0;
    for (const Weight &w : tiny.program().weights) bytes += w.bytes();
    REQUIRE(bytes > size_t{4} << 20);  // one thread per megabyte, limited by the CPUs
    const std::vector<int32_t> tokens = random_tokens(3, 50, 9);
    Runner gpu(cuda::make_cuda_backend(0), tiny.program());
    const Distance d = distance(reference_logits(tiny.program(), tokens), gpu.run(tokens, 3));
    CHECK(d.kl < 1e-7);
}

TEST_CASE("cuda backend: a layer of a mixture is seven launches for one token, one more for several") {
    constexpr int64_t kLayers = 2;
    const TinyProgram tiny({.layers = kLayers,
                            .heads = 8,
                            .kv_heads = 2,
                            .head_dim_k = 64,
                            .head_dim_v = 64,
                            .type = gguf::Type::Q8_0,
                            .experts = {.count = 11}},
                           45);
    const std::vector<int32_t> tokens = random_tokens(20, 50, 8);
    Runner runner(cuda::make_cuda_backend(0), tiny.program());
    const auto launches_of = [&](size_t count) {
        const int64_t before = runner.backend().launches();
        runner.run(std::span(tokens).first(count), count);
        return runner.backend().launches() - before;
    };
    // q, k and v; attention; output; router, choice and groups; gate and up; down; sum. The others as for a dense model, but the
    // sum of the last layer does the last norm, and with several tokens there is the first one.
    constexpr int64_t kOthers = 2 + 3;
    CHECK(launches_of(1) == 7 * kLayers + kOthers - 1);
    // The norm behind the output.
    CHECK(launches_of(8) == 8 * kLayers + kOthers);
    // The router, the groups, the quantization before down.
    CHECK(launches_of(16) == 11 * kLayers + kOthers);
    // The append, the quantization before the output, the norm behind the sum; q, k and v, output and router in two slices.
    CHECK(launches_of(20) == 17 * kLayers + 2 + 2 * 3);
}

TEST_CASE("cuda backend: launches are counted, those of graphs at every replay") {
    constexpr int64_t kLayers = 3;
    const TinyProgram tiny({.layers = kLayers,
                            .heads = 8,
                            .kv_heads = 2,
                            .head_dim_k = 64,
                            .head_dim_v = 64,
                            .type = gguf::Type::Q8_0},
                           45);
    const std::vector<int32_t> tokens = random_tokens(40, 50, 8);
    Runner runner(cuda::make_cuda_backend(0), tiny.program());
    const auto launches_of = [&](size_t count, size_t chunk) {
        const int64_t before = runner.backend().launches();
        simt::take_reports();
        runner.run(std::span(tokens).first(count), chunk);
        const int64_t counted = runner.backend().launches() - before;
        if (simt::emulated()) CHECK(counted == static_cast<int64_t>(simt::take_reports().size()));
        return counted;
    };
    // One token: q, k and v; attention; output; gate and up; down, which prepare their own input or, where there is no norm, that
    // of the next. Also the embedding and the last norm; gathering, quantizing and multiplying the logits' rows.
    constexpr int64_t kStep = 5 * kLayers + 2 + 3;
    CHECK(launches_of(1, 1) == kStep);
    CHECK(launches_of(3, 1) == 3 * kStep);
    // With several tokens, norms have separate launches;
    CHECK(launches_of(7, 7) == 7 * kLayers + 2 + 3);
    // with many, so has every quantization, attention appends separately and has its own kernel, and 40 rows
    // of logits are computed in three parts.
    CHECK(launches_of(40, 40) == 11 * kLayers + 2 + 3 * 3);
}

namespace {

// Sets RUNNEL_CUDA_OFF in a scope.
class Without {
  public:
    explicit Without(const char *names) { setenv(cuda::kSwitchesVariable, names, 1); }
    ~Without() { unsetenv(cuda::kSwitchesVariable); }
    Without(const Without &) = delete;
    Without &operator=(const Without &) = delete;
};

}  // namespace

TEST_CASE("cuda backend: the same bits from code for another architecture, and with parts left out") {
    for (const int32_t experts : {0, 5}) {
        CAPTURE(experts);
        const TinyProgram tiny({.layers = 2,
                                .width = 256,
                                .feed_forward = 512,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim_k = 64,
                                .head_dim_v = 64,
                                .type = gguf::Type::Q4_K,
                                .experts = {.count = experts}},
                               49);
        const std::vector<int32_t> tokens = random_tokens(experts > 0 ? 3 : 5, 50, 10);
        const auto run = [&] {
            Runner runner(cuda::make_cuda_backend(0), tiny.program());
            return runner.run(tokens, 1);
        };
        const auto expected = run();
        // {9, 80}: code that a driver for sm_90 compiled from PTX for sm_80, which has no wait.
        for (const auto &[major, code] : {std::pair{9, 80}, {9, 90}, {12, 90}, {8, 80}}) {
            CAPTURE(major);
            CAPTURE(code);
            simt::settings().major = major;
            simt::settings().code = code;
            CHECK(run() == expected);
            simt::settings() = {};
        }
        for (const char *names :
             {"pdl", "graphs", "prefetch", "staging", "carveout", "trigger", "peer", "pdl,graphs"}) {
            CAPTURE(names);
            const Without without(names);
            CHECK(run() == expected);
        }
        const Without without("pdl,grahps");
        CHECK_THROWS_AS(run(), BackendError);
    }
}

TEST_CASE(
    "cuda backend: launches fetch the weights of the matrices after them, and the last ones those of the "
    "next step") {
    if (!simt::emulated()) return runnel::testing::skip("only the emulator counts bytes");
    constexpr int64_t kLayers = 2, kWidth = 256, kHidden = 512, kKeys = 128;
    const TinyProgram tiny({.layers = kLayers,
                            .width = kWidth,
                            .feed_forward = kHidden,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim_k = 64,
                            .head_dim_v = 64,
                            .type = gguf::Type::Q4_K},
                           49);
    const auto fetched = [&](size_t tokens) {
        Runner runner(cuda::make_cuda_backend(0), tiny.program());
        simt::take_reports();
        runner.run(random_tokens(tokens, 50, 10), tokens);
        uint64_t all = 0;
        for (const simt::LaunchReport &report : simt::take_reports())
            for (const auto &[region, traffic] : report.traffic) all += traffic.fetched;
        return all;
    };
    const auto bytes = [](int64_t rows, int64_t cols) {
        return static_cast<uint64_t>(cuda::tiled_bytes(cuda::TileFormat::Q4_K, rows, cols));
    };
    const Program &program = tiny.program();
    const Weight &logits =
        program.weights[static_cast<size_t>(std::get<Logits>(program.steps.back()).weight)];
    // Of q, k and v, which are one launch, the first two.
    const uint64_t layer = bytes(kWidth, kWidth) + bytes(kKeys, kWidth) + bytes(kWidth, kWidth) +
                           2 * bytes(kHidden, kWidth) + bytes(kWidth, kHidden);
    const uint64_t expected = kLayers * layer + bytes(logits.rows, logits.cols);
    // Launches that prepare their input fetch the norm's weights, and the first tile of each team, here all there are (of gate
    // and up that of the gate).
    const uint64_t first =
        kLayers * (2 * kWidth * sizeof(float) + bytes(kWidth + 2 * kKeys, kWidth) + bytes(kHidden, kWidth));
    CHECK(fetched(1) == first + expected);
    CHECK(fetched(40) == 0);  // of many tokens the weights are a small part of the time
    const Without without("prefetch");
    CHECK(fetched(1) == first);
}

TEST_CASE("cuda backend: switches are read by name") {
    using cuda::Switches, cuda::switches_without;
    CHECK(switches_without("") == Switches{});
    CHECK(switches_without("pdl") == Switches{.pdl = false});
    CHECK(switches_without("trigger,graphs") == Switches{.graphs = false, .trigger = false});
    CHECK(switches_without("carveout,prefetch,") == Switches{.prefetch = false, .carveout = false});
    CHECK(switches_without("nccl") == Switches{.nccl = false});
    CHECK(switches_without("staging") == Switches{.staging = false});
    for (const char *wrong : {"PDL", ",", "pdl graphs", "pdl,,graphs", "all"}) {
        CAPTURE(wrong);
        CHECK_THROWS_AS(switches_without(wrong), BackendError);
    }
}

TEST_CASE("cuda backend: a graph whose recording failed is recorded again") {
    if (!simt::emulated()) return;
    const TinyProgram tiny({.layers = 1, .type = gguf::Type::Q4_0}, 47);
    const std::vector<int32_t> tokens = {3, 14}, positions = {0, 1}, rows = {1};
    const std::vector<BlockId> table = {2};
    const SequenceSpan span{0, 2, 0, {table}};
    const auto load = [&] {
        auto backend = cuda::make_cuda_backend(0);
        backend->load(tiny.program(), {{kBlocks}}, kMaxTokens);
        return backend;
    };
    const auto step = [&](Backend &backend) {
        std::vector<float> logits(static_cast<size_t>(tiny.program().vocab));
        backend.execute({tokens, positions, {&span, 1}, rows}, logits);
        return logits;
    };
    const std::vector<float> right = step(*load());
    int failures = 0;
    for (int call = 1; call == 1 + 2 * failures; call += 2) {
        CAPTURE(call);
        const auto backend = load();
        simt::settings().calls = 0;
        simt::settings().fail_at = call;
        try {
            step(*backend);
        } catch (const BackendError &) {
            ++failures;
        }
        simt::settings() = {};
        CHECK(step(*backend) == right);
    }
    CHECK(failures > 5);
}

TEST_CASE("cuda backend: blocks of every type are copied, kept and brought back") {
    const TinyProgram tiny({.layers = 1}, 57), narrow({.layers = 1, .head_dim_k = 40, .head_dim_v = 32}, 58);
    const Program latent = with_latents(narrow);
    const std::vector<int32_t> tokens = random_tokens(32, 50, 12), next = {7};
    const auto check = [&](const Program &program, CacheType type) {
        CAPTURE(static_cast<int>(type));
        Runner runner(cuda::make_cuda_backend(0), program, type, type);
        Backend &backend = runner.backend();
        runner.run(tokens, 32);
        const Logits2 expected = runner.run(next, 1, 32);
        runner.run(tokens, 32);
        std::vector<std::byte> kept(cache_block_bytes(program, 0, type, type));
        backend.copy_blocks(0, std::vector<BlockCopy>{{kBlocks - 1, 0}});  // the table's first and last block
        backend.read_block(0, 0, kept);
        runner.run(std::vector<int32_t>(32, 3), 32);
        backend.write_block(0, kBlocks - 1, kept);
        check_equal(runner.run(next, 1, 32), expected, "from the kept block");
    };
    for (const CacheType type : runnel::testing::kGpuCacheTypes) check(tiny.program(), type);
    for (const CacheType type : {CacheType::F16, CacheType::Q8_0}) check(latent, type);
}

TEST_CASE("cuda backend: lack of memory and missing kernels are reported before the upload") {
    if (!simt::emulated()) {
        runnel::testing::skip("needs the emulator: its device has a size that tests set");
        return;
    }
    const TinyProgram tiny({.layers = 1}, 5);
    simt::settings().memory = size_t{65} << 20;
    try {
        cuda::make_cuda_backend(0)->load(tiny.program(), {{4096}}, kMaxTokens);
        FAIL("accepted");
    } catch (const BackendError &error) {
        CHECK(error.kind == BackendError::Kind::OutOfMemory);
        CHECK(std::string(error.what()).find("choose a smaller context with -c") != std::string::npos);
    }
    simt::settings() = {};
    Program program = tiny.program();
    for (Step &step : program.steps)
        if (auto *norm = std::get_if<Norm>(&step)) step = Copy{norm->in, norm->in, {}, {}, 1, 32};
    try {
        cuda::make_cuda_backend(0)->load(program, {{4}}, kMaxTokens);
        FAIL("accepted");
    } catch (const BackendError &error) {
        CHECK(error.kind == BackendError::Kind::NoKernel);
        CHECK(std::string(error.what()) == "the GPU has no kernel for a copy within one slot yet");
    }
    for (const auto &[k, v] : {std::pair{CacheType::F32, CacheType::F16}, {CacheType::F16, CacheType::F32}})
        try {
            cuda::make_cuda_backend(0)->load(tiny.program(), {{4}, k, v}, kMaxTokens);
            FAIL("accepted");
        } catch (const BackendError &error) {
            CHECK(error.kind == BackendError::Kind::NoKernel);
            CHECK(std::string(error.what()).find("f32, which it would round to f16: choose f16, bf16") !=
                  std::string::npos);
        }
}

TEST_CASE("cuda backend: heads that need more than Turing has are refused by name before the upload") {
    if (!simt::emulated()) {
        runnel::testing::skip("needs the emulator: its device has a kind that tests set");
        return;
    }
    const simt::Turing turing;
    const TinyProgram wide({.heads = 2, .kv_heads = 1, .head_dim_k = 264, .head_dim_v = 272}, 62);
    const TinyProgram widest_that_fits({.heads = 2, .kv_heads = 1, .head_dim_k = 256, .head_dim_v = 256}, 62);
    const auto backend = cuda::make_cuda_backend(0);
    int64_t told = 0;
    backend->on_load([&](size_t, size_t) { return ++told > 0; });
    simt::take_host_traffic();
    simt::take_peak_memory();
    try {
        backend->load(wide.program(), {{4}}, kMaxTokens);
        FAIL("accepted");
    } catch (const BackendError &error) {
        CHECK(error.kind == BackendError::Kind::NoKernel);
        CHECK(std::string(error.what()).find("the model needs the kernel attention wide, which takes") !=
              std::string::npos);
        CHECK(std::string(error.what()).find("use --device cpu") != std::string::npos);
    }
    CHECK(told == 0);
    CHECK(simt::take_host_traffic().bytes_to_device == 0);
    CHECK(simt::take_peak_memory() == 0);
    backend->load(widest_that_fits.program(), {{4}}, kMaxTokens);
    CHECK(told > 0);
    CHECK(simt::take_host_traffic().bytes_to_device > 0);
}
