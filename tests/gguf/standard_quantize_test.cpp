// The bytes of llama.cpp's quantizers: hashes of what ggml_quantize_chunk (llama.cpp of October 2026, x86-64) writes
// for the rows of this test, which are made with exact arithmetic and so are the same everywhere.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <thread>
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

struct Hashes {
    uint64_t plain, with_importance;  // plain: 0 where the type needs importance
};

struct Recorded {
    Type type;
    Hashes ordinary, special;
};

// clang-format off
constexpr Recorded kRecorded[] = {
    {Type::Q4_0, {0x1a4b64b9be3348a9, 0xb9f5d352d64e9e71}, {0x9553a72e7d6b33b2, 0xa24f28bb8e73036f}},
    {Type::Q4_1, {0x0e5fb162f3b7798e, 0xcd39ddf38a2cc7fa}, {0x0bdce5c86ff30530, 0x42039376b231ddc4}},
    {Type::Q5_0, {0x0aa7001da57a84ef, 0xa66fe6aab89e6a6e}, {0x867746683268e411, 0x06de4bb874dd7bde}},
    {Type::Q5_1, {0xfea830c8fde862c7, 0xa2ab3ac02166d328}, {0x67004e4a357b79a3, 0xecf9e6406ff2fa41}},
    {Type::Q8_0, {0x4dcd4c2322990e69, 0x4dcd4c2322990e69}, {0xc182073b3dffbc55, 0xc182073b3dffbc55}},
    {Type::Q2_K, {0x5fe26262e28b7679, 0xf35f169fa3e6e09c}, {0x53ff5dcca45af655, 0x934d8817e7c6acc1}},
    {Type::Q3_K, {0x6001ecc97049afad, 0x42b583992ef755ff}, {0xcfc58be93c9cf67d, 0x495246100c56f69a}},
    {Type::Q4_K, {0x0480a88c5a088192, 0x9ea3c26a457492f9}, {0x9ac8e78c070e652f, 0xda3eac5a782fcef0}},
    {Type::Q5_K, {0x03a1fe0ef8eb0dab, 0xd927d3911a089290}, {0x6086dc87324dd73f, 0xb62eb87bc06bbbe6}},
    {Type::Q6_K, {0xa486aa18e76a376d, 0x2bb6f389c53090fa}, {0xd79ee9d3c4984114, 0xb5c404e818ec173e}},
    {Type::IQ4_NL, {0xc8ff1b3c3d9d1509, 0xb654dd3c9363c66b}, {0xc6e8fc20681512a4, 0x50b3330dbdc0dc2a}},
    {Type::IQ4_XS, {0xacf4be2811ba9fa1, 0xdd037bf33ab72921}, {0x2d8aaff97b867769, 0x7c481c3e47a99235}},
    {Type::TQ1_0, {0x5226c8ce7b7e86d6, 0x5226c8ce7b7e86d6}, {0x53f3b7a9cb21594e, 0x53f3b7a9cb21594e}},
    {Type::TQ2_0, {0x6497fc953bd45f9f, 0x6497fc953bd45f9f}, {0xbc6575c157bec6dc, 0xbc6575c157bec6dc}},
    {Type::MXFP4, {0x1965374e3048c3e4, 0x1965374e3048c3e4}, {0x641b52329a352c83, 0x641b52329a352c83}},
    {Type::NVFP4, {0xea99a54fea7b77c8, 0xea99a54fea7b77c8}, {0x7086cfa894b442ca, 0x7086cfa894b442ca}},
    {Type::Q1_0, {0x07344e7416809698, 0x07344e7416809698}, {0xb2d5d50c5f3dbcb5, 0xb2d5d50c5f3dbcb5}},
    {Type::Q2_0, {0xb8951bcb14d9c477, 0xb8951bcb14d9c477}, {0x7bdd8bb786059e3f, 0x7bdd8bb786059e3f}},
    {Type::IQ1_S, {0, 0x9a5c1286e7a06d24}, {0, 0x202948f95dce4bad}},
    {Type::IQ1_M, {0xf89ffe18a09893cd, 0x7a7debb036bddff4}, {0xfd91ac0eef1b679c, 0x9577c3c9f1feb963}},
    {Type::IQ2_XXS, {0, 0xe2159efa71db38f6}, {0, 0xbadecd56b1e7dced}},
    {Type::IQ2_XS, {0, 0x6158b9c6651bcfd6}, {0, 0xdab036a38f7cb544}},
    {Type::IQ2_S, {0xbc3484d8dbcbd305, 0xed4ada68e199eb58}, {0xc4014ceb06ebaa6e, 0xdebcd7cebb0c1a99}},
    {Type::IQ3_XXS, {0xbeda40ef37fb110b, 0x3476b23bc545f785}, {0xb431b1d5d7123ec4, 0xfc9dc88c3ba91f4a}},
    {Type::IQ3_S, {0x6ec56374491b1510, 0xfbe4dbd6b5b4aa21}, {0x71285e06c082634d, 0x216a21ca9c8426f1}},
};
// clang-format on

// FNV-1a.
uint64_t hash_of(const std::vector<std::byte> &bytes, uint64_t hash) {
    for (const std::byte b : bytes) hash = (hash ^ static_cast<uint8_t>(b)) * 0x100000001b3;
    return hash;
}

constexpr uint64_t kStart = 0xcbf29ce484222325;

