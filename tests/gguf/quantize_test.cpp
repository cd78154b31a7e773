#include "gguf/quantize.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/gguf/sample_weights.h"

using namespace runnel::gguf;
using runnel::testing::sample_weights;

namespace {

std::vector<std::byte> quantized(Type type, const std::vector<float> &values,
                                 Effort effort = Effort::Thorough) {
    std::vector<std::byte> blocks(row_bytes(type, static_cast<int64_t>(values.size())));
    quantize_row(type, values.data(), blocks.data(), static_cast<int64_t>(values.size()), effort);
    return blocks;
}

std::vector<float> through(Type type, const std::vector<float> &values, Effort effort = Effort::Thorough) {
    std::vector<float> back(values.size());
    dequantize_row(type, quantized(type, values, effort).data(), back.data(),
                   static_cast<int64_t>(back.size()));
    return back;
}

// Squared error over the sample without its block of huge values, which would dominate.
double squared_error(const std::vector<float> &values, const std::vector<float> &back) {
    double sum = 0;
    for (size_t i = 0; i < values.size(); ++i) {
        const double error = static_cast<double>(values[i]) - back[i];
        if (i / 256 != 23) sum += error * error;
    }
    return sum;
}

uint64_t hash(const std::vector<std::byte> &bytes) {
    return runnel::testing::hash({reinterpret_cast<const char *>(bytes.data()), bytes.size()});
}

constexpr Type kSearched[] = {Type::Q2_K, Type::Q3_K,   Type::Q4_K,  Type::Q5_K,
                              Type::Q6_K, Type::IQ4_NL, Type::IQ4_XS};
constexpr Type kQuantized[] = {Type::Q4_0,   Type::Q4_1,   Type::Q5_0,  Type::Q5_1,  Type::Q8_0,
                               Type::Q2_K,   Type::Q3_K,   Type::Q4_K,  Type::Q5_K,  Type::Q6_K,
                               Type::IQ4_NL, Type::IQ4_XS, Type::MXFP4, Type::NVFP4, Type::TQ1_0,
                               Type::TQ2_0,  Type::Q1_0,   Type::Q2_0,  Type::PQ2_0, Type::PTQ1_0};

}  // namespace

TEST_CASE("quantize: the formats without a search give ggml's bytes") {
    // FNV-1a of the output of quantize_row_*_ref for the sample: llama.cpp b4748; MXFP4: ik_llama.cpp; NVFP4:
    // llama.cpp of October 2026 (xllamacpp 2026.10.11549).
    constexpr std::pair<Type, uint64_t> kGgml[] = {
        {Type::F16, 0x6720e9ec04756ad0},   {Type::BF16, 0x83a2dd8c06797241},
        {Type::Q4_0, 0x0e9abab8f454d146},  {Type::Q4_1, 0x98e2a9e2a87ddb1b},
        {Type::Q5_0, 0xa3c01bf95521ac7d},  {Type::Q5_1, 0x23f7b475f9068f3a},
        {Type::Q8_0, 0x8f25f5acd79c3dde},  {Type::TQ1_0, 0xef8de40e5783f035},
        {Type::TQ2_0, 0x4c3481f7b0a899fb}, {Type::MXFP4, 0x3e0db87e04c4a0e8},
        {Type::NVFP4, 0x6d25fa9ca94d380f},
    };
    const std::vector<float> values = sample_weights();
    for (const auto &[type, expected] : kGgml) {
        const std::string_view name = traits(type).name;
        CAPTURE(name);
        CHECK(hash(quantized(type, values)) == expected);
    }
    CHECK(through(Type::F32, values) == values);
}

TEST_CASE("quantize: searched scales leave less squared error than ggml's reference") {
    constexpr std::pair<Type, double> kGgml[] = {
        {Type::Q2_K, 2.364},    {Type::Q3_K, 0.57934},   {Type::Q4_K, 0.14579},   {Type::Q5_K, 0.038853},
        {Type::Q6_K, 0.010444}, {Type::IQ4_NL, 0.18437}, {Type::IQ4_XS, 0.17792},
    };
    const std::vector<float> values = sample_weights();
    for (const auto &[type, error] : kGgml) {
        const std::string_view name = traits(type).name;
        CAPTURE(name);
        const double thorough = squared_error(values, through(type, values));
        const double fast = squared_error(values, through(type, values, Effort::Fast));
        CHECK(thorough < 0.975 * error);
        CHECK(thorough > 0.5 * error);  // a smaller one would mean that the measure is wrong
        CHECK(fast < 1.1 * error);
        CHECK(fast >= thorough);
    }
}

