// A program cut by rows and columns over several GPUs gives the bits of one GPU (tensor_program.h, MatrixCut::Columns).
#include <doctest/doctest.h>

#include "kernels/column_cut.h"
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
using tests::one_gpu;
using tests::random_tokens;
using tests::run;
using tests::same;
using tests::Shares;
using tests::TinyProgram;
using tests::TinyShape;

namespace {

// Attention's output has 256 columns per range and K/V head, hidden values 256 per range.
TinyShape shape_of(int32_t ranges, gguf::Type type) {
    TinyShape shape{.layers = 1, .width = 256, .type = type};
    shape.kv_heads = ranges, shape.heads = 4 * ranges, shape.head_dim_k = shape.head_dim_v = 64;
    shape.feed_forward = 256 * ranges;
    return shape;
}

std::unique_ptr<Backend> by_columns(size_t ranks, Shares shares,
                                    MakeCommunicators communicators = communicate_in_process) {
    return make_tensor_backend(make_ranks(one_gpu, ranks), std::move(shares), {}, std::move(communicators),
                               MatrixCut::Columns);
}

size_t gathers(const TensorProgram &tensor) {
    size_t count = 0;
    for (const TensorProgram::Stage &stage : tensor.stages) count += stage.gathers.size();
    return count;
}

TensorProgram cut(const Program &program, const Shares &shares) {
    return cut_program(program, shares, {}, MatrixCut::Columns);
}

}  // namespace

TEST_CASE("column split: ranges are whole, equal and of quantized weights") {
    const auto ranges = [](gguf::Type type, int64_t cols, int64_t count = 1) {
        return ranges_to_cut({"", type, 16, cols, nullptr, count});
    };
    using gguf::Type;
    CHECK(ranges(Type::Q4_K, 4096) == 8);
    CHECK(ranges(Type::Q8_0, 14336) == 8);
    CHECK(ranges(Type::Q6_K, 1024) == 4);
    CHECK(ranges(Type::Q4_0, 512) == 2);
    CHECK(ranges(Type::Q4_K, 256) == 1);
    CHECK(ranges(Type::Q4_K, 11008) == 1);  // 43 blocks
    CHECK(ranges(Type::Q8_0, 2048 + 32) == 1);
    CHECK(ranges(Type::Q4_K, 4096, 8) == 1);
    for (const Type type : {Type::F16, Type::BF16, Type::F32}) CHECK(ranges(type, 4096) == 1);
}

TEST_CASE("column split: two to eight GPUs give the bits of one, with few and many tokens") {
    struct Case {
        int32_t ranges;
        gguf::Type type;
        Shares shares;
    };
    const std::vector<Case> cases = {
        {2, gguf::Type::Q4_K, {1, 1}},       {2, gguf::Type::Q8_0, {1, 0, 1}},
        {4, gguf::Type::Q6_K, {1, 2, 1}},    {4, gguf::Type::Q4_0, {3, 1}},
        {4, gguf::Type::Q5_K, Shares(4, 1)}, {8, gguf::Type::Q8_0, Shares(8, 1)}};
    uint32_t seed = 40;
    for (const auto &[ranges, type, shares] : cases) {
        CAPTURE(gguf::traits(type).name);
        CAPTURE(ranges);
        CAPTURE(++seed);
        const Gpus gpus(static_cast<int>(shares.size()));
        const TinyProgram tiny(shape_of(ranges, type), seed);
        REQUIRE(cut(tiny.program(), shares).by_columns == 2);
        // (More than 16 tokens have kernels of their own.)
        const std::vector<int32_t> tokens = random_tokens(ranges == 2 ? size_t{34} : size_t{12}, seed);
        const auto whole = one_gpu(0);
        whole->load(tiny.program(), {{kBlocks}}, kMaxTokens);
        const std::vector<float> expected = run(*whole, tiny.program(), tokens, tokens.size());
        const auto split = by_columns(shares.size(), shares);
        split->load(tiny.program(), {{kBlocks}}, kMaxTokens);
        CHECK(same(run(*split, tiny.program(), tokens, tokens.size()), expected));
        for (const auto &[count, chunk] : {std::pair<size_t, size_t>{2, 1}, {12, 5}})
            CHECK(same(run(*split, tiny.program(), std::span(tokens).first(count), chunk),
                       {expected.begin(),
                        expected.begin() + static_cast<std::ptrdiff_t>(count) * tiny.program().vocab}));
    }
}