// The hash of the output for five shapes of tensors; one has a block of zeros.
uint64_t hash_ordinary(Type type, bool with_importance) {
    constexpr int64_t kShapes[][2] = {{1, 256}, {3, 512}, {7, 768}, {2, 2048}, {16, 256}};
    uint64_t hash = kStart, seed = 0;
    for (const auto [rows, columns] : kShapes) {
        std::vector<float> in = values(100 + seed, static_cast<size_t>(rows * columns));
        const std::vector<float> importance = positive(200 + seed, static_cast<size_t>(columns));
        if (seed == 4) std::fill_n(in.begin() + 5 * 256, 256, 0.0f);
        std::vector<std::byte> out(static_cast<size_t>(rows) * row_bytes(type, columns));
        quantize_standard(type, in, columns,
                          with_importance ? std::span<const float>(importance) : std::span<const float>{},
                          out.data());
        hash = hash_of(out, hash);
        ++seed;
    }
    return hash;
}

// The hash for rows of zeros, with a block of zeros, tiny, large, of one value, of one sign, with few different
// values, and with zeros at the ends of blocks; every third column has no importance.
uint64_t hash_special(Type type, bool with_importance) {
    constexpr size_t kColumns = 512;
    std::vector<float> in = values(300, 8 * kColumns), importance = positive(400, kColumns);
    for (size_t i = 0; i < kColumns; ++i) {
        const auto at = [&](size_t row) -> float & { return in[row * kColumns + i]; };
        at(0) = 0;
        if (i < 256) at(1) = 0;
        at(2) = std::ldexp(at(2), -30);
        at(3) = std::ldexp(at(3), 12);
        at(4) = 0.25f;
        at(5) = -std::fabs(at(5));
        at(6) = std::copysign((std::trunc(std::fabs(at(6)) * 4) + 1) * 0.125f, at(6));
        if (i % 256 >= 192) at(7) = 0;
        if (i % 3 == 0) importance[i] = 0;
    }
    std::vector<std::byte> out(8 * row_bytes(type, kColumns));
    quantize_standard(type, in, kColumns,
                      with_importance ? std::span<const float>(importance) : std::span<const float>{},
                      out.data());
    return hash_of(out, kStart);
}

}  // namespace

TEST_CASE("quantize: every type has the bytes of llama.cpp, with and without importance") {
    for (const Recorded &recorded : kRecorded) {
        CAPTURE(traits(recorded.type).name);
        CHECK((recorded.ordinary.plain == 0) == standard_needs_importance(recorded.type));
        if (!standard_needs_importance(recorded.type)) {
            CHECK(hash_ordinary(recorded.type, false) == recorded.ordinary.plain);
            CHECK(hash_special(recorded.type, false) == recorded.special.plain);
        }
        CHECK(hash_ordinary(recorded.type, true) == recorded.ordinary.with_importance);
        CHECK(hash_special(recorded.type, true) == recorded.special.with_importance);
    }
}

TEST_CASE("quantize: groups of zeros stay zeros and move nothing else, in all types with codebooks") {
    for (const Type type :
         {Type::IQ1_S, Type::IQ1_M, Type::IQ2_XXS, Type::IQ2_XS, Type::IQ2_S, Type::IQ3_XXS, Type::IQ3_S}) {
        CAPTURE(traits(type).name);
        std::vector<float> in = values(8, 512), out(512);
        std::fill_n(in.begin() + 32, 32, 0.0f);
        std::fill_n(in.begin() + 288, 64, 0.0f);
        const std::vector<float> importance(512, 1.0f);
        std::vector<std::byte> blocks(row_bytes(type, 512));
        quantize_standard(type, in, 512, importance, blocks.data());
        dequantize_row(type, blocks.data(), out.data(), 512);
        // Correlation with the input: from IQ1's 0.8 up to 0.98.
        double xy = 0, xx = 0, yy = 0;
        for (size_t i = 0; i < 512; ++i) {
            xy += double{in[i]} * out[i];
            xx += double{in[i]} * in[i];
            yy += double{out[i]} * out[i];
        }
        CHECK(xy / std::sqrt(xx * yy) > 0.75);
    }
}

TEST_CASE("quantize: concurrent threads share the codebook tables and write the same blocks") {
    const std::vector<float> in = values(9, 256), importance = positive(10, 256);
    std::vector<std::vector<std::byte>> outs(3);
    {
        std::vector<std::jthread> team;
        for (auto &out : outs)
            team.emplace_back([&] {
                for (const Type type : {Type::IQ1_S, Type::IQ2_S, Type::IQ3_XXS}) {
                    std::vector<std::byte> block(row_bytes(type, 256));
                    quantize_standard(type, in, 256, importance, block.data());
                    out.insert(out.end(), block.begin(), block.end());
                }
            });
    }
    CHECK(outs[0] == outs[1]);
    CHECK(outs[0] == outs[2]);
}

TEST_CASE("quantize: values at the edge of float give blocks, not undefined behavior") {
    for (const Recorded &recorded : kRecorded)
        for (const float extreme : {3e38f, 1e-38f, 1e-45f}) {
            std::vector<float> in = values(7, 512);
            in[3] = extreme, in[300] = -extreme;
            const std::vector<float> importance(512, 1.0f);
            std::vector<std::byte> out(row_bytes(recorded.type, 512));
            if (!standard_needs_importance(recorded.type))
                quantize_standard(recorded.type, in, 512, {}, out.data());
            quantize_standard(recorded.type, in, 512, importance, out.data());
            CHECK(out.size() == row_bytes(recorded.type, 512));
        }
}
