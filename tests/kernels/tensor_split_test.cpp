// A program cut by rows gives the bits of one device, for any number of ranks, shares and formats.
#include <doctest/doctest.h>

#include <string>

#include "kernels/expert_halves.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/steps.h"
#include "kernels/tensor_backend.h"
#include "kernels/tensor_program.h"
#include "tests/support/counting_communicator.h"
#include "tests/support/program_runs.h"
#include "tests/support/split_ranks.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels;
using tests::Gpus;
using tests::kBlocks;
using tests::kMaxTokens;
using tests::make_ranks;
using tests::MakeDevice;
using tests::mixture;
using tests::one_cpu;
using tests::one_gpu;
using tests::random_tokens;
using tests::rank_names;
using tests::Ranks;
using tests::run;
using tests::run_branch;
using tests::same;
using tests::Shares;
using tests::shares_of;
using tests::TinyProgram;
using tests::TinyShape;

namespace {

void check_tensor(const Program &program, MakeDevice make, size_t ranks, uint32_t seed,
                  CacheType k = CacheType::F16, CacheType v = CacheType::F16) {
    CAPTURE(ranks);
    CAPTURE(seed);
    const std::vector<int32_t> tokens = random_tokens(kMaxTokens, seed);
    const CacheConfig cache{{kBlocks}, k, v};
    const auto whole = make(0);
    whole->load(program, cache, kMaxTokens);
    const std::vector<float> expected = run(*whole, program, tokens, tokens.size());
    const std::vector<float> guesses = run_branch(*whole, program, tokens, 37);
    const auto backend =
        make_tensor_backend(make_ranks(make, ranks), shares_of(ranks, seed), rank_names(ranks));
    backend->load(program, cache, kMaxTokens);
    REQUIRE(same(run(*backend, program, tokens, tokens.size()), expected));
    REQUIRE(same(run_branch(*backend, program, tokens, 37), guesses));
    REQUIRE(same(run(*backend, program, tokens, 7), expected));
    // A saved block, and a copied one, have the content of all devices.
    std::vector<std::byte> kept(cache_block_bytes(program, 0, k, v));
    backend->read_block(0, kBlocks - 1, kept);
    run(*backend, program, random_tokens(32, seed + 1), 32);
    backend->write_block(0, 1, kept);
    backend->copy_blocks(0, std::vector<BlockCopy>{{1, kBlocks - 1}});
    const std::vector<float> tail = run(*backend, program, std::span(tokens).last(8), 3, 32);
    REQUIRE(same(tail, {expected.end() - static_cast<std::ptrdiff_t>(tail.size()), expected.end()}));
    // A part of a block is not the whole one's.
    std::vector<std::byte> again(kept.size());
    backend->read_block(0, kBlocks - 1, again);
    CHECK(again == kept);
}

size_t matrix_bytes(const Program &program) {
    size_t bytes = 0;
    for (const Weight &w : program.weights)
        if (w.rows > 1) bytes += w.bytes();
    return bytes;
}

}  // namespace

TEST_CASE("tensor split: one to eight CPUs give the bits of one") {
    constexpr gguf::Type kTypes[] = {gguf::Type::F32, gguf::Type::Q8_0, gguf::Type::Q4_0, gguf::Type::F16};
    for (uint32_t ranks = 1; ranks <= 8; ++ranks)
        for (uint32_t round = 0; round < 3; ++round) {
            const uint32_t seed = 3 * ranks + round;
            TinyShape shape{.layers = 3, .type = kTypes[seed % 4]};
            shape.varied = round > 0;
            shape.heads = 8, shape.kv_heads = std::vector<int32_t>{1, 2, 4, 8}[(ranks + round) % 4];
            shape.width = 96, shape.feed_forward = 160, shape.vocab = 150;
            const TinyProgram tiny(shape, seed);
            check_tensor(tiny.program(), one_cpu, ranks, seed);
        }
}

TEST_CASE("tensor split: experts, windows, norms of heads, biases and packed caches on CPUs") {
    constexpr CacheType kTypes[] = {CacheType::Q8_0, CacheType::Q5_1, CacheType::FP8, CacheType::IQ4_NL};
    for (uint32_t seed = 1; seed <= 6; ++seed) {
        TinyShape shape{
            .layers = 2, .width = 128, .head_dim_k = 32, .head_dim_v = 32, .type = gguf::Type::Q8_0};
        shape.heads = 6, shape.kv_heads = 3, shape.window = seed % 2 ? 11 : 0;
        shape.head_norm = shape.bias = seed % 3 == 0;
        if (seed > 3) shape.experts = {.count = 5, .routing = {.used = 2}, .shared = true};
        const TinyProgram tiny(shape, seed);
        check_tensor(tiny.program(), one_cpu, 1 + seed, seed, kTypes[seed % 4], kTypes[seed / 2 % 4]);
    }
}

