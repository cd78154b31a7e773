// The bytes of llama.cpp's quantizers: hashes of what ggml_quantize_chunk (llama.cpp of October 2026, x86-64) writes
// for rows that are made here, with exact arithmetic, and there alike.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "gguf/quantize.h"

using namespace runnel::gguf;

namespace {

// Knuth's MMIX generator: its upper 32 bits.
class Words {
  public:
    explicit Words(uint64_t seed) : state_(seed) {}
    uint32_t operator()() {
        state_ = state_ * 6364136223846793005u + 1442695040888963407u;
        return static_cast<uint32_t>(state_ >> 32);
    }

  private:
    uint64_t state_;
};

// Values with a heavy tail, of several magnitudes.
std::vector<float> values(uint64_t seed, size_t count) {
    Words words(seed);
    std::vector<float> out(count);
    for (float &x : out) {
        const auto a = std::ldexp(static_cast<float>(static_cast<int32_t>(words() >> 11) - (1 << 20)), -20);
        const int exponent = static_cast<int>(words() & 7) - 6;
        x = a * a * a * std::ldexp(1.0f, exponent);
    }
    return out;
}

std::vector<float> positive(uint64_t seed, size_t count) {
    Words words(seed);
    std::vector<float> out(count);
    for (float &x : out) x = (static_cast<float>(words() >> 12) + 1) * std::ldexp(1.0f, -20);
    return out;
}

struct Recorded {
    Type type;
    uint64_t plain, with_importance;
};

// clang-format off
constexpr Recorded kRecorded[] = {
    {Type::Q4_0, 0x1a4b64b9be3348a9, 0xb9f5d352d64e9e71},
    {Type::Q4_1, 0x0e5fb162f3b7798e, 0xcd39ddf38a2cc7fa},
    {Type::Q5_0, 0x0aa7001da57a84ef, 0xa66fe6aab89e6a6e},
    {Type::Q5_1, 0xfea830c8fde862c7, 0xa2ab3ac02166d328},
    {Type::Q8_0, 0x4dcd4c2322990e69, 0x4dcd4c2322990e69},
    {Type::Q2_K, 0x5fe26262e28b7679, 0xf35f169fa3e6e09c},
    {Type::Q3_K, 0x6001ecc97049afad, 0x42b583992ef755ff},
    {Type::Q4_K, 0x0480a88c5a088192, 0x9ea3c26a457492f9},
    {Type::Q5_K, 0x03a1fe0ef8eb0dab, 0xd927d3911a089290},
    {Type::Q6_K, 0xa486aa18e76a376d, 0x2bb6f389c53090fa},
    {Type::IQ4_NL, 0xc8ff1b3c3d9d1509, 0xb654dd3c9363c66b},
    {Type::IQ4_XS, 0xacf4be2811ba9fa1, 0xdd037bf33ab72921},
    {Type::TQ1_0, 0x5226c8ce7b7e86d6, 0x5226c8ce7b7e86d6},
    {Type::TQ2_0, 0x6497fc953bd45f9f, 0x6497fc953bd45f9f},
    {Type::MXFP4, 0x1965374e3048c3e4, 0x1965374e3048c3e4},
    {Type::NVFP4, 0xea99a54fea7b77c8, 0xea99a54fea7b77c8},
};
// clang-format on

// FNV-1a over what is written for five shapes of tensors; one has a block of zeros.
uint64_t hash_of(Type type, bool with_importance) {
    constexpr int64_t kShapes[][2] = {{1, 256}, {3, 512}, {7, 768}, {2, 2048}, {16, 256}};
    uint64_t hash = 0xcbf29ce484222325;
    uint64_t seed = 0;
    for (const auto [rows, columns] : kShapes) {
        std::vector<float> in = values(100 + seed, static_cast<size_t>(rows * columns));
        const std::vector<float> importance = positive(200 + seed, static_cast<size_t>(columns));
        if (seed == 4) std::fill_n(in.begin() + 5 * 256, 256, 0.0f);
        std::vector<std::byte> out(static_cast<size_t>(rows) * row_bytes(type, columns));
        quantize_standard(type, in, columns,
                          with_importance ? std::span<const float>(importance) : std::span<const float>{},
                          out.data());
        for (const std::byte b : out) hash = (hash ^ static_cast<uint8_t>(b)) * 0x100000001b3;
        ++seed;
    }
    return hash;
}

}  // namespace

TEST_CASE("quantize: every type has the bytes of llama.cpp, with and without importance") {
    for (const Recorded &recorded : kRecorded) {
        CAPTURE(traits(recorded.type).name);
        CHECK(hash_of(recorded.type, false) == recorded.plain);
        CHECK(hash_of(recorded.type, true) == recorded.with_importance);
    }
}

TEST_CASE("quantize: values at the edge of float give blocks, not undefined behavior") {
    for (const Recorded &recorded : kRecorded)
        for (const float extreme : {3e38f, 1e-38f, 1e-45f}) {
            std::vector<float> in = values(7, 512);
            in[3] = extreme, in[300] = -extreme;
            const std::vector<float> importance(512, 1.0f);
            std::vector<std::byte> out(row_bytes(recorded.type, 512));
            quantize_standard(recorded.type, in, 512, {}, out.data());
            quantize_standard(recorded.type, in, 512, importance, out.data());
            CHECK(out.size() == row_bytes(recorded.type, 512));
        }
}
