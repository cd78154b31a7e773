// AWQ's scales: chosen for matrices with unequal inputs, never worse than none on the rows that judge.
#include "engine/quantize/channel_scales.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "engine/quantize/mix.h"
#include "engine/quantize/rows.h"
#include "gguf/quantize.h"
#include "tests/support/random.h"

using namespace runnel;
using namespace runnel::quantize;
using namespace runnel::testing;
using gguf::Type;

namespace {

constexpr auto kNothing = [] {};

struct Problem {
    int64_t rows, columns;
    std::vector<float> weights, importance;
    InputSample sample;
    gguf::Tensor tensor{};

    // Some columns have inputs `outlier` times as large as the others.
    Problem(int64_t r, int64_t c, int64_t tokens, float outlier, Random &random)
        : rows(r), columns(c), importance(static_cast<size_t>(c)), sample(c, 512) {
        for (int64_t i = 0; i < r * c; ++i) weights.push_back(0.05f * random.normal());
        std::vector<float> x(static_cast<size_t>(c));
        for (int64_t t = 0; t < tokens; ++t) {
            for (size_t i = 0; i < x.size(); ++i) x[i] = random.normal() * (i % 20 == 3 ? outlier : 1);
            for (size_t i = 0; i < x.size(); ++i) importance[i] += x[i] * x[i] / static_cast<float>(tokens);
            sample.add(x);
        }
        tensor.name = "x", tensor.type = Type::F32, tensor.rank = 2;
        tensor.shape[0] = c, tensor.shape[1] = r, tensor.shape[2] = tensor.shape[3] = 1;
        tensor.data = reinterpret_cast<const std::byte *>(weights.data());
        tensor.bytes = weights.size() * sizeof(float);
    }

    ChannelScales choose(Type type, int threads = 1) const {
        std::vector<int32_t> channel_of(static_cast<size_t>(columns));
        std::iota(channel_of.begin(), channel_of.end(), 0);
        const ScaledMatrix matrix{&tensor, 0, rows, type, importance};
        return choose_scales({&matrix, 1}, sample, channel_of, columns, threads, kNothing);
    }

    // The relative squared error of the products with the odd rows of the sample, in double precision.
    double error(Type type, const std::vector<float> &scales) const {
        const auto n = static_cast<size_t>(columns);
        std::vector<float> scaled(n), weight(n);
        std::vector<std::byte> blocks(gguf::row_bytes(type, columns));
        double error = 0, energy = 0;
        for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
            for (size_t i = 0; i < n; ++i) {
                scaled[i] = weights[r * n + i] * scales[i];
                weight[i] = importance[i] / (scales[i] * scales[i]);
            }
            encode_row(Method::Standard, type, scaled, weight, blocks.data());
            gguf::dequantize_row(type, blocks.data(), scaled.data(), columns);
            for (size_t t = 1; t < sample.kept(); t += 2) {
                double difference = 0, product = 0;
                for (size_t i = 0; i < n; ++i) {
                    const double w = double{weights[r * n + i]}, x = double{sample.row(t)[i]};
                    product += w * x;
                    difference += (w - double{scaled[i]} / double{scales[i]}) * x;
                }
                error += difference * difference, energy += product * product;
            }
        }
        return error / energy;
    }
};

}  // namespace

TEST_CASE("awq: scales lower the error of products with unequal inputs, as recomputed in double precision") {
    constexpr uint64_t kSeed = 4711;
    CAPTURE(kSeed);
    Random random(kSeed);
    for (const Type type : {Type::Q4_0, Type::Q3_K, Type::Q4_K, Type::IQ4_XS}) {
        const auto rows = static_cast<int64_t>(8 + random.below(60));
        const Problem problem(rows, 512, static_cast<int64_t>(300 + random.below(400)), 20, random);
        CAPTURE(gguf::traits(type).name);
        CAPTURE(rows);
        const ChannelScales chosen = problem.choose(type);
        REQUIRE(chosen.scales.size() == 512);
        CHECK(chosen.exponent > 0);
        CHECK(chosen.after < 0.95 * chosen.before);
        CHECK(chosen.before ==
              doctest::Approx(problem.error(type, std::vector<float>(512, 1.0f))).epsilon(1e-4));
        CHECK(chosen.after == doctest::Approx(problem.error(type, chosen.scales)).epsilon(1e-4));
        // Columns with large inputs get larger scales.
        CHECK(chosen.scales[3] > 1.5f * chosen.scales[4]);
        CHECK(problem.choose(type, 3).scales == chosen.scales);
    }
}

TEST_CASE("awq: no scales where none are better, and none without inputs") {
    Random random(7);
    // Inputs are equal, and a Q8_0 product has hardly any error to lower.
    const Problem equal(40, 64, 400, 1, random);
    for (const Type type : {Type::Q4_0, Type::Q8_0}) {
        const ChannelScales chosen = equal.choose(type);
        CHECK(chosen.after <= chosen.before);
        CHECK(chosen.scales.empty() == (chosen.exponent == 0));
    }
    Problem silent(4, 64, 0, 1, random);
    for (int i = 0; i < 40; ++i) silent.sample.add(std::vector<float>(64, 0.0f));
    CHECK(silent.choose(Type::Q4_0).scales.empty());
    CHECK(equal.choose(Type::F16).scales.empty());
    Problem broken(4, 64, 40, 1, random);
    broken.weights[70] = std::numeric_limits<float>::infinity();
    CHECK_THROWS_AS(broken.choose(Type::Q4_0), QuantizeError);
}

TEST_CASE("awq: columns that share a channel get one scale") {
    Random random(9);
    const Problem problem(32, 128, 400, 30, random);
    std::vector<int32_t> channel_of;
    for (int32_t i = 0; i < 128; ++i) channel_of.push_back(i % 64);
    const ScaledMatrix matrix{&problem.tensor, 0, 32, Type::Q4_0, problem.importance};
    const ChannelScales chosen = choose_scales({&matrix, 1}, problem.sample, channel_of, 64, 1, kNothing);
    CHECK(chosen.scales.size() == (chosen.exponent > 0 ? 64u : 0u));
    CHECK(chosen.after <= chosen.before);
}

TEST_CASE("awq: a sample keeps evenly spaced rows and the mean magnitude of all") {
    for (const int64_t rows : {0, 1, 7, 8, 9, 40, 1000}) {
        CAPTURE(rows);
        InputSample sample(2, 8);
        double sum = 0;
        for (int64_t i = 0; i < rows; ++i) {
            const auto value = static_cast<float>(i % 2 == 0 ? i : -i);
            sample.add(std::vector<float>{value, 1});
            sum += static_cast<double>(i);
        }
        CHECK(sample.rows() == rows);
        CHECK(sample.kept() <= 8);
        CHECK(sample.kept() >= std::min<size_t>(4, static_cast<size_t>(rows)));
        const size_t kept = sample.kept();
        for (size_t i = 2; i < kept; ++i) {
            const auto at = [&](size_t k) { return std::fabs(sample.row(k)[0]); };
            CHECK(at(i) - at(i - 1) == at(1) - at(0));
        }
        if (rows > 0) {
            CHECK(sample.mean_magnitudes()[0] == doctest::Approx(sum / static_cast<double>(rows)));
            CHECK(sample.mean_magnitudes()[1] == 1);
        }
    }
    InputSample broken(1, 8);
    broken.add(std::vector<float>{std::numeric_limits<float>::quiet_NaN()});
    CHECK_FALSE(broken.is_finite());
}
