// The prefill kernel in the emulator: bit for bit equal to the kernel for few tokens, which linear_test
// compares with the canonical order and double precision.
#include "kernels/cuda/linear/linear_prefill.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gguf/quantize.h"
#include "tests/kernels/cuda/linear/linear_support.h"
#include "tests/simt/run_kernel.h"
#include "tests/simt/simt.h"
#include "tests/simt/turing.h"
#include "tests/support/skip.h"

using namespace runnel;
using namespace runnel::kernels::cuda;
using namespace runnel::tests::device;

namespace {

enum class By { Few, Many };

// Runs the kernel for few tokens, in slices or groups, or the prefill kernel.
void multiply(Stream &stream, By kernel, gguf::Type type, const LinearParams &p, uint32_t grid,
              int32_t slice = kPrefillTokens) {
    const TileFormat format = tile_format(type);
    constexpr int kFew = kLinearGroupTokens;
    if (kernel == By::Few)
        simt::run_kernel(stream, linear_kernel(format, {kFew, true}),
                         {grid, linear_shared(format, {kFew, true}, p)}, p);
    else
        simt::run_kernel(stream, linear_prefill_kernel(format), {grid, linear_prefill_shared(format)},
                         {p, format, slice});
}

// [token][row] of W x.
std::vector<float> product(Stream &stream, By kernel, const Matrix &matrix, const Input &input, int tokens,
                           uint32_t grid, int32_t slice = kPrefillTokens) {
    const std::vector<float> poison(static_cast<size_t>(tokens * matrix.rows), NAN);
    const DeviceMemory out = upload(stream, poison, "out");
    LinearParams p = params_for(input, tokens);
    p.matrices = 1;
    p.matrix[0].tiles = matrix.tiles.data();
    p.matrix[0].out = out.as<float>();
    p.matrix[0].out_stride = matrix.rows;
    p.matrix[0].rows = static_cast<int32_t>(matrix.rows);
    multiply(stream, kernel, matrix.type, p, grid, slice);
    std::vector<float> y = download(stream, out);
    y.resize(poison.size());
    return y;
}

}  // namespace

TEST_CASE("cuda prefill: every format, bit for bit as in slices of 8 tokens, with units of any size") {
    Stream stream;
    for (const gguf::Type type : tests::kLinearTypes) {
        std::vector<int64_t> all = gguf::traits(type).block_size == 256 ? std::vector<int64_t>{512, 1280}
                                                                        : std::vector<int64_t>{96, 608};
        if (!gguf::traits(type).quantized) all = {300, 1184};
        if (gguf::traits(type).block_size == 64) all = {192, 704};
        if (gguf::traits(type).block_size == 128) all = {384, 640};
        if (type == gguf::Type::Q8_0) all.push_back(2336);  // more than one block per range
        for (const int64_t cols : all) {
            const uint32_t seed = 53 * static_cast<uint32_t>(type) + static_cast<uint32_t>(cols);
            CAPTURE(gguf::traits(type).name);
            CAPTURE(cols);
            CAPTURE(seed);
            std::mt19937 random(seed);
            const int tokens = static_cast<int>(17 + random() % 80);
            CAPTURE(tokens);
            const Matrix matrix(stream, type, 21 + random() % 40, cols, random);
            const Input input(stream, random_activations(tokens * cols, random), cols, tokens);
            const auto expected = product(stream, By::Few, matrix, input, tokens, 3);
            const auto slice = static_cast<int32_t>(1 + random() % kPrefillTokens);
            CAPTURE(slice);
            const auto y = product(stream, By::Many, matrix, input, tokens,
                                   static_cast<uint32_t>(1 + random() % 3), slice);
            CHECK(different(y, expected) == 0);
        }
    }
}

TEST_CASE("cuda prefill: slices of a large batch are the canonical order, in every format") {
    Stream stream;
    for (const gguf::Type type : tests::kLinearTypes) {
        CAPTURE(gguf::traits(type).name);
        std::mt19937 random(29);
        const int64_t cols = gguf::traits(type).block_size >= 64 ? 512 : 608;
        const Matrix matrix(stream, type, 19, cols, random);
        const Input input(stream, random_activations(18 * cols, random), cols, 18);
        CHECK(tests::not_canonical(type, product(stream, By::Few, matrix, input, 18, 2),
                                   canonical(matrix, input, 18)) == 0);
    }
}