TEST_CASE("quantize: without a search, the largest values of a group are kept and the error is larger") {
    const std::vector<float> values = sample_weights();
    for (const Type type : kSearched) {
        CAPTURE(traits(type).name);
        const std::vector<float> plain = through(type, values, Effort::Plain);
        const double error = squared_error(values, plain);
        CHECK(error > squared_error(values, through(type, values)));
        CHECK(error < 2.5 * squared_error(values, through(type, values)));
        CHECK(quantized(type, values, Effort::Plain) != quantized(type, values, Effort::Fast));
        // Constants are the largest values of their groups: at most the rounding of two scales away.
        for (const size_t block : {5, 7})
            for (size_t i = block * 256; i < block * 256 + 256; ++i)
                CHECK(std::fabs(plain[i] - values[i]) < 0.01f * std::fabs(values[i]));
    }
}

TEST_CASE("quantize: zeros stay zeros in every format") {
    const std::vector<float> zeros(512);
    for (const Type type : kQuantized)
        for (const Effort effort : {Effort::Fast, Effort::Thorough}) {
            CAPTURE(traits(type).name);
            for (const float value : through(type, zeros, effort)) REQUIRE(value == 0);
        }
}

TEST_CASE("quantize: magnitudes from the smallest to the largest give finite values of that size") {
    runnel::testing::Random random(3);
    for (const Type type : kQuantized)
        for (float size = 1e-42f; size < 1e7f; size *= 10) {
            std::vector<float> values(256);
            for (float &value : values) value = size * random.normal();
            CAPTURE(traits(type).name);
            CAPTURE(size);
            for (const float value : through(type, values)) {
                // A float16 scale ends at 65504; beyond it ggml's formats hold infinities, and so do ours.
                if (size > 1e4f) break;
                REQUIRE(std::fabs(value) < 6 * size + 6e-8f);
            }
        }
    for (const Type type : kSearched) {
        const std::vector<float> values(256, 3e38f);
        CAPTURE(traits(type).name);
        for (const float value : through(type, values)) REQUIRE(std::isfinite(value));
    }
}

TEST_CASE("quantize: values of a format come through unchanged where its search is exact") {
    // Blocks made of the format's own levels and scales, using both ends of the levels.
    runnel::testing::Random random(9);
    std::vector<float> values(256);
    for (size_t i = 0; i < values.size(); ++i) {
        const int level = i % 16 == 0 ? -8 : i % 16 == 1 ? 7 : static_cast<int>(random.below(16)) - 8;
        values[i] = 0.0625f * static_cast<float>(level);
    }
    for (const Type type : {Type::Q4_0, Type::Q6_K, Type::Q8_0, Type::Q4_K, Type::Q5_K}) {
        CAPTURE(traits(type).name);
        const std::vector<float> back = through(type, values);
        for (size_t i = 0; i < values.size(); ++i) REQUIRE(std::fabs(back[i] - values[i]) < 0.004f);
    }
}

TEST_CASE("quantize: ternary values come through every ternary format unchanged") {
    runnel::testing::Random random(11);
    std::vector<float> values(512);
    for (size_t i = 0; i < values.size(); ++i)
        values[i] = i % 64 == 0 ? 0.75f : 0.75f * (static_cast<float>(random.below(3)) - 1);
    for (const Type type : {Type::TQ1_0, Type::TQ2_0, Type::Q2_0, Type::PQ2_0, Type::PTQ1_0}) {
        CAPTURE(traits(type).name);
        CHECK(through(type, values) == values);
    }
}

TEST_CASE("quantize: can_quantize() is true for exactly the supported types") {
    for (const Type type : kQuantized) CHECK(can_quantize(type));
    for (const Type type : {Type::F32, Type::F16, Type::BF16}) CHECK(can_quantize(type));
    for (const Type type : {Type::F64, Type::I32, Type::Q8_1, Type::IQ2_XXS}) CHECK_FALSE(can_quantize(type));
}
