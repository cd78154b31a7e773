#include "kernels/cuda/steps/embed.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <vector>

#include "gguf/quantize.h"
#include "kernels/cuda/steps/elementwise.h"
#include "tests/kernels/cpu/random_blocks.h"
#include "tests/kernels/cuda/linear/tile_reader.h"
#include "tests/simt/buffer.h"
#include "tests/simt/run_kernel.h"

using namespace runnel;
using namespace runnel::kernels::cuda;

TEST_CASE("cuda embed: rows of every format are those of the file, to the bit") {
    Stream stream;
    constexpr int64_t kRows = 37;
    const std::vector<int32_t> rows = {0, 36, 15, 16, 36};
    for (const gguf::Type type : tests::kLinearTypes) {
        const int64_t cols = gguf::traits(type).block_size >= 64 ? 512
                             : gguf::traits(type).quantized      ? 352
                                                                 : 90;
        CAPTURE(gguf::traits(type).name);
        std::mt19937 random(3);
        const auto raw = tests::random_weights(type, kRows, cols, random);
        const std::vector<uint32_t> tiles = tests::tiles_of(type, raw, kRows, cols);
        const simt::Buffer<uint32_t> table(stream, tiles, "table", Region::Weights);
        const simt::Buffer<int32_t> tokens(stream, rows, "tokens");
        const simt::Buffer<float> out(stream, rows.size() * static_cast<size_t>(cols), "out");
        simt::run_kernel(
            stream, embed_kernel(), {static_cast<uint32_t>(rows.size()), 0},
            {reinterpret_cast<const std::byte *>(table.data()), tile_format(type), static_cast<int32_t>(cols),
             0.5f, tokens.data(), out.data(), cols, kRows - 1, false});
        std::vector<float> expected(static_cast<size_t>(kRows * cols));
        gguf::dequantize_row(type, raw.data(), expected.data(), kRows * cols);
        const std::vector<float> y = out.read();
        size_t wrong = 0;
        for (size_t t = 0; t < rows.size(); ++t)
            for (int64_t c = 0; c < cols; ++c)
                wrong += y[t * static_cast<size_t>(cols) + static_cast<size_t>(c)] !=
                         0.5f * expected[static_cast<size_t>(rows[t] * cols + c)];
        CHECK(wrong == 0);
    }
}

TEST_CASE("cuda elementwise: rows are gathered, activations and soft-caps are those of the definition") {
    Stream stream;
    std::mt19937 random(8);
    std::normal_distribution<float> value(0, 4);
    std::vector<float> a(3 * 70), b(3 * 70);
    for (float &x : a) x = value(random);
    for (float &x : b) x = value(random);
    const simt::Buffer<float> gate(stream, a, "gate"), up(stream, b, "up"), out(stream, a.size(), "out");
    const auto check = [&](ActivationKind activation, bool has_up, auto expected) {
        simt::run_kernel(stream, activate_kernel(), {2, 0},
                         {gate.data(), has_up ? up.data() : nullptr, out.data(), 70, 70, 70, 70, 3,
                          activation, 0.8f, -0.9f, 0.5f, -1e-6f});
        const std::vector<float> y = out.read();
        for (size_t i = 0; i < a.size(); ++i)
            CHECK(static_cast<double>(y[i]) ==
                  doctest::Approx(expected(static_cast<double>(a[i]), static_cast<double>(b[i])))
                      .epsilon(1e-5));
    };
    check(ActivationKind::Silu, true, [](double g, double u) { return g / (1 + std::exp(-g)) * u; });
    check(ActivationKind::ReluSquared, false, [](double g, double) { return g > 0 ? g * g : 0; });
    check(ActivationKind::Sigmoid, true, [](double g, double u) { return u / (1 + std::exp(-g)); });
    check(ActivationKind::Relu, true, [](double g, double u) { return g > 0 ? g * u : 0; });
    check(ActivationKind::Clamp, false,
          [](double g, double) { return std::clamp(g, double{-0.9f}, double{0.8f}); });
    check(ActivationKind::XIelu, false, [](double g, double) {
        return 0.5 * g + (g > 0 ? double{0.8f} * g * g : double{-0.9f} * (std::expm1(g) - g));
    });
    check(ActivationKind::Tanh, false, [](double g, double) { return std::tanh(g); });
    check(ActivationKind::SignedRoot, false,
          [](double g, double) { return std::copysign(std::sqrt(std::max(std::abs(g), double{0.8f})), g); });
    check(ActivationKind::Tanh, true, [](double g, double u) { return std::tanh(g) * u; });
    check(ActivationKind::GeluTanh, true, [](double g, double u) {
        return 0.5 * g * (1 + std::tanh(0.7978845608028654 * (g + 0.044715 * g * g * g))) * u;
    });
    check(ActivationKind::SiluClamped, true, [](double g, double u) {
        g = std::min(g, 7.0), u = std::max(-7.0, std::min(u, 7.0));
        return g / (1 + std::exp(-1.702 * g)) * (u + 1);
    });
    const double limit = double{0.8f};
    check(ActivationKind::SiluThenLimit, true, [&](double g, double u) {
        return std::min(g / (1 + std::exp(-g)), limit) * std::clamp(u, -limit, limit);
    });
    check(ActivationKind::LimitThenSilu, true, [&](double g, double u) {
        g = std::min(g, limit);
        return g / (1 + std::exp(-g)) * std::clamp(u, -limit, limit);
    });

    simt::run_kernel(stream, softcap_kernel(), {2, 0}, {up.data(), 210, 3.0f});
    const std::vector<float> capped = up.read();
    for (size_t i = 0; i < b.size(); ++i)
        CHECK(static_cast<double>(capped[i]) ==
              doctest::Approx(3 * std::tanh(static_cast<double>(b[i]) / 3)).epsilon(1e-5));

    const std::vector<int32_t> order = {2, 0, 2};
    const simt::Buffer<int32_t> rows(stream, order, "rows");
    simt::run_kernel(stream, gather_kernel(), {3, 0}, {gate.data(), rows.data(), out.data(), 70, 70, 70});
    const std::vector<float> gathered = out.read();
    for (size_t i = 0; i < 3; ++i)
        for (size_t c = 0; c < 70; ++c)
            CHECK(gathered[70 * i + c] == a[70 * static_cast<size_t>(order[i]) + c]);
}
