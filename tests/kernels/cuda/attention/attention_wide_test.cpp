// Heads of more than 256 dimensions, and latent ones: the kernel of attention_wide.cu.
#include <doctest/doctest.h>

#include <cmath>
#include <tuple>
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

Shape latent(Shape shape) {
    shape.latent = true;
    return shape;
}

}  // namespace

TEST_CASE("cuda wide attention: results are right for latent layers and heads of 512, in every cache type") {
    uint64_t seed = 200;
    for (const CacheType type : runnel::testing::kGpuCacheTypes) {
        Shape mla = latent({attention(18, 1, 576, 512), {{70, 1}, {0, 2}}, {}});
        mla.k_type = type, mla.v_type = F16;
        check_shape(mla, seed++);
        Shape wide{attention(4, 2, 512, 512), {{65, 1}}, {}};
        wide.k_type = wide.v_type = type;
        check_shape(wide, seed++);
    }
    for (const auto &[k_type, v_type] : {std::pair{F16, Q4_0}, {Q4_0, BF16}, {Q8_0, FP8}}) {
        Shape wide{attention(1, 1, 264, 320), {{20, 2}}, {}};
        wide.k_type = k_type, wide.v_type = v_type;
        check_shape(wide, seed++);
    }
}

TEST_CASE("cuda wide attention: results are right for lengths around pages, steps and splits") {
    for (const int32_t past : {0, 31, 63, 64, 255, 256, 520}) {
        CAPTURE(past);
        check_shape(latent({attention(4, 1, 24, 16), {{past, 1}}, {}}), 230);
    }
    check_shape(latent({attention(20, 1, 40, 32), {{250, 9}, {0, 3}, {511, 2}}, {}}), 231);
    check_shape({attention(2, 1, 264, 8), {{250, 9}, {511, 2}}, {}}, 232);
}

TEST_CASE("cuda wide attention: results are right for random shapes with norm, RoPE and rotation") {
    using Pairs = kernels::RopeTable::Pairs;
    for (uint64_t seed = 240; seed < 250; ++seed) {
        CAPTURE(seed);
        testing::Random random(seed);
        const auto below = [&](uint64_t n) { return static_cast<int32_t>(random.below(n)); };
        const bool is_latent = random.below(3) > 0;
        const int32_t kv_heads = is_latent && random.below(2) ? 1 : 1 + below(2), group = 1 + below(20);
        const int32_t dim_k = is_latent ? 8 * (2 + below(12)) : 8 * (33 + below(8));
        const int32_t dim_v =
            is_latent ? 8 * (1 + below(static_cast<uint64_t>(dim_k / 8))) : 8 * (1 + below(20));
        Shape shape{attention(group * kv_heads, kv_heads, dim_k, dim_v),
                    {{below(600), 1 + below(4)}, {below(100), 1 + below(20)}},
                    {},
                    random.below(2) > 0,
                    random.below(2) > 0,
                    random.below(2) > 0};
        shape.latent = is_latent;
        shape.k_type = runnel::testing::kGpuCacheTypes[random.below(runnel::testing::kGpuCacheTypes.size())],
        shape.v_type = runnel::testing::kGpuCacheTypes[random.below(runnel::testing::kGpuCacheTypes.size())];
        if (random.below(2)) {
            shape.rope = rope_table(random.below(2) ? Pairs::Adjacent : Pairs::Halves, 8);
            shape.rope->first =
                is_latent ? dim_k - 8 : 8;  // the last dimensions, as in multi-head latent attention
        }
        shape.step.norm_after_rope = random.below(2) > 0;
        shape.step.softcap = random.below(2) ? 2.5f : 0;
        shape.slopes = random.below(3) == 0;
        if (random.below(2)) {
            shape.step.window = 1 + below(300);
            if (random.below(2))
                shape.step.window_kind = kernels::Attention::Window::Chunked;
            else if (random.below(2))
                shape.step.sink_cells = 1 + below(300);
        }
        CAPTURE(shape.latent);
        CAPTURE(shape.step.window);
        CAPTURE(shape.step.sink_cells);
        check_shape(shape, seed);
    }
}

