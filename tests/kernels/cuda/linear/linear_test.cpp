// The matrix kernels in the emulator: compared bit for bit with the canonical order, and
// that with double precision.
#include "kernels/cuda/linear/linear.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gguf/quantize.h"
#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/upload/repack_kernel.h"
#include "tests/kernels/cpu/random_blocks.h"
#include "tests/kernels/cuda/linear/canonical_linear.h"
#include "tests/kernels/cuda/linear/linear_support.h"
#include "tests/kernels/cuda/linear/tile_reader.h"
#include "tests/simt/run_kernel.h"
#include "tests/simt/simt.h"
#include "tests/support/skip.h"

using namespace runnel;
using namespace runnel::kernels::cuda;
using namespace runnel::tests::device;

namespace {

// [token][row] of W x with one matrix.
std::vector<float> multiply(Stream &stream, const Matrix &matrix, const Input &input, int tokens,
                            uint32_t grid, bool staged = true) {
    const std::vector<float> poison(static_cast<size_t>(tokens * matrix.rows), NAN);
    const DeviceMemory out = upload(stream, poison, "out");
    LinearParams p = params_for(input, tokens);
    p.matrices = 1;
    p.matrix[0] = {matrix.tiles.data(),
                   nullptr,
                   nullptr,
                   out.as<float>(),
                   0,
                   matrix.rows,
                   static_cast<int32_t>(matrix.rows)};
    const TileFormat format = tile_format(matrix.type);
    const LinearVersion version{.tokens = tokens, .staged = staged && can_stage(format, {tokens})};
    simt::run_kernel(stream, linear_kernel(format, version), {grid, linear_shared(format, version, p)}, p);
    std::vector<float> y = download(stream, out);
    y.resize(poison.size());
    return y;
}

}  // namespace

TEST_CASE("cuda linear: the device's tiles are those of the host") {
    Stream stream;
    for (const gguf::Type type : tests::kLinearTypes) {
        CAPTURE(gguf::traits(type).name);
        std::mt19937 random(77);
        const Matrix matrix(stream, type, 19, widths(type)[1], random);
        const std::vector<uint32_t> expected = tests::tiles_of(type, matrix.raw, matrix.rows, matrix.cols);
        std::vector<uint32_t> tiles(expected.size());
        REQUIRE(matrix.tiles.size() == tiles.size() * 4);
        stream.copy_to_host(tiles.data(), matrix.tiles.data(), matrix.tiles.size());
        stream.wait();
        CHECK(tiles == expected);
    }
}

TEST_CASE("cuda linear: every format in the canonical order, for 1 to 16 tokens") {
    Stream stream;
    for (const gguf::Type type : tests::kLinearTypes) {
        for (const int64_t cols : widths(type)) {
            const uint32_t seed = 31 * static_cast<uint32_t>(type) + static_cast<uint32_t>(cols);
            CAPTURE(gguf::traits(type).name);
            CAPTURE(cols);
            CAPTURE(seed);
            std::mt19937 random(seed);
            const Matrix matrix(stream, type, 21, cols, random);
            const Input input(stream, random_activations(16 * cols, random), cols, 16);
            const std::vector<float> expected = canonical(matrix, input, 16);
            for (const int tokens : {1, 3, 4, 7, 16}) {
                CAPTURE(tokens);
                const std::vector<float> y =
                    multiply(stream, matrix, input, tokens, static_cast<uint32_t>(1 + random() % 3));
                const auto rows = static_cast<size_t>(tokens * matrix.rows);
                CHECK(tests::not_canonical(type, y, std::span(expected).first(rows)) == 0);
                if (tokens > kStagedTokens) continue;
                const std::vector<float> through_l1 = multiply(stream, matrix, input, tokens, 2, false);
                CHECK(tests::not_canonical(type, through_l1, std::span(expected).first(rows)) == 0);
            }
        }
    }
}

