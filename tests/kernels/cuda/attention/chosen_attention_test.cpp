// Attention to chosen cells (sparse attention), in heads of every kind.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/kernels/cuda/attention/attention_problem.h"
#include "tests/support/cache_types.h"
#include "tests/support/random.h"
#include "tests/support/skip.h"

using namespace runnel;
using namespace runnel::tests;
using namespace runnel::kernels::cuda;
using enum kernels::CacheType;

namespace {

Shape latent(int32_t heads, std::vector<Sequence> sequences, int32_t top_k) {
    Shape shape{attention(heads, 1, 40, 32), std::move(sequences), {}};
    shape.latent = true, shape.top_k = top_k;
    return shape;
}

// The problem with the choice of all cells, in rows of `top_k`.
Problem with_all(Problem p, int32_t top_k) {
    p.shape.top_k = top_k;
    p.chosen.clear();
    for (const Sequence &s : p.shape.sequences)
        for (int32_t own = s.past; own < s.past + s.count; ++own)
            for (int32_t i = 0; i < top_k; ++i) p.chosen.push_back(i <= own ? static_cast<float>(i) : -1.0f);
    return p;
}

}  // namespace

TEST_CASE("cuda chosen attention: results are right for random shapes, in every cache type") {
    using Pairs = kernels::RopeTable::Pairs;
    for (uint64_t seed = 300; seed < 316; ++seed) {
        CAPTURE(seed);
        testing::Random random(seed);
        const auto below = [&](uint64_t n) { return static_cast<int32_t>(random.below(n)); };
        const bool in_blocks = seed % 4 == 0;       // with a list of each K/V head
        const int kind = in_blocks ? 1 : below(3);  // latent, narrow, wide
        const int32_t kv_heads = kind == 0 ? 1 : in_blocks ? 2 : 1 + below(2), group = 1 + below(20);
        const int32_t dim_k = kind == 2 ? 8 * (33 + below(8)) : 8 * (2 + below(12));
        const int32_t dim_v =
            kind == 0 ? 8 * (1 + below(static_cast<uint64_t>(dim_k / 8))) : 8 * (1 + below(16));
        Shape shape{attention(group * kv_heads, kv_heads, dim_k, dim_v),
                    {{below(700), 1 + below(4)}, {below(100), 1 + below(12)}, {0, 1 + below(3)}},
                    {},
                    random.below(2) > 0,
                    random.below(2) > 0,
                    random.below(2) > 0};
        shape.latent = kind == 0;
        shape.k_type = runnel::testing::kGpuCacheTypes[seed % runnel::testing::kGpuCacheTypes.size()];
        shape.v_type = runnel::testing::kGpuCacheTypes[random.below(runnel::testing::kGpuCacheTypes.size())];
        shape.top_k = random.below(2) ? 1 + below(40) : 200 + below(400);
        if (random.below(2)) {
            shape.rope = rope_table(random.below(2) ? Pairs::Adjacent : Pairs::Halves, 8);
            shape.rope->first = shape.latent ? dim_k - 8 : 8;
        }
        shape.step.norm_after_rope = random.below(2) > 0;
        shape.step.softcap = random.below(2) ? 2.5f : 0;
        if (in_blocks) {
            shape.step.chosen_block = 2 + below(150);
            shape.step.chosen_lists = kv_heads;
            shape.top_k = 1 + below(6);
        }
        CAPTURE(shape.latent);
        CAPTURE(shape.top_k);
        check_shape(shape, seed);
    }
}

TEST_CASE("cuda chosen attention: results are right for numbers of chosen cells around steps and splits") {
    for (const int32_t top_k : {1, 31, 63, 64, 65, 255, 256, 257, 512}) {
        CAPTURE(top_k);
        check_shape(latent(4, {{520, 1}, {254, 3}}, top_k), 320);
    }
    Shape mla{attention(18, 1, 576, 512), {{300, 2}, {0, 1}}, {}};
    mla.latent = true, mla.top_k = 70;
    check_shape(mla, 321);
}

