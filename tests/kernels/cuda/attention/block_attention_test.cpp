// Spans whose tokens see each other both ways (SequenceInfo::common_end), in all attention kernels.
#include <doctest/doctest.h>

#include <vector>

#include "kernels/cuda/attention/attention.h"
#include "tests/kernels/cuda/attention/attention_problem.h"
#include "tests/simt/turing.h"
#include "tests/support/skip.h"

using namespace runnel;
using namespace runnel::tests;

namespace {

using enum CacheType;

// Every sequence has the same bits in any batch, from all kernels, on any grid.
void check_bits(const Problem &p) {
    const Result together = run(p, Way::Decode);
    const auto width = static_cast<size_t>(p.shape.step.heads * p.shape.step.head_dim_v);
    auto at = together.out.begin();
    for (size_t s = 0; s < p.shape.sequences.size(); ++s) {
        const auto end =
            at + static_cast<std::ptrdiff_t>(static_cast<size_t>(p.shape.sequences[s].count) * width);
        const std::vector<float> expected(at, end);
        const Problem one = alone(p, s);
        for (const Way way : {Way::Decode, Way::Prefill, Way::Split})
            CHECK(same_bits(run(one, way, 2).out, expected));
        at = end;
    }
    CHECK(same_bits(run(p, Way::Split, 7).out, together.out));
    CHECK(same_bits(run(p, Way::Prefill, 1, &together).out,
                    together.out));  // reads what another layer appended
}

// Heads, windows, types and lengths at random; some sequences see both ways.
Shape random_shape(uint64_t seed, bool wide) {
    testing::Random random(seed);
    const auto below = [&](uint64_t n) { return static_cast<int32_t>(random.below(n)); };
    constexpr CacheType kTypes[] = {F16, F16, Q8_0, Q5_0, BF16, Q4_0, IQ4_NL};
    constexpr int32_t kDims[] = {16, 40, 64, 80, 128, 136, 256};
    const int32_t kv_heads = 1 + below(2), group = 1 + below(8);
    const bool is_latent = wide && random.below(2) > 0;
    const int32_t dim_k = wide ? (is_latent ? 48 : 264) : kDims[random.below(7)];
    const int32_t dim_v = wide ? 40 : random.below(3) ? dim_k : kDims[random.below(7)];
    Shape shape{attention(group * kv_heads, kv_heads, dim_k, dim_v),
                {},
                {},
                random.below(2) > 0,
                random.below(2) > 0,
                random.below(2) > 0};
    for (int32_t i = 2 + below(2); i > 0; --i) {
        const int32_t pasts[] = {0, below(40), 240 + below(30), below(600)};
        shape.sequences.push_back(
            {pasts[random.below(4)], 1 + below(random.below(3) ? 17 : 40), i == 1 || random.below(2) > 0});
    }
    shape.latent = is_latent;
    shape.k_type = kTypes[random.below(7)], shape.v_type = kTypes[random.below(7)];
    if (random.below(2)) shape.rope = rope_table(kernels::RopeTable::Pairs::Halves, 16);
    shape.step.softcap = random.below(3) ? 0 : 2.5f;
    if (random.below(2)) shape.step.window = 1 + below(random.below(2) ? 30 : 400);
    return shape;
}

}  // namespace

TEST_CASE(
    "cuda block attention: random shapes agree with double precision, with the same bits in any batch") {
    for (uint64_t seed = 300; seed < 308; ++seed) {
        const Shape shape = random_shape(seed, false);
        CAPTURE(shape.step.window);
        check_shape(shape, seed);
        check_bits(make_problem(shape, seed));
    }
}

TEST_CASE("cuda block attention: wide and latent heads, too") {
    for (uint64_t seed = 330; seed < 334; ++seed) {
        const Shape shape = random_shape(seed, true);
        CAPTURE(shape.latent);
        CAPTURE(shape.step.window);
        check_shape(shape, seed);
        check_bits(make_problem(shape, seed));
    }
}

TEST_CASE("cuda block attention: blocks that cross pages, steps and splits, with windows") {
    for (const int32_t window : {0, 1, 8, 16, 70, 300})
        for (const int32_t past : {17, 48, 63, 241, 250, 505}) {
            CAPTURE(window);
            CAPTURE(past);
            Shape shape{attention(4, 2, 32, 32), {{past, 16, true}, {past, 16}}, {}};
            shape.step.window = window;
            check_shape(shape, 340);
        }
}

TEST_CASE("cuda block attention: a span of one token has the bits of an ordinary one") {
    Shape shape{attention(4, 2, 64, 64), {{300, 1}, {0, 1}}, {}};
    Problem p = make_problem(shape, 350);
    const Result ordinary = run(p, Way::Decode);
    for (Sequence &s : p.shape.sequences) s.both_ways = true;
    for (const Way way : {Way::Decode, Way::Prefill}) CHECK(same_bits(run(p, way).out, ordinary.out));
}

TEST_CASE("cuda block attention: the cache is read once per tile, not once per token") {
    if (!simt::emulated()) {
        runnel::testing::skip("only the emulator counts bytes");
        return;
    }
    for (const CacheType type : {F16, Q8_0}) {
        Shape shape{attention(8, 2, 64, 64), {{511, 16, true}}, {}};
        shape.k_type = shape.v_type = type;
        const auto reports = run(make_problem(shape, 360), Way::Decode).reports;
        // 16 tokens of 4 query heads are four tiles; the new cells are not read back.
        const uint64_t bytes = 4 * 511 * 2 * kernels::cache_row_bytes(type, 64);
        CHECK(reports[0].traffic.at("K cache").read == bytes);
        CHECK(reports[0].traffic.at("V cache").read == bytes);
        CHECK(reports[0].traffic.at("K cache").written == 16 * 2 * kernels::cache_row_bytes(type, 64));
    }
}

TEST_CASE("cuda block attention: sm_75 gives the same bits") {
    for (const auto &[type, dim] : {std::pair{F16, 128}, {F16, 256}, {Q8_0, 64}}) {
        Shape shape{attention(5, 1, dim, dim), {{30, 16, true}, {270, 3, true}, {0, 14}}, {}};
        shape.k_type = shape.v_type = type;
        const Problem p = make_problem(shape, 370);
        const Result elsewhere = run(p, Way::Decode);
        const simt::Turing turing;
        CHECK(same_bits(run(p, Way::Decode).out, elsewhere.out));
        CHECK(same_bits(run(p, Way::Prefill).out, elsewhere.out));
    }
}
