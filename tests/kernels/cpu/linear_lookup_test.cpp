// Products of weights of one and two bits by looking up sums: bit-equal to the scalar code of linear.h.
#include "kernels/cpu/linear_lookup.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cpu/linear.h"
#include "tests/kernels/cpu/random_blocks.h"

using namespace runnel;
using namespace runnel::kernels::cpu;
using runnel::tests::Fill;
using runnel::tests::random_weights;

namespace {

constexpr uint32_t kSeed = 20261128;
constexpr gguf::Type kTypes[] = {gguf::Type::Q1_0, gguf::Type::Q2_0, gguf::Type::PQ2_0, gguf::Type::PTQ1_0};

struct Free {
    void operator()(void *p) const { std::free(p); }
};
using Buffer = std::unique_ptr<std::byte, Free>;

// Exactly `bytes` bytes, a multiple of 64, so that the sanitizers find accesses beyond them.
Buffer buffer(size_t bytes) {
    REQUIRE(bytes % 64 == 0);
    return Buffer(static_cast<std::byte *>(std::aligned_alloc(64, std::max<size_t>(bytes, 64))));
}

std::vector<const LinearKernels *> kernels_with_lookup() {
    std::vector<const LinearKernels *> found;
    for (const LinearKernels *k : {linear_avx2(), linear_avx512(), linear_amx()})
        if (k != nullptr) found.push_back(k);
    return found;
}

struct Product {
    gguf::Type type;
    int64_t rows, cols;
    int32_t tokens;
    std::vector<std::byte> weights;
    std::vector<float> x;
};

Buffer packed(const LinearKernels &kernels, const Product &p) {
    Buffer to = buffer(packed_bytes(ActFormat::Q8x32, p.cols, p.tokens));
    kernels.pack(ActFormat::Q8x32, p.x.data(), p.cols, p.cols, p.tokens, 0, p.tokens, 0, p.cols, to.get());
    return to;
}

// [token][row] of rows [row0, row1)
std::vector<float> scalar(const Product &p, int64_t row0, int64_t row1) {
    std::vector<float> out(static_cast<size_t>((row1 - row0) * p.tokens));
    const Buffer scratch = buffer(linear_scalar().scratch_bytes(p.cols));
    linear_scalar().multiply(p.type, p.weights.data(), p.cols, row0, row1, packed(linear_scalar(), p).get(),
                             p.tokens, out.data() - row0, row1 - row0, scratch.get(), nullptr);
    return out;
}

// As scalar(), with tiles that were written in two pieces, the first of which has `cut` rows.
std::vector<float> looked_up(const LinearKernels &kernels, const Product &p, int64_t row0, int64_t row1,
                             int64_t cut) {
    REQUIRE(kernels.lookup != nullptr);
    const Buffer tiles = buffer(lookup_bytes(p.type, p.rows, p.cols));
    write_lookup_tiles(p.type, p.weights.data(), p.cols, 0, cut, tiles.get());
    write_lookup_tiles(p.type, p.weights.data(), p.cols, cut, p.rows, tiles.get());
    const Buffer sums = buffer(lookup_sums_bytes(p.cols, p.tokens));
    kernels.lookup->sum(packed(kernels, p).get(), p.cols, p.tokens, sums.get());
    std::vector<float> out(static_cast<size_t>((row1 - row0) * p.tokens), -1.0f);
    kernels.lookup->multiply(p.type, tiles.get(), p.cols, row0, row1, sums.get(), p.tokens, out.data() - row0,
                             row1 - row0, row0 == 0 ? tiles.get() : nullptr);
    return out;
}

bool same_bits(const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("linear lookup: random shapes are bit-equal to the scalar code") {
    for (uint32_t seed = kSeed; seed < kSeed + 120; ++seed) {
        CAPTURE(seed);
        std::mt19937 random(seed);
        const auto below = [&](uint32_t n) { return static_cast<int64_t>(random() % n); };
        Product p{.type = kTypes[below(4)],
                  .rows = 1 + below(70),
                  .cols = 128 * (1 + below(11)),
                  .tokens = static_cast<int32_t>(1 + below(kMostLookupTokens)),
                  .weights = {},
                  .x = {}};
        CAPTURE(gguf::traits(p.type).name);
        CAPTURE(p.rows);
        CAPTURE(p.cols);
        CAPTURE(p.tokens);
        p.weights = random_weights(p.type, p.rows, p.cols, random);
        std::normal_distribution<float> normal;
        for (int64_t i = 0; i < p.cols * p.tokens; ++i)
            p.x.push_back(normal(random) * (below(100) == 0 ? 20.0f : 1.0f));
        const int64_t row0 = below(static_cast<uint32_t>((p.rows + 15) / 16)) * 16;
        const int64_t row1 = std::min(p.rows, row0 + 16 * (1 + below(5)));
        const int64_t cut = below(static_cast<uint32_t>(p.rows / 16 + 1)) * 16;
        const std::vector<float> expected = scalar(p, row0, row1);
        for (const LinearKernels *kernels : kernels_with_lookup()) {
            CAPTURE(kernels->name);
            CHECK(same_bits(looked_up(*kernels, p, row0, row1, cut), expected));
        }
    }
}

// The largest sums of four, of both signs, are what their low and high bytes are made for.
TEST_CASE("linear lookup: extremes of the sums are bit-equal to the scalar code") {
    std::mt19937 random(kSeed);
    for (gguf::Type type : kTypes)
        for (int i = 0; i < 6; ++i) {
            const Fill fill = std::array{Fill::Ones, Fill::Zeros, Fill::Random}[static_cast<size_t>(i / 2)];
            const float sign = i % 2 == 0 ? 1.0f : -1.0f;
            CAPTURE(gguf::traits(type).name);
            CAPTURE(int(fill));
            CAPTURE(sign);
            Product p{.type = type, .rows = 16, .cols = 384, .tokens = 1, .weights = {}, .x = {}};
            p.x.assign(384, 3 * sign);
            p.weights = random_weights(p.type, p.rows, p.cols, random, fill);
            for (const LinearKernels *kernels : kernels_with_lookup())
                CHECK(same_bits(looked_up(*kernels, p, 0, 16, 0), scalar(p, 0, 16)));
        }
}

TEST_CASE("linear lookup: a token that is not a number spoils no other") {
    std::mt19937 random(kSeed + 1);
    Product p{.type = gguf::Type::Q2_0, .rows = 33, .cols = 256, .tokens = 2, .weights = {}, .x = {}};
    p.weights = random_weights(p.type, p.rows, p.cols, random);
    p.x.assign(512, 0.5f);
    p.x[100] = std::numeric_limits<float>::quiet_NaN();
    Product alone = p;
    alone.tokens = 1;
    alone.x.assign(256, 0.5f);
    for (const LinearKernels *kernels : kernels_with_lookup()) {
        const std::vector<float> both = looked_up(*kernels, p, 0, 33, 32), one = scalar(alone, 0, 33);
        for (size_t r = 0; r < 33; ++r) {
            CHECK(std::isnan(both[r]));
            CHECK(std::memcmp(&both[33 + r], &one[r], 4) == 0);
        }
    }
}

TEST_CASE("linear lookup: other formats, and rows that are no whole tiles, have no tiles") {
    for (gguf::Type type : runnel::tests::kLinearTypes)
        CHECK((lookup_stride(type, 1024) > 0) == (std::ranges::count(kTypes, type) > 0));
    CHECK(lookup_stride(gguf::Type::Q2_0, 1024 + 64) == 0);
    CHECK(lookup_stride(gguf::Type::Q1_0, 1024) == 8 * 288);
    CHECK(lookup_bytes(gguf::Type::PQ2_0, 17, 128) == 1088);
    for (const LinearKernels *kernels : kernels_with_lookup())
        for (gguf::Type type : runnel::tests::kLinearTypes) {
            const int32_t most = kernels->lookup->most_tokens(type);
            CHECK(most <= (lookup_stride(type, 1024) > 0 ? kMostLookupTokens : 0));
        }
}
