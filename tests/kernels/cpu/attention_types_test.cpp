// Keys and values in fewer bits (attention_formats.h, attention_pages.h).
#include <doctest/doctest.h>

#include "gguf/quantize.h"
#include "tests/kernels/cpu/attention_sequence.h"
#include "tests/support/cache_types.h"

using namespace runnel::kernels;
using namespace runnel::kernels::cpu;
using namespace runnel::testing;

TEST_CASE("attention: K and V in half of all pairs of types, read as the layout says, to the last bit") {
    Engine engine(8);
    int round = 0;
    for (int i = 0; i < 10; ++i)
        for (const int apart : {0, 1, 3, 4, 7}) {
            const CacheType k_type = kCacheTypes[i], v_type = kCacheTypes[(i + apart) % 10];
            const std::pair<int32_t, int32_t> dims[] = {{64, 64}, {33, 47}, {80, 36}, {128, 128}, {7, 16}};
            const auto [dk, dv] = dims[round++ % 5];
            CAPTURE(static_cast<int>(k_type));
            CAPTURE(static_cast<int>(v_type));
            CAPTURE(dk);
            Shape shape{round % 2 == 0 ? 90 : 700, round % 3 == 0 ? 16 : 3, dk, dv, round % 4 == 0 ? 50 : 0};
            shape.k_type = k_type, shape.v_type = v_type;
            shape.values_are_keys = round % 6 == 5 && dv <= dk;
            Sequence sequence(engine, shape);
            sequence.append_all(attention_best(), engine);
            const int32_t tokens = 5, cell = shape.cells - tokens;
            const Floats expected = attend_by_definition(sequence, cell, tokens);
            for (const AttentionKernels *kernels : all_kernels()) {
                CAPTURE(kernels->name);
                sequence.append_all(*kernels, engine);
                CHECK(same_bits(attend(*kernels, sequence, cell, tokens), expected));
                CHECK(same_bits(attend_in_ranges(*kernels, sequence, cell, tokens), expected));
                // Few rows read pages in place, many rows through float32.
                CHECK(same_bits(attend_one_by_one(*kernels, sequence, cell, tokens), expected));
                const Floats one = attend(*kernels, sequence, cell, 1);
                CHECK(std::equal(one.begin(), one.end(), expected.begin()));
            }
            const Floats k = sequence.kept_k(), v = sequence.kept_v();
            const auto error = [](CacheType type) {  // allowed for values around 1, at most 5
                return type == CacheType::F32    ? 0.0
                       : type == CacheType::F16  ? 0.003
                       : type == CacheType::BF16 ? 0.02
                       : type == CacheType::Q8_0 ? 0.025
                       : type == CacheType::Q5_1 ? 0.17
                       : type == CacheType::Q5_0 ? 0.36
                       : type == CacheType::Q4_1 ? 0.34
                       : type == CacheType::FP8  ? 0.26
                                                 : 0.71;
            };
            double worst_k = 0, worst_v = 0;
            for (size_t i = 0; i < k.size(); ++i)
                worst_k = std::max(worst_k, std::fabs(double(k[i]) - double(sequence.k[i])));
            for (size_t i = 0; i < v.size(); ++i)
                worst_v = std::max(worst_v, std::fabs(double(v[i]) - double(sequence.v[i])));
            CHECK(worst_k <= error(k_type));
            CHECK(worst_v <= error(shape.values_are_keys ? k_type : v_type));
        }
}

TEST_CASE("attention: numbers beyond a cache type's range become its limits") {
    Engine engine(9);
    for (const CacheType type : kCacheTypes) {
        if (type == CacheType::F16) continue;  // infinite from 65520 on
        CAPTURE(static_cast<int>(type));
        Shape shape{5, 1, 40, 40, 0};
        shape.k_type = shape.v_type = type;
        Sequence sequence(engine, shape);
        sequence.append_all(attention_best(), engine);
        for (const auto &[given, kept] :
             {std::pair{0.0f, 0.0f}, {1e-30f, 0.0f}, {500.0f, 448.0f}, {-1e5f, -448.0f}}) {
            std::fill(sequence.v.begin(), sequence.v.begin() + 40, given);
            sequence.append(attention_best(), 0, 1);
            const float expected = type == CacheType::FP8 ? kept : given;
            CHECK(sequence.kept_v()[39] == doctest::Approx(expected).epsilon(0.01).scale(1e-20));
        }
        std::fill(sequence.v.begin(), sequence.v.begin() + 40, 0.5f);
        for (const float broken : {NAN, INFINITY}) {  // must show in the results
            sequence.v[3] = broken;
            sequence.append(attention_best(), 0, 1);
            CHECK_FALSE(std::isfinite(attend(attention_best(), sequence, 0, 1)[3]));
        }
    }
}

TEST_CASE("attention: a Hadamard rotation is its own inverse, keeps lengths, and spreads an outlier") {
    Engine engine(11);
    for (const int32_t dims : {1, 2, 8, 33, 64, 80, 96, 128}) {
        CAPTURE(dims);
        const Floats x = normal(engine, 3 * dims);
        Floats y = x;
        rotate_heads(y.data(), 3, dims);
        double before = 0, after = 0;
        for (size_t i = 0; i < x.size(); ++i) before += double(x[i]) * x[i], after += double(y[i]) * y[i];
        CHECK(after == doctest::Approx(before).epsilon(1e-5));
        rotate_heads(y.data(), 3, dims);
        for (size_t i = 0; i < x.size(); ++i) CHECK(y[i] == doctest::Approx(x[i]).epsilon(1e-5).scale(1));
    }
    Floats one(64, 0.0f);
    one[5] = 8;
    rotate_heads(one.data(), 1, 64);
    CHECK(std::all_of(one.begin(), one.end(), [](float v) { return std::fabs(v) == 1.0f; }));
}

TEST_CASE("attention: types with scales round as well as the file formats of the same names") {
    Engine engine(12);
    const std::pair<CacheType, runnel::gguf::Type> types[] = {
        {CacheType::Q8_0, runnel::gguf::Type::Q8_0}, {CacheType::Q5_1, runnel::gguf::Type::Q5_1},
        {CacheType::Q5_0, runnel::gguf::Type::Q5_0}, {CacheType::Q4_1, runnel::gguf::Type::Q4_1},
        {CacheType::Q4_0, runnel::gguf::Type::Q4_0}, {CacheType::IQ4_NL, runnel::gguf::Type::IQ4_NL}};
    for (const auto &[type, format] : types) {
        CAPTURE(static_cast<int>(type));
        Shape shape{64, 1, 64, 64, 0};
        shape.k_type = shape.v_type = type;
        Sequence sequence(engine, shape);
        sequence.append_all(attention_best(), engine);
        const Floats &x = sequence.v, kept = sequence.kept_v();
        std::vector<std::byte> bytes(runnel::gguf::row_bytes(format, static_cast<int64_t>(x.size())));
        runnel::gguf::quantize_row(format, x.data(), bytes.data(), static_cast<int64_t>(x.size()));
        Floats other(x.size());
        runnel::gguf::dequantize_row(format, bytes.data(), other.data(), static_cast<int64_t>(x.size()));
        double error = 0, other_error = 0;
        for (size_t i = 0; i < x.size(); ++i) {
            error += std::pow(double(kept[i]) - double(x[i]), 2);
            other_error += std::pow(double(other[i]) - double(x[i]), 2);
        }
        // (Scales of IQ4_NL are searched for when a file is written.)
        CHECK(error < other_error * (type == CacheType::IQ4_NL ? 1.2 : 1.005));
    }
}