TEST_CASE("tensor split: experts cut by rows on CPUs, with all options, give the bits of one") {
    for (uint32_t seed = 0; seed < 24; ++seed)
        check_tensor(TinyProgram(mixture(seed), 300 + seed).program(), one_cpu, 2 + seed % 7, seed);
}

TEST_CASE("experts in two steps give the bits of one step, on every kind of device") {
    const Gpus gpus(1);
    for (uint32_t seed = 0; seed < 12; ++seed) {
        CAPTURE(seed);
        const TinyProgram tiny(mixture(seed), 330 + seed);
        const Program halves = with_expert_halves(tiny.program());
        REQUIRE(halves.steps.size() > tiny.program().steps.size());
        const std::vector<int32_t> tokens = random_tokens(9, seed);
        std::vector<MakeDevice> devices = {
            one_cpu, [](int) -> std::unique_ptr<Backend> { return reference::make_reference_backend(); }};
        if (seed % 5 == 0) devices.push_back(one_gpu);
        for (const MakeDevice make : devices) {
            const auto whole = make(0), two = make(0);
            whole->load(tiny.program(), {{kBlocks}}, kMaxTokens);
            two->load(halves, {{kBlocks}}, kMaxTokens);
            for (const size_t chunk : {size_t{9}, size_t{1}})
                CHECK(same(run(*two, halves, tokens, chunk), run(*whole, tiny.program(), tokens, chunk)));
        }
    }
}

TEST_CASE("tensor split: every matrix of a mixture is on one rank only, in proportion to the shares") {
    TinyShape shape{.layers = 2, .type = gguf::Type::Q8_0};
    shape.heads = shape.kv_heads = 8, shape.feed_forward = shape.vocab = shape.width = 128;
    shape.experts = {.count = 8, .routing = {.used = 4}, .biases = true};
    for (const bool merged : {false, true}) {
        shape.experts.merged = merged;
        const TinyProgram tiny(shape, 5);
        size_t router = 0, experts = 0;  // the router is on every rank
        for_each_step<Experts>(tiny.program(), [&](const Experts &s) {
            visit_matrices(s, [&](WeightId id, Use) {
                experts += tiny.program().weights[static_cast<size_t>(id)].bytes();
            });
            router += static_cast<size_t>(shape.experts.count * shape.width) * sizeof(float);
        });
        for (const Shares &shares : {Shares{1, 1}, Shares{3, 1}, Shares{1, 0, 2, 1}, Shares(8, 1)}) {
            const TensorProgram tensor = cut_program(tiny.program(), shares);
            const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
            size_t matrices = 0;
            for (size_t r = 0; r < shares.size(); ++r) {
                const Program &rank = tensor.programs[r];
                matrices += matrix_bytes(rank);
                size_t own = 0;
                for_each_step<Experts>(rank, [&](const Experts &s) {
                    visit_matrices(
                        s, [&](WeightId id, Use) { own += rank.weights[static_cast<size_t>(id)].bytes(); });
                });
                CHECK(static_cast<double>(own) == shares[r] / all * static_cast<double>(experts));
            }
            CHECK(matrices == matrix_bytes(tiny.program()) + (shares.size() - 1) * router);
            const int64_t values = shape.layers * (int64_t{shape.heads} * shape.head_dim_v +
                                                   4 * shape.feed_forward + 2 * shape.width) +
                                   shape.width;
            CHECK(gathered_bytes_per_token(tensor) == 4 * (shares.size() - 1) * static_cast<size_t>(values));
        }
    }
}

TEST_CASE("tensor split: two to eight GPUs give the bits of one") {
    for (const uint32_t ranks : {2u, 3u, 5u, 8u}) {
        const Gpus gpus(static_cast<int>(ranks));
        TinyShape shape{.layers = 1, .type = ranks % 2 ? gguf::Type::Q8_0 : gguf::Type::F16};
        shape.kv_heads = ranks == 8 ? 1 : 2;
        shape.head_norm = shape.bias = ranks == 3;
        if (ranks == 5) shape.experts = {.count = 4, .routing = {.used = 2}};
        const TinyProgram tiny(shape, 70 + ranks);
        check_tensor(tiny.program(), one_gpu, ranks, ranks);
    }
    const Gpus gpus(3);
    check_tensor(TinyProgram(mixture(18), 90).program(), one_gpu, 3, 18);
    TinyShape shape{
        .layers = 2, .head_dim_k = 32, .head_dim_v = 32, .varied = true, .type = gguf::Type::Q8_0};
    check_tensor(TinyProgram(shape, 81).program(), one_gpu, 3, 1, CacheType::Q8_0, CacheType::Q4_0);
}