TEST_CASE("column split: two gathers per layer, whose bytes are counted, and every matrix on one GPU only") {
    TinyShape shape = shape_of(4, gguf::Type::Q8_0);
    shape.layers = 3;
    const TinyProgram tiny(shape, 6);
    const auto matrix_bytes = [](const Program &program) {
        size_t bytes = 0;
        for (const Weight &w : program.weights)
            if (w.rows > 1) bytes += w.bytes();
        return bytes;
    };
    for (const size_t ranks : {2, 3, 4}) {
        CAPTURE(ranks);
        const Shares shares(ranks, 1);
        const TensorProgram tensor = cut(tiny.program(), shares);
        const auto layers = static_cast<size_t>(shape.layers);
        CHECK(tensor.by_columns == 2 * layers);
        CHECK(gathers(tensor) == 2 * layers + 1);
        CHECK(gathers(cut_program(tiny.program(), shares)) == 4 * layers + 1);
        size_t matrices = 0;
        for (const Program &rank : tensor.programs) matrices += matrix_bytes(rank);
        CHECK(matrices == matrix_bytes(tiny.program()));
        const auto d = static_cast<size_t>(shape.width), values = layers * 2 * 4 * d + d;
        CHECK(gathered_bytes_per_token(tensor) == 4 * (ranks - 1) * values);
        const Gpus gpus(static_cast<int>(ranks));
        std::atomic<size_t> bytes = 0;
        const auto split =
            by_columns(ranks, shares, [&](int size) { return tests::counting_communicators(size, bytes); });
        split->load(tiny.program(), {{kBlocks}}, kMaxTokens);
        bytes = 0;
        run(*split, tiny.program(), random_tokens(2, 7), 2);
        const size_t words = 4 * (ranks - 1) * (2 * layers + 1);  // whether the batch is cancelled
        const auto logits = static_cast<size_t>(shape.vocab - tensor.vocabulary.front().size()) * 4 * 2;
        CHECK(bytes == 2 * gathered_bytes_per_token(tensor) + words + logits);
    }
}

TEST_CASE("column split: what cannot be cut between ranges is cut by rows") {
    const auto like_rows = [](const TinyShape &shape, const Shares &shares) {
        const TinyProgram tiny(shape, 9);
        const TensorProgram tensor = cut(tiny.program(), shares);
        CHECK(tensor.by_columns == 0);
        CHECK(gathers(tensor) == gathers(cut_program(tiny.program(), shares)));
    };
    like_rows(shape_of(2, gguf::Type::F16), {1, 1});
    like_rows(shape_of(2, gguf::Type::Q8_0), {1, 1, 1});  // more GPUs than ranges
    TinyShape biased = shape_of(2, gguf::Type::Q8_0);
    biased.bias = true;
    like_rows(biased, {1, 1});
    // A share of 3 of 8 heads is not between ranges of four heads; hidden values are cut where the ranges are.
    TinyShape uneven = shape_of(2, gguf::Type::Q8_0);
    uneven.kv_heads = 8;
    CHECK(cut(TinyProgram(uneven, 9).program(), {5, 3}).by_columns == 1);
    CHECK(cut(TinyProgram(uneven, 9).program(), {1, 1}).by_columns == 2);
    // Hidden values of experts are never cut by columns.
    TinyShape mixture = shape_of(2, gguf::Type::Q8_0);
    mixture.experts = {.count = 4, .routing = {.used = 2}};
    CHECK(cut(TinyProgram(mixture, 9).program(), {1, 1}).by_columns == 1);
}

TEST_CASE("column split: windows, experts and packed caches give the bits of one GPU") {
    for (const bool experts : {false, true}) {
        CAPTURE(experts);
        const Gpus gpus(2);
        TinyShape shape = shape_of(2, gguf::Type::Q8_0);
        shape.layers = 2, shape.window = 11, shape.head_norm = true, shape.feed_forward = 512;
        if (experts) shape.experts = {.count = 3, .routing = {.used = 2}, .shared = true};
        const TinyProgram tiny(shape, 12);
        const CacheConfig cache{{kBlocks}, CacheType::Q8_0, CacheType::Q4_0};
        const std::vector<int32_t> tokens = random_tokens(20, 12);
        const auto whole = one_gpu(0);
        whole->load(tiny.program(), cache, kMaxTokens);
        const std::vector<float> expected = run(*whole, tiny.program(), tokens, 20);
        const std::vector<float> branch = tests::run_branch(*whole, tiny.program(), tokens, 17);
        const auto split = by_columns(2, {1, 1});
        split->load(tiny.program(), cache, kMaxTokens);
        CHECK(same(run(*split, tiny.program(), tokens, 7), expected));
        CHECK(same(tests::run_branch(*split, tiny.program(), tokens, 17), branch));
    }
}