TEST_CASE("cuda linear: sums of a block are exact at their largest, for any number of tokens") {
    Stream stream;
    for (const gguf::Type type : tests::kLinearTypes) {
        if (!gguf::traits(type).quantized) continue;
        CAPTURE(gguf::traits(type).name);
        std::mt19937 random(43);
        for (const tests::Fill fill : {tests::Fill::Ones, tests::Fill::Zeros, tests::Fill::Lowest}) {
            const Matrix matrix(stream, type, 16, 512, random, fill);
            // All values of a token are as large as possible, or the first half of a block and the second one differ in sign.
            std::vector<float> x(16 * 512);
            for (size_t i = 0; i < x.size(); ++i) {
                const size_t token = i / 512;
                x[i] = token % 4 == 0 ? 3.0f : token % 4 == 1 ? -0.1f : i % 256 < 128 ? 2.0f : -2.0f;
            }
            const Input input(stream, x, 512, 16);
            const std::vector<float> expected = canonical(matrix, input, 16);
            for (const int tokens : {1, 4, 8, 16})
                for (const bool staged : {false, true}) {
                    CAPTURE(tokens);
                    CAPTURE(staged);
                    const std::vector<float> y = multiply(stream, matrix, input, tokens, 1, staged);
                    CHECK(different(y, {expected.begin(), expected.begin() + tokens * 16}) == 0);
                }
        }
    }
}

TEST_CASE("cuda linear: a value that is not finite makes its token's outputs NaN, and no others") {
    Stream stream;
    for (const gguf::Type type : tests::kLinearTypes) {
        if (!gguf::traits(type).quantized) continue;
        CAPTURE(gguf::traits(type).name);
        std::mt19937 random(45);
        const Matrix matrix(stream, type, 16, 512, random);
        std::vector<float> x = random_activations(16 * 512, random);
        const std::vector<float> expected = canonical(matrix, Input(stream, x, 512, 16), 16);
        x[1 * 512 + 5] = NAN;
        x[2 * 512 + 300] = -std::numeric_limits<float>::infinity();
        const Input input(stream, x, 512, 16);
        for (const int tokens : {4, 8, 16})
            for (const bool staged : {false, true}) {
                CAPTURE(tokens);
                CAPTURE(staged);
                const std::vector<float> y = multiply(stream, matrix, input, tokens, 1, staged);
                size_t wrong = 0;
                for (size_t i = 0; i < y.size(); ++i)
                    wrong += i / 16 == 1 || i / 16 == 2 ? !std::isnan(y[i]) : y[i] != expected[i];
                CHECK(wrong == 0);
            }
    }
}

TEST_CASE("cuda linear: within the error of rounded activations of double precision") {
    for (const gguf::Type type : tests::kLinearTypes) {
        CAPTURE(gguf::traits(type).name);
        std::mt19937 random(5);
        constexpr int64_t kCols = 2304;
        for (int row = 0; row < 8; ++row) {
            const auto raw = tests::random_weights(type, 1, kCols, random);
            const std::vector<float> x = random_activations(kCols, random);
            std::vector<float> w(kCols);
            gguf::dequantize_row(type, raw.data(), w.data(), kCols);
            double exact = 0;
            for (size_t k = 0; k < w.size(); ++k)
                exact += static_cast<double>(w[k]) * static_cast<double>(x[k]);
            const double y = static_cast<double>(tests::canonical_dot(type, raw, x));
            CHECK(std::fabs(y - exact) <= tests::rounding_bound(type, w, x));
        }
    }
}

TEST_CASE("cuda linear: the result depends on neither the grid nor the order of threads") {
    Stream stream;
    std::mt19937 random(9);
    for (const gguf::Type type : {gguf::Type::Q4_K, gguf::Type::Q8_0, gguf::Type::F16}) {
        CAPTURE(gguf::traits(type).name);
        const Matrix matrix(stream, type, 70, 2048, random);
        const Input input(stream, random_activations(5 * 2048, random), 2048, 5);
        const std::vector<float> first = multiply(stream, matrix, input, 5, 1);
        for (const uint64_t seed : {2u, 3u}) {
            simt::settings().seed = seed;
            for (const uint32_t grid : {3u, 132u})
                CHECK(different(multiply(stream, matrix, input, 5, grid), first) == 0);
        }
        simt::settings().seed = 1;
    }
}

