#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gguf/nvfp4.h"
#include "gguf/quantize.h"

using namespace runnel::gguf;

namespace {

std::vector<std::byte> random_bytes(size_t count) {
    std::vector<std::byte> bytes(count);
    uint64_t state = 12345;
    for (std::byte &byte : bytes) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        byte = static_cast<std::byte>(state >> 56);
    }
    return bytes;
}

// FNV-1a over the bits of the values; all NaNs count as one.
uint64_t hash(const std::vector<float> &values) {
    uint64_t h = 14695981039346656037u;
    for (const float value : values) {
        const uint32_t bits = std::isnan(value) ? 0x7fc00000u : std::bit_cast<uint32_t>(value);
        h = (h ^ bits) * 1099511628211u;
    }
    return h;
}

// Hashes of the values that ggml (llama.cpp b4748; for codebook formats its Python package gguf
// 0.19, for NVFP4, Q1_0 and Q2_0 xllamacpp 2026.10.11549) computes from random_bytes as blocks of 64 * 256
// weights.
struct Expected {
    Type type;
    uint64_t hash;
    float value100, value255;
};
constexpr Expected kGgml[] = {
    {Type::F16, 0xba32faa11c4ac325, 0x1.be4p+2f, 0x1.91cp-10f},
    {Type::BF16, 0x2cc13172e5622325, 0x1.f2p+14f, 0x1.8ep-83f},
    {Type::Q4_0, 0xabbebf77f6b17b25, 0x0p+0f, 0x0p+0f},
    {Type::Q4_1, 0x37463ebbb98e96e1, -0x1.fa1a98p+7f, -0x1.a9ddp-7f},
    {Type::Q5_0, 0x7ad6edeaa8792525, -0x1.386p-8f, -0x1.03d8p+0f},
    {Type::Q5_1, 0x0206a1ccf4b3d84b, 0x1.47c9ap+7f, -0x1.2e4p+11f},
    {Type::Q8_0, 0x72c543543cdc5fe5, -0x1.9aap-3f, 0x1.36p+7f},
    {Type::Q2_K, 0xf51db102139c1984, 0x1.344p-5f, 0x1.00ep-6f},
    {Type::Q3_K, 0x8b1be5a4e52b3665, 0x1.a1e4p-8f, 0x1.f578p-8f},
    {Type::Q4_K, 0xdaf91031f0e105e7, 0x1.73148p+12f, 0x1.5d1dp+12f},
    {Type::Q5_K, 0xa4aabbd7f55e413e, 0x1.ab11p+12f, 0x1.4f1dep+12f},
    {Type::Q6_K, 0x4dbd746683c9db0b, -0x1.b46a8p+26f, 0x1.6152p+24f},
    {Type::IQ4_NL, 0xb1e838f4582fd0a5, 0x1.ac8p-15f, 0x1.3a4p-6f},
    {Type::IQ4_XS, 0x7350f6dfb15dc9ed, 0x1.554p+6f, -0x1.fc52p+12f},
    {Type::TQ1_0, 0x41d1ad3a4d63a325, -0x1.cdcp-12f, -0x0p+0f},
    {Type::TQ2_0, 0xdad5a49d0d372325, -0x0p+0f, -0x1.a2cp-2f},
    {Type::IQ1_S, 0x0423a25d0d058b45, 0x1.1feep+5f, 0x1.5c5cp+4f},
    {Type::IQ1_M, 0xb5a8e38b4d6067e5, -0x1.0c68p-13f, -0x1.929cp-12f},
    {Type::IQ2_XXS, 0x5f2e3cb35ef73ff9, -0x1.150b2p+9f, 0x1.4708p+6f},
    {Type::IQ2_XS, 0x1f697b7f711cd569, 0x1.38dp+5f, 0x1.ffep+4f},
    {Type::IQ2_S, 0xd28816219251bf81, -0x1.554p+3f, -0x1.0a9ap+5f},
    {Type::IQ3_XXS, 0x49d2a8c32ca012fd, -0x1.aa9p+5f, 0x1.3fecp+7f},
    {Type::IQ3_S, 0x40ff2976ffefe825, 0x1.4febp+9f, -0x1.6a94p+7f},
    {Type::NVFP4, 0xf2203cd3878f2325, 0x0p+0f, 0x0p+0f},
    {Type::Q1_0, 0xbc03e4d7d7832325, 0x1.c7p+1f, -0x1.184p+8f},
    {Type::Q2_0, 0xbd8bf22218330325, -0x1.184p+8f, -0x1.ac8p-15f},
};

}  // namespace