TEST_CASE(
    "cuda prefill: sums of a group or block are exact at their largest, those of minimums rounded once") {
    Stream stream;
    for (const gguf::Type type : tests::kLinearTypes) {
        if (!gguf::traits(type).quantized) continue;
        CAPTURE(gguf::traits(type).name);
        std::mt19937 random(47);
        for (const tests::Fill fill : {tests::Fill::Ones, tests::Fill::Zeros, tests::Fill::Lowest}) {
            const Matrix matrix(stream, type, 16, 512, random, fill);
            std::vector<float> x(8 * 512);  // all values of a token as large as possible
            for (size_t i = 0; i < x.size(); ++i) x[i] = i / 512 % 2 == 0 ? 3.0f : -0.1f;
            const Input input(stream, x, 512, 8);
            const std::vector<float> expected = canonical(matrix, input, 8);
            CHECK(different(product(stream, By::Few, matrix, input, 8, 1), expected) == 0);
            CHECK(different(product(stream, By::Many, matrix, input, 8, 1), expected) == 0);
            x[3 * 512 + 5] = std::numeric_limits<float>::infinity();
            const std::vector<float> y = product(stream, By::Many, matrix, Input(stream, x, 512, 8), 8, 1);
            size_t wrong = 0;
            for (size_t i = 0; i < y.size(); ++i)
                wrong += i / 16 == 3 ? !std::isnan(y[i]) : y[i] != expected[i];
            CHECK(wrong == 0);
        }
    }
}

TEST_CASE(
    "cuda prefill: several matrices, bias, residual and gate give the same bits for any grid and order of "
    "threads") {
    Stream stream;
    std::mt19937 random(31);
    constexpr int kTokens = 70;
    for (const gguf::Type type : {gguf::Type::Q5_0, gguf::Type::Q4_K, gguf::Type::BF16}) {
        CAPTURE(gguf::traits(type).name);
        const Matrix a(stream, type, 150, 512, random), b(stream, type, 17, 512, random),
            c(stream, type, 150, 512, random);
        const Input input(stream, random_activations(kTokens * 512, random), 512, kTokens);
        const DeviceMemory bias = upload(stream, random_activations(150, random), "bias", Region::Weights);
        const std::vector<float> add = random_activations(kTokens * 160, random);
        const auto outputs = [&](By kernel, uint32_t grid) {
            const DeviceMemory residual = upload(stream, add, "residual");
            const DeviceMemory other = upload(stream, std::vector<float>(kTokens * 17, NAN), "out");
            const DeviceMemory gated = upload(stream, std::vector<float>(kTokens * 150, NAN), "gated");
            LinearParams p = params_for(input, kTokens);
            p.matrices = 2;
            p.matrix[0] = {a.tiles.data(),
                           bias.as<const float>(),
                           residual.as<const float>(),
                           residual.as<float>(),
                           160,
                           160,
                           150,
                           0.5f};
            p.matrix[1] = {b.tiles.data(), nullptr, nullptr, other.as<float>(), 0, 17, 17};
            multiply(stream, kernel, type, p, grid);
            p.matrix[0] = {a.tiles.data(), nullptr, nullptr, gated.as<float>(), 0, 150, 150};
            p.matrix[1] = {c.tiles.data(), bias.as<const float>(), nullptr, nullptr, 0, 0, 150};
            p.gate = LinearGate::Silu;
            multiply(stream, kernel, type, p, grid);
            std::vector<float> all = download(stream, residual);
            for (const DeviceMemory *memory : {&other, &gated}) {
                const std::vector<float> more = download(stream, *memory);
                all.insert(all.end(), more.begin(), more.end());
            }
            return all;
        };
        const std::vector<float> expected = outputs(By::Few, 2);
        CHECK(different(outputs(By::Many, 1), expected) == 0);
        simt::settings().seed = 5;
        CHECK(different(outputs(By::Many, 7), expected) == 0);
        simt::settings().seed = 1;
    }
}