TEST_CASE("cuda wide attention: a layer reads the keys and values that another layer appended") {
    for (const bool is_latent : {false, true}) {
        Shape shape{attention(4, 2, is_latent ? 48 : 272, 40), {{300, 3}, {10, 20}}, {}};
        shape.latent = is_latent;
        const Problem p = make_problem(shape, 260);
        const Result own = run(p, Way::Split);
        for (const Way way : {Way::Decode, Way::Prefill}) CHECK(same_bits(run(p, way, 3, &own).out, own.out));
    }
}

TEST_CASE("cuda wide attention: a row's bits do not depend on the batch, grid, chunks or kind of launch") {
    for (const auto &[type, sinks] : {std::pair{F16, 0}, {FP8, 270}}) {
        CAPTURE(static_cast<int>(type));
        Shape shape = latent({attention(2, 1, 40, 32),
                              {{0, 300}, {40, 2}},
                              rope_table(kernels::RopeTable::Pairs::Halves, 16)});
        shape.k_type = type;
        if (sinks > 0) shape.step.window = 50, shape.step.sink_cells = sinks;
        check_every_way(shape, 270);
    }
}

TEST_CASE("cuda wide attention: which splits run side by side and which in order") {
    AttentionParams p{};
    p.heads = 128, p.kv_heads = 1, p.dim_k = 576, p.dim_v = 512;
    const int32_t room = wide_room(128, 1);
    CHECK(room == 8 * 512);
    const auto work = [&](int32_t past, int32_t count) { return wide_work(p, {0, count, past}, room); };
    CHECK(work(131071, 1).side_by_side);  // one token with the largest number of cells side by side
    CHECK(work(131071, 1).items == room);
    CHECK(!work(131072, 1).side_by_side);
    CHECK(work(131072, 1).items == 8);
    CHECK(!work(255, 1).side_by_side);  // one split
    CHECK(work(256, 1).items == 16);
    CHECK(work(1000, 15).side_by_side);
    CHECK(!work(1000, 16).side_by_side);  // fills the device
    CHECK(!wide_work(p, {0, 1, 256}, 15).side_by_side);
    p.window = 300;
    CHECK(work(100000, 1).items == 2 * 8);
}

TEST_CASE("cuda wide attention: every K/V byte is read once per tile, of latent layers for both products") {
    if (!simt::emulated()) {
        runnel::testing::skip("only the emulator counts bytes");
        return;
    }
    for (const CacheType type : runnel::testing::kGpuCacheTypes) {
        CAPTURE(static_cast<int>(type));
        Shape mla = latent({attention(32, 1, 96, 64), {{510, 1}, {99, 1}}, {}});
        mla.k_type = type;
        const uint64_t cells = 511 + 100, row = kernels::cache_row_bytes(type, 96);
        // Scales are loaded once for every 16 bytes of values.
        const uint64_t units = type == Q8_0 ? 96 / 16 : type == Q4_0 ? 96 / 32 : 0;
        const uint64_t read = type == Q8_0 || type == Q4_0 ? row - 6 + 2 * units : row;
        const Problem p = make_problem(mla, 280);
        for (const Way way : {Way::Decode, Way::Prefill}) {
            const Result result = run(p, way);
            CHECK(result.reports[0].traffic.at("K cache").written == 2 * row);
            const auto &traffic = result.reports[1].traffic;
            CHECK(traffic.at("K cache").read == 2 * cells * read);  // two tiles
            CHECK(traffic.at("out").written == 2 * 32 * 64 * 4);
            const uint64_t scratch = way == Way::Decode ? 2 * 2 * 16 * (64 + 2) * 4 : 0;
            CHECK((traffic.contains("partial") ? traffic.at("partial").written : 0) == scratch);
        }
        Shape wide{attention(2, 1, 288, 64), {{200, 1}}, {}};
        wide.k_type = wide.v_type = type;
        const Result result = run(make_problem(wide, 281), Way::Decode);
        const auto &traffic = result.reports[1].traffic;
        const auto bytes = [&](int32_t dims) {
            const uint64_t scales = type == Q8_0 ? 2 : type == Q4_0 ? 1 : 0;  // loads of each
            return kernels::cache_row_bytes(type, dims) + (scales == 2 ? uint64_t(dims) / 16 : 0);
        };
        CHECK(traffic.at("K cache").read == 201 * bytes(288));
        CHECK(traffic.at("V cache").read == 201 * bytes(64));
    }
}