TEST_CASE("cuda chosen attention: a token that chooses all its cells has the bits of dense wide attention") {
    for (const CacheType type : {F16, Q8_0}) {
        Shape shape = latent(20, {{530, 3}, {0, 40}, {255, 2}}, 0);
        shape.k_type = type;
        const Problem dense = make_problem(shape, 330);
        const Result expected = run(dense, Way::Decode);
        for (const int32_t top_k : {533, 600}) {
            const Problem all = with_all(dense, top_k);
            for (const Way way : {Way::Decode, Way::Prefill})
                CHECK(same_bits(run(all, way).out, expected.out));
        }
    }
}

TEST_CASE("cuda chosen attention: a row's bits do not depend on the batch, grid, chunks or kind of launch") {
    for (const auto &[type, top_k] : {std::pair{F16, 30}, {Q4_0, 290}}) {
        CAPTURE(top_k);
        Shape shape = latent(2, {{0, 300}, {40, 2}}, top_k);
        shape.rope = rope_table(kernels::RopeTable::Pairs::Halves, 16);
        shape.k_type = type;
        check_every_way(shape, 340);
    }
    Shape blocks{attention(6, 2, 32, 24), {{300, 2}, {10, 1}, {110, 3}}, {}};
    blocks.top_k = 9, blocks.step.chosen_block = 40, blocks.step.chosen_lists = 2;
    for (const Shape &shape : {latent(17, {{300, 2}, {10, 1}, {700, 3}}, 100), blocks}) {
        CAPTURE(shape.step.chosen_block);
        const Problem p = make_problem(shape, 341);
        const Result together = run(p, Way::Decode);
        for (size_t s = 0, at = 0; s < 3; ++s) {
            const Result one = run(alone(p, s), Way::Prefill);
            CHECK(std::equal(one.out.begin(), one.out.end(),
                             together.out.begin() + static_cast<std::ptrdiff_t>(at)));
            at += one.out.size();
        }
    }
}

TEST_CASE("cuda chosen attention: only the chosen cells are read, once per tile") {
    if (!simt::emulated()) return testing::skip("only the emulator counts bytes");
    for (const CacheType type : {F16, FP8}) {
        Shape shape{attention(32, 1, 96, 64), {{510, 1}, {99, 2}}, {}};
        shape.latent = true, shape.top_k = 60;
        shape.k_type = type;
        const Problem p = make_problem(shape, 350);
        for (const Way way : {Way::Decode, Way::Prefill}) {
            const auto traffic = run(p, way).reports[1].traffic;
            CHECK(traffic.at("K cache").read == 3 * 60 * 2 * kernels::cache_row_bytes(type, 96));
            CHECK(traffic.at("chosen cells").read == 3 * 60 * 2 * sizeof(float));
        }
    }
    Shape shape{attention(32, 2, 64, 64), {{510, 1}, {99, 1}}, {}};
    shape.top_k = 4, shape.step.chosen_block = 16, shape.step.chosen_lists = 2;
    const Problem p = make_problem(shape, 351);
    // The token's own block ends with its cell: 15 and 4 of 16 cells.
    CHECK(run(p, Way::Decode).reports[1].traffic.at("K cache").read == 2 * (3 * 16 + 15 + 3 * 16 + 4) * 128);
}

TEST_CASE("cuda chosen attention: which tokens' splits run side by side") {
    AttentionParams p{};
    p.heads = 128, p.kv_heads = 1, p.chosen_count = 2048;
    p.side_by_side = wide_room(128, 1);
    const auto work = [&](int32_t tokens) {
        p.tokens = tokens;
        return chosen_work(p);
    };
    CHECK(work(1).side_by_side);
    CHECK(work(1).items == 8 * 8);
    CHECK(work(15).items == 15 * 8 * 8);
    CHECK(!work(16).side_by_side);  // fills the device
    CHECK(work(16).items == 16 * 8);
    p.side_by_side = 63;
    CHECK(!work(1).side_by_side);
}