TEST_CASE("tensor split: every matrix of a dense model is on one rank only, and so is the cache") {
    TinyShape shape{.layers = 3, .type = gguf::Type::Q8_0};
    shape.kv_heads = 4, shape.feed_forward = 128, shape.vocab = 128;
    const TinyProgram tiny(shape, 5);
    for (size_t ranks = 1; ranks <= 4; ++ranks) {
        const TensorProgram tensor = cut_program(tiny.program(), Shares(ranks, 1));
        size_t matrices = 0, cache = 0, largest = 0;
        for (const Program &rank : tensor.programs) {
            matrices += matrix_bytes(rank);
            cache += cache_block_bytes(rank, 0);
            largest = std::max(largest, matrix_bytes(rank));
        }
        CHECK(matrices == matrix_bytes(tiny.program()));
        CHECK(cache == cache_block_bytes(tiny.program(), 0));
        if (ranks == 2 || ranks == 4) {
            const auto table = static_cast<size_t>(shape.vocab) * gguf::row_bytes(shape.type, shape.width);
            CHECK(largest == (matrices - table) / ranks + table);
        }
    }
}

TEST_CASE("tensor split: the ranks receive four values per layer and the logits, and nothing else") {
    TinyShape shape{.layers = 3, .type = gguf::Type::Q8_0};
    shape.width = 128, shape.feed_forward = 192, shape.vocab = 150, shape.heads = 8, shape.kv_heads = 2;
    const TinyProgram tiny(shape, 6);
    for (const size_t ranks : {2, 3, 5, 8}) {
        CAPTURE(ranks);
        std::atomic<size_t> bytes = 0;
        const auto backend =
            make_tensor_backend(make_ranks(one_cpu, ranks), Shares(ranks, 1), {},
                                [&](int size) { return tests::counting_communicators(size, bytes); });
        backend->load(tiny.program(), {{kBlocks}}, kMaxTokens);
        constexpr size_t kTokens = 9;
        bytes = 0;
        run(*backend, tiny.program(), random_tokens(kTokens, 7), kTokens);
        const auto heads = static_cast<size_t>(shape.heads * shape.head_dim_v),
                   d = static_cast<size_t>(shape.width), layers = static_cast<size_t>(shape.layers);
        const size_t values = layers * (heads + static_cast<size_t>(shape.feed_forward) + 2 * d) + d;
        const TensorProgram tensor = cut_program(tiny.program(), Shares(ranks, 1));
        CHECK(gathered_bytes_per_token(tensor) == 4 * (ranks - 1) * values);
        const size_t words = 4 * (ranks - 1) * (4 * layers + 1);  // whether the batch is cancelled
        const auto logits = static_cast<size_t>(shape.vocab - tensor.vocabulary.front().size()) * 4 * kTokens;
        CHECK(bytes == kTokens * gathered_bytes_per_token(tensor) + words + logits);
    }
}

TEST_CASE("tensor split: all ranks stop before the same stage, and earlier cells stay") {
    const TinyProgram tiny({.layers = 3, .type = gguf::Type::Q8_0}, 53);
    const Program &program = tiny.program();
    for (const size_t canceller : {0, 2}) {
        std::atomic<bool> cancel = false, armed = false;
        Ranks three = make_ranks(one_cpu, 3);
        three[canceller] =
            std::make_unique<tests::CancellingBackend>(std::move(three[canceller]), armed, cancel);
        const auto backend = make_tensor_backend(std::move(three), {1, 1, 1});
        backend->load(program, {{kBlocks}}, kMaxTokens);
        const std::vector<int32_t> tokens = random_tokens(20, 53);
        const std::vector<float> expected = run(*backend, program, tokens, 10);
        run(*backend, program, std::span(tokens).first(10), 10);
        std::vector<BlockId> table(kBlocks);
        std::iota(table.rbegin(), table.rend(), 0);
        const std::vector<int32_t> positions = {10, 11}, rows = {0};
        const SequenceSpan span{0, 2, 10, {table}};
        std::vector<float> logits(static_cast<size_t>(program.vocab));
        const Batch batch{std::span(tokens).subspan(10, 2), positions, {&span, 1}, rows, &cancel};
        armed = true;
        CHECK(!backend->execute(batch, logits));
        CHECK(cancel);
        armed = false;
        CHECK(!backend->execute(batch, logits));  // cancelled before it begins
        const std::vector<float> tail = run(*backend, program, std::span(tokens).last(10), 10, 10);
        CHECK(same(tail, {expected.end() - static_cast<std::ptrdiff_t>(tail.size()), expected.end()}));
    }
}