TEST_CASE("dequantize: every value of random blocks is the one ggml computes") {
    constexpr int64_t n = 64 * 256;
    for (const Expected &expected : kGgml) {
        CAPTURE(traits(expected.type).name);
        // At an odd address: blocks may be at any address.
        const size_t bytes = row_bytes(expected.type, n);
        const std::vector<std::byte> blocks = random_bytes(bytes);
        std::vector<std::byte> shifted(bytes + 1);
        std::memcpy(shifted.data() + 1, blocks.data(), bytes);
        std::vector<float> values(n);
        dequantize_row(expected.type, shifted.data() + 1, values.data(), n);
        CHECK(values[100] == expected.value100);
        CHECK(values[255] == expected.value255);
        CHECK(hash(values) == expected.hash);
    }
}

TEST_CASE("dequantize: PQ2_0 and PTQ1_0 are the values that their description gives, for all bytes") {
    // Both: 128 weights, a float16 scale. PQ2_0: the scale, then the weights from the lowest bits on, four in a byte.
    // PTQ1_0: a byte b holds the ternary number whose digit n is floor(3 * frac(3^n * b / 256)). Sixteen bytes of five
    // digits, eight of five, two of four: first digits first. Then the scale.
    for (int round = 0; round < 256; ++round) {
        CAPTURE(round);
        const double d = round % 2 == 0 ? 0.375 : -3;
        const uint16_t bits = f32_to_f16(static_cast<float>(d));
        std::array<uint8_t, 34> codes{};
        std::array<uint8_t, 28> trits{};
        for (size_t i = 0; i < 32; ++i) codes[2 + i] = static_cast<uint8_t>(round + 7 * static_cast<int>(i));
        for (size_t i = 0; i < 26; ++i) trits[i] = static_cast<uint8_t>(round + 11 * static_cast<int>(i));
        std::memcpy(codes.data(), &bits, 2);
        std::memcpy(trits.data() + 26, &bits, 2);
        std::vector<double> digits;
        for (const auto &[first, count, most] :
             {std::array{0, 16, 5}, std::array{16, 8, 5}, std::array{24, 2, 4}})
            for (int n = 0; n < most; ++n)
                for (int i = 0; i < count; ++i) {
                    double whole;
                    const double byte = trits[static_cast<size_t>(first + i)];
                    digits.push_back(std::floor(3 * std::modf(std::pow(3.0, n) * byte / 256, &whole)));
                }
        REQUIRE(digits.size() == 128);
        float two_bits[128], ternary[128];
        dequantize_row(Type::PQ2_0, reinterpret_cast<const std::byte *>(codes.data()), two_bits, 128);
        dequantize_row(Type::PTQ1_0, reinterpret_cast<const std::byte *>(trits.data()), ternary, 128);
        for (size_t i = 0; i < 128; ++i) {
            CAPTURE(i);
            const int code = codes[2 + i / 4] / (1 << (2 * (i % 4))) % 4;
            CHECK(two_bits[i] == (code - 1) * d);
            CHECK(ternary[i] == (digits[i] - 1) * d);
        }
    }
}

TEST_CASE("dequantize: MXFP4 is a power of two times an E2M1 value") {
    // E2M1: sign, 2 bits of exponent with bias 1, 1 bit of mantissa (OCP Microscaling Formats 1.0).
    const auto e2m1 = [](int code) {
        const int exponent = code >> 1 & 3, mantissa = code & 1;
        const double magnitude =
            exponent == 0 ? 0.5 * mantissa : std::ldexp(1 + 0.5 * mantissa, exponent - 1);
        return code & 8 ? -magnitude : magnitude;
    };
    for (int exponent = 0; exponent < 255; ++exponent) {
        BlockMXFP4 block{};
        block.e = static_cast<uint8_t>(exponent);
        for (int i = 0; i < 16; ++i) block.qs[i] = static_cast<uint8_t>(i | (15 - i) << 4);
        float values[32];
        dequantize_row(Type::MXFP4, reinterpret_cast<const std::byte *>(&block), values, 32);
        for (int i = 0; i < 16; ++i) {
            CAPTURE(exponent);
            CAPTURE(i);
            CHECK(values[i] == static_cast<float>(std::ldexp(e2m1(i), exponent - 127)));
            CHECK(values[i + 16] == static_cast<float>(std::ldexp(e2m1(15 - i), exponent - 127)));
        }
    }
}