TEST_CASE("cuda prefill: groups of rows, each with its own matrix, are gathered and weighted") {
    Stream stream;
    std::mt19937 random(37);
    constexpr int kTokens = 11, kRows = 40, kCols = 512;
    for (const gguf::Type type : {gguf::Type::Q8_0, gguf::Type::Q6_K, gguf::Type::F16}) {
        CAPTURE(gguf::traits(type).name);
        const Matrix experts(stream, type, 3 * 32, kCols, random);  // of 32 rows each
        const Input input(stream, random_activations(kTokens * kCols, random), kCols, kTokens);
        const DeviceMemory bias = upload(stream, random_activations(3 * 32, random), "bias", Region::Weights);
        std::vector<int32_t> sources(kRows);
        for (int32_t &source : sources) source = static_cast<int32_t>(random() % kTokens);
        const std::vector<float> weights = random_activations(kRows, random);
        const DeviceMemory source_rows = upload(stream, sources, "sources"),
                           row_weights = upload(stream, weights, "row weights");
        const auto product_of = [&](By kernel, const std::vector<TokenGroup> &groups) {
            const DeviceMemory list = upload(stream, groups, "groups");
            const DeviceMemory count =
                upload(stream, std::vector<int32_t>{static_cast<int32_t>(groups.size())}, "count");
            const DeviceMemory out = upload(stream, std::vector<float>(kRows * 32, NAN), "out");
            LinearParams p = params_for(input, kRows);
            p.matrices = 1;
            p.matrix[0] = {experts.tiles.data(), bias.as<const float>(), nullptr, out.as<float>(), 0, 32, 32};
            p.groups = list.as<const TokenGroup>();
            p.group_count = count.as<const int32_t>();
            p.sources = source_rows.as<const int32_t>();
            p.row_weights = row_weights.as<const float>();
            multiply(stream, kernel, type, p, 2);
            return download(stream, out);
        };
        // Expert 0: rows 0 .. 9, expert 2: the others.
        const std::vector<float> few =
            product_of(By::Few, {{0, 0, 8}, {0, 8, 2}, {2, 10, 8}, {2, 18, 8}, {2, 26, 8}, {2, 34, 6}});
        const std::vector<float> many = product_of(By::Many, {{0, 0, 10}, {2, 10, 30}});
        CHECK(different(many, few) == 0);
        const std::vector<float> all = product(stream, By::Few, experts, input, kTokens, 1),
                                 biases = download(stream, bias);
        size_t wrong = 0;
        for (size_t row = 0; row < kRows; ++row)
            for (size_t i = 0; i < 32; ++i) {
                const size_t at = (row < 10 ? 0 : 64) + i;
                wrong += few[32 * row + i] !=
                         all[96 * static_cast<size_t>(sources[row]) + at] * weights[row] + biases[at];
            }
        CHECK(wrong == 0);
    }
}

TEST_CASE("cuda prefill: on sm_75 both kernels give the canonical order, in every format") {
    const simt::Turing turing;
    Stream stream;
    for (const gguf::Type type : tests::kLinearTypes) {
        CAPTURE(gguf::traits(type).name);
        std::mt19937 random(43);
        const int64_t cols = gguf::traits(type).block_size >= 64 ? 768 : 608;
        const Matrix matrix(stream, type, 37, cols, random);
        const Input input(stream, random_activations(21 * cols, random), cols, 21);
        const std::vector<float> expected = canonical(matrix, input, 21);
        for (const By kernel : {By::Few, By::Many})
            CHECK(tests::not_canonical(type, product(stream, kernel, matrix, input, 21, 2), expected) == 0);
    }
}

TEST_CASE("cuda prefill: weights are read once per 48 tokens, activations once per 256 rows") {
    if (!simt::emulated()) {
        runnel::testing::skip("only the emulator counts bytes");
        return;
    }
    Stream stream;
    std::mt19937 random(41);
    for (const gguf::Type type : tests::kLinearTypes) {
        if (!gguf::traits(type).quantized) continue;  // read through L1, which is not counted
        CAPTURE(gguf::traits(type).name);
        const Matrix matrix(stream, type, 288, 256, random);
        const Input input(stream, random_activations(80 * 256, random), 256, 80);
        simt::take_reports();
        product(stream, By::Many, matrix, input, 80, 3);
        const auto reports = simt::take_reports();
        REQUIRE(reports.size() == 1);
        CHECK(reports[0].traffic.at("weights").read == 2 * matrix.tiles.size());
        CHECK(reports[0].traffic.at("weights").streamed == 0);
        const bool sums = has_minimum(tile_format(type)), of_16 = has_groups_of_16(tile_format(type));
        // Scales are read four at a time.
        const uint64_t row = 2 * 256 + 4 * 4 + (sums ? of_16 ? 64 : 32 : 0);
        CHECK(reports[0].traffic.at("activations").read == 2 * 80 * row);
    }
}