TEST_CASE(
    "tensor split: the error of one device ends the batch on all, with its name, and the next batch works") {
    const TinyProgram tiny({.layers = 2, .type = gguf::Type::Q8_0}, 54);
    const Program &program = tiny.program();
    const std::vector<int32_t> tokens = random_tokens(6, 54), positions = {0, 1, 2, 3, 4, 5}, rows = {5};
    for (const size_t failing : {0, 1, 2}) {
        std::atomic<bool> armed = false;
        Ranks three = make_ranks(one_cpu, 3);
        three[failing] = std::make_unique<tests::FailingBackend>(std::move(three[failing]), armed, 1);
        const auto backend = make_tensor_backend(std::move(three), {1, 1, 1}, rank_names(3));
        backend->load(program, {{kBlocks}}, kMaxTokens);
        const std::vector<float> expected = run(*backend, program, tokens, 6);
        armed = true;
        const std::vector<BlockId> table = {0};
        const SequenceSpan span{0, 6, 0, {table}};
        std::vector<float> logits(static_cast<size_t>(program.vocab));
        const std::string message = "number " + std::to_string(failing) + ": the device is lost";
        for (int again = 0; again < 2; ++again)
            CHECK_THROWS_WITH_AS(backend->execute({tokens, positions, {&span, 1}, rows}, logits),
                                 message.c_str(), BackendError);
        armed = false;
        CHECK(same(run(*backend, program, tokens, 6), expected));
    }
}

TEST_CASE("tensor split: a device without memory is named, and loading can be stopped") {
    const Gpus gpus(3);
    const TinyProgram tiny({.layers = 2, .type = gguf::Type::Q8_0}, 55);
    simt::settings().memory_of = {size_t{1} << 30, size_t{1} << 30, 1000};
    std::string error;
    try {
        make_tensor_backend(make_ranks(one_gpu, 3), {1, 1, 1}, rank_names(3))
            ->load(tiny.program(), {{kBlocks}}, kMaxTokens);
    } catch (const BackendError &caught) {
        CHECK(caught.kind == BackendError::Kind::OutOfMemory);
        error = caught.what();
    }
    CHECK(error.starts_with("number 2: the GPU has 1 MiB free, but "));
    simt::settings().memory_of.clear();
    const auto backend = make_tensor_backend(make_ranks(one_gpu, 3), {1, 1, 1}, rank_names(3));
    size_t most = 0;
    backend->on_load([&](size_t done, size_t all) {
        CHECK(done <= all);
        most = std::max(most, done);
        return true;
    });
    backend->load(tiny.program(), {{kBlocks}}, kMaxTokens);
    CHECK(most > matrix_bytes(tiny.program()) / 2);
    CHECK(backend->info().name == "3 x emulated device");
    CHECK(backend->info().kind == "cuda+cuda+cuda [1+1+1]");
    backend->on_load([](size_t, size_t) { return false; });
    CHECK_THROWS_AS(backend->load(tiny.program(), {{kBlocks}}, kMaxTokens), BackendError);
}

TEST_CASE("tensor split: a program in two parts gives the slot between them and takes it back") {
    for (uint32_t ranks = 1; ranks <= 4; ++ranks) {
        CAPTURE(ranks);
        const Gpus gpus(static_cast<int>(ranks));
        const TinyProgram tiny({.layers = 2, .type = gguf::Type::Q8_0}, 60 + ranks);
        const MakeDevice make = ranks % 2 ? one_gpu : one_cpu;
        const tests::TwoParts whole = tests::run_two_parts(*make(0), tiny, ranks);
        const auto backend = make_tensor_backend(make_ranks(make, ranks), Shares(ranks, 1));
        const tests::TwoParts split = tests::run_two_parts(*backend, tiny, ranks);
        CHECK(same(whole.states, split.states));
        CHECK(same(whole.logits, split.logits));
    }
}