TEST_CASE("cuda linear: weights are read once, whatever the number of tokens") {
    if (!simt::emulated()) {
        runnel::testing::skip("only the emulator counts bytes");
        return;
    }
    Stream stream;
    std::mt19937 random(11);
    for (const gguf::Type type : tests::kLinearTypes) {
        CAPTURE(gguf::traits(type).name);
        const Matrix matrix(stream, type, 33, 512, random);
        const Input input(stream, random_activations(16 * 512, random), 512, 16);
        for (const int tokens : {1, 16}) {
            simt::take_reports();
            multiply(stream, matrix, input, tokens, 2);
            const auto reports = simt::take_reports();
            REQUIRE(reports.size() == 1);
            // The four lanes of a row read the same side planes, so their bytes may be counted up to
            // four times.
            const TileLayout layout = tile_layout(tile_format(type));
            const int64_t rest = matrix.tiles.size() - 3 * 2 * layout.side;
            const simt::Traffic &traffic = reports[0].traffic.at("weights");
            CHECK(traffic.read == 0);
            CHECK(static_cast<int64_t>(traffic.streamed) >= rest);
            CHECK(static_cast<int64_t>(traffic.streamed) <= rest + 3 * 2 * 4 * layout.side);
        }
    }
}

TEST_CASE("cuda linear: several matrices, bias, residual and gate are computed in one launch") {
    Stream stream;
    std::mt19937 random(21);
    constexpr int kTokens = 3;
    for (const gguf::Type type : {gguf::Type::Q4_0, gguf::Type::Q6_K, gguf::Type::F32}) {
        CAPTURE(gguf::traits(type).name);
        const Matrix a(stream, type, 40, 512, random), b(stream, type, 17, 512, random),
            c(stream, type, 40, 512, random);
        const Input input(stream, random_activations(kTokens * 512, random), 512, kTokens);
        const std::vector<float> bias_values = random_activations(40, random),
                                 add_values = random_activations(kTokens * 64, random);
        const DeviceMemory bias = upload(stream, bias_values, "bias", Region::Weights);
        const DeviceMemory residual = upload(stream, add_values, "residual");
        const DeviceMemory other = upload(stream, std::vector<float>(kTokens * 17, NAN), "out");
        const DeviceMemory gated = upload(stream, std::vector<float>(kTokens * 40, NAN), "gated");

        const LinearVersion version{.tokens = kTokens, .staged = can_stage(tile_format(type), {kTokens})};
        LinearParams p = params_for(input, kTokens);
        p.matrices = 2;
        p.matrix[0] = {a.tiles.data(),
                       bias.as<const float>(),
                       residual.as<const float>(),
                       residual.as<float>(),
                       64,
                       64,
                       40};
        p.matrix[1] = {b.tiles.data(), nullptr, nullptr, other.as<float>(), 0, 17, 17};
        simt::run_kernel(stream, linear_kernel(tile_format(type), version),
                         {2, linear_shared(tile_format(type), version, p)}, p);
        p.matrix[0] = {a.tiles.data(), bias.as<const float>(), nullptr, gated.as<float>(), 0, 40, 40};
        p.matrix[1] = {c.tiles.data(), nullptr, nullptr, nullptr, 0, 0, 40};
        p.gate = LinearGate::Silu;
        CHECK(linear_blocks(p) == 1);  // three row tiles, two warps each
        simt::run_kernel(stream, linear_kernel(tile_format(type), version),
                         {2, linear_shared(tile_format(type), version, p)}, p);

        const std::vector<float> ya = canonical(a, input, kTokens), yb = canonical(b, input, kTokens),
                                 yc = canonical(c, input, kTokens);
        const std::vector<float> sums = download(stream, residual), h = download(stream, gated);
        for (size_t t = 0; t < kTokens; ++t)
            for (size_t r = 0; r < 40; ++r) {
                const float biased = ya[40 * t + r] + bias_values[r];
                CHECK(sums[64 * t + r] == biased + add_values[64 * t + r]);
                const double gate = static_cast<double>(biased);
                const double expected = gate / (1 + std::exp(-gate)) * static_cast<double>(yc[40 * t + r]);
                CHECK(static_cast<double>(h[40 * t + r]) == doctest::Approx(expected).epsilon(1e-5));
            }
        CHECK(different(download(stream, other), yb) == 0);
    }
}