TEST_CASE("dequantize: UE4M3 scales are decoded and encoded without loss") {
    // 4 bits of exponent with bias 7, 3 of mantissa.
    for (int bits = 0; bits < 0x7f; ++bits) {
        const int exponent = bits >> 3, mantissa = bits & 7;
        const double value =
            exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(1 + mantissa / 8.0, exponent - 7);
        CAPTURE(bits);
        CHECK(static_cast<double>(ue4m3_to_f32(static_cast<uint8_t>(bits))) == value);
        CHECK(ue4m3_to_f32(static_cast<uint8_t>(bits | 0x80)) == ue4m3_to_f32(static_cast<uint8_t>(bits)));
        // From 256 on, ggml rounds up to the largest.
        if (value < 256) CHECK(f32_to_ue4m3(static_cast<float>(value)) == bits);
    }
    CHECK(ue4m3_to_f32(0x7f) == 0);
    CHECK(ue4m3_to_f32(0xff) == 480);
    for (const float none : {0.0f, -1.0f, static_cast<float>(NAN), 0x1p-11f}) CHECK(f32_to_ue4m3(none) == 0);
    for (const float much : {256.0f, 448.0f, 1e9f, static_cast<float>(INFINITY)})
        CHECK(f32_to_ue4m3(much) == 0x7e);
    CHECK(f32_to_ue4m3(1.0624f) == 0x38);
    CHECK(f32_to_ue4m3(1.0625f) == 0x39);
    CHECK(f32_to_ue4m3(255.9f) == 0x7e);
}

TEST_CASE("dequantize: numbers round to the nearest float") {
    const auto convert = [](Type type, auto number) {
        std::byte bytes[sizeof number];
        std::memcpy(bytes, &number, sizeof number);
        float value = 0;
        dequantize_row(type, bytes, &value, 1);
        return value;
    };
    CHECK(convert(Type::F32, -0.1f) == -0.1f);
    CHECK(convert(Type::F64, 0.1) == 0.1f);
    CHECK(convert(Type::F64, 1 + 0x1p-24) == 1.0f);
    CHECK(convert(Type::F64, 1 + 3 * 0x1p-24) == 1 + 0x1p-22f);
    CHECK(convert(Type::I8, int8_t{-128}) == -128.0f);
    CHECK(convert(Type::I16, int16_t{-32768}) == -32768.0f);
    CHECK(convert(Type::I32, int32_t{16777217}) == 16777216.0f);
    CHECK(convert(Type::I64, int64_t{-0x4000000000000000}) == -0x1p62f);
}

TEST_CASE("half: conversions are exact, rounded to nearest even") {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
        const auto half = static_cast<uint16_t>(bits);
        const float f16 = f16_to_f32(half), bf16 = bf16_to_f32(half);
        if (std::isnan(f16)) {
            CHECK_EQ(f32_to_f16(f16), half | 0x200);
        } else {
            const int exponent = half >> 10 & 31, mantissa = half & 1023;
            const double magnitude = exponent == 31  ? INFINITY
                                     : exponent == 0 ? std::ldexp(mantissa, -24)
                                                     : std::ldexp(1024 + mantissa, exponent - 25);
            CHECK_EQ(f16, half & 0x8000 ? -magnitude : magnitude);
            CHECK_EQ(f32_to_f16(f16), half);
        }
        if (!std::isnan(bf16)) CHECK_EQ(f32_to_bf16(bf16), half);
        CHECK_EQ(std::bit_cast<uint32_t>(bf16), bits << 16);
    }
    CHECK(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u)))));
    CHECK(std::isnan(f16_to_f32(f32_to_f16(std::bit_cast<float>(0xff800001u)))));
}

TEST_CASE("half: a float between two neighbors goes to the nearer, in the middle to the even one") {
    for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
        const float low = f16_to_f32(static_cast<uint16_t>(bits));
        const float high = bits == 0x7bff ? 65536.0f : f16_to_f32(static_cast<uint16_t>(bits + 1));
        const float middle = low + (high - low) / 2;  // exact in float
        CAPTURE(bits);
        CHECK_EQ(f32_to_f16(middle), bits + (bits & 1));
        CHECK_EQ(f32_to_f16(std::nextafter(middle, 0.0f)), bits);
        CHECK_EQ(f32_to_f16(-std::nextafter(middle, INFINITY)), 0x8000 + bits + 1);
    }
    static_assert(f32_to_f16(65520.0f) == 0x7c00 && f32_to_f16(1.0f) == 0x3c00 &&
                  f32_to_bf16(1.0f) == 0x3f80);
    CHECK(f32_to_bf16(1 + 0x1p-8f) == 0x3f80);
    CHECK(f32_to_bf16(1 + 3 * 0x1p-8f) == 0x3f82);
    CHECK(f32_to_bf16(std::nextafter(1 + 0x1p-8f, 2.0f)) == 0x3f81);
    CHECK(f32_to_bf16(0x1p-133f) == 1);
    CHECK(f32_to_bf16(3.4e38f) == 0x7f80);
}
