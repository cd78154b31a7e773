#include "kernels/cuda/attention/attention.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "tests/kernels/cuda/attention/attention_problem.h"
#include "tests/simt/turing.h"
#include "tests/support/cache_types.h"
#include "tests/support/skip.h"

using namespace runnel;
using namespace runnel::tests;

TEST_CASE("cuda attention: results are right for lengths around pages, steps and splits") {
    for (const int32_t past : {0, 1, 31, 63, 64, 255, 256, 257, 700}) {
        CAPTURE(past);
        check_shape({attention(4, 2, 32, 32), {{past, 1}}, {}}, 1);
    }
    check_shape({attention(4, 2, 32, 32), {{250, 9}, {0, 3}, {511, 2}}, {}}, 2);
}

TEST_CASE("cuda attention: results are right for all head sizes, groups and cache types") {
    using enum CacheType;
    const std::pair<CacheType, CacheType> same[] = {{F16, F16}, {BF16, BF16}, {Q8_0, Q8_0},    {Q4_0, Q4_0},
                                                    {FP8, FP8}, {Q5_1, Q5_1}, {IQ4_NL, IQ4_NL}};
    const std::pair<CacheType, CacheType> mixed[] = {{BF16, F16}, {F16, Q4_0},  {Q4_0, BF16},
                                                     {Q8_0, FP8}, {Q5_0, Q4_1}, {Q4_1, Q5_0}};
    uint64_t seed = 10;
    const auto check = [&](std::pair<CacheType, CacheType> types, int32_t dim_k, int32_t dim_v) {
        const int32_t group = std::vector{1, 5, 7, 14, 3, 8, 2}[seed % 7];
        Shape shape{attention(group, 1, dim_k, dim_v), {{70, 2}, {270, 1}}, {}};
        std::tie(shape.k_type, shape.v_type) = types;
        check_shape(shape, seed++);
    };
    for (const auto &types : same)
        for (const auto &[dim_k, dim_v] :
             {std::pair{16, 16}, {40, 24}, {64, 64}, {72, 80}, {128, 128}, {192, 128}, {256, 256}})
            check(types, dim_k, dim_v);
    for (const auto &types : mixed)
        for (const auto &[dim_k, dim_v] : {std::pair{40, 24}, {96, 128}, {136, 256}})
            check(types, dim_k, dim_v);
}

TEST_CASE("cuda attention: packed keys and values are right after norm, RoPE and rotation") {
    using enum CacheType;
    uint64_t seed = 80;
    for (const auto &[k_type, v_type] :
         {std::pair{Q8_0, Q8_0}, {Q4_0, Q4_0}, {FP8, Q8_0}, {F16, Q4_0}, {Q5_1, IQ4_NL}, {IQ4_NL, Q5_0}}) {
        Shape shape{attention(6, 2, 64, 64),
                    {{310, 2}, {0, 20}, {64, 1}},
                    rope_table(kernels::RopeTable::Pairs::Halves, 32),
                    true,
                    true,
                    true,
                    k_type,
                    v_type};
        shape.step.window = 70;
        shape.step.softcap = 3;
        shape.step.norm_after_rope = seed % 2 == 0;
        check_shape(shape, seed++);
    }
}

TEST_CASE("cuda attention: values that are not finite are preserved in a packed cache") {
    for (const CacheType type : runnel::testing::kGpuCacheTypes.subspan<2>()) {
        Shape shape{attention(2, 2, 32, 32), {{3, 1}}, {}};
        shape.k_type = shape.v_type = type;
        Problem p = make_problem(shape, 7);
        p.v[5] = std::numeric_limits<float>::infinity();
        for (const Way way : {Way::Decode, Way::Prefill}) {
            const Result result = run(p, way);
            CHECK(std::isnan(result.out[5]));
            CHECK(std::isfinite(result.out[32 + 5]));  // the other head
        }
    }
}

TEST_CASE("cuda attention: head norm, RoPE and temperature are applied") {
    using Pairs = kernels::RopeTable::Pairs;
    for (const Pairs pairs : {Pairs::Adjacent, Pairs::Halves})
        for (const bool after : {false, true}) {
            Shape shape{
                attention(4, 1, 64, 64), {{100, 3}, {0, 2}}, rope_table(pairs, 64), true, false, true};
            shape.step.norm_after_rope = after;
            shape.first_position = 99000;
            check_shape(shape, 30 + static_cast<uint64_t>(after));
            shape.rope = rope_table(pairs, 32);
            shape.rope->first = 16;
            shape.rope->magnitude = 1.25f;
            shape.head_norm = false;
            check_shape(shape, 32);
        }
}

TEST_CASE("cuda attention: windows, soft-cap and sinks are applied") {
    for (const int32_t window : {1, 40, 64, 300})
        for (const auto kind : {kernels::Attention::Window::Sliding, kernels::Attention::Window::Chunked}) {
            Shape shape{attention(4, 2, 32, 32), {{600, 4}, {20, 2}, {299, 20}}, {}, false, true};
            shape.step.window = window;
            shape.step.window_kind = kind;
            shape.step.softcap = window == 40 ? 2.0f : 0.0f;
            CAPTURE(window);
            check_shape(shape, 40);
        }
}

TEST_CASE("cuda attention: scores have biases by distance") {
    uint64_t seed = 170;
    for (const auto &[window, sinks] : {std::pair{0, 0}, {70, 0}, {40, 4}, {20, 300}}) {
        Shape shape{attention(6, 2, 40, 32), {{600, 1}, {2, 2}, {299, 18}, {0, 70}}, {}};
        shape.slopes = true, shape.sinks = sinks == 4;
        shape.step.window = window, shape.step.sink_cells = sinks;
        shape.k_type = shape.v_type = window == 70 ? CacheType::Q8_0 : CacheType::F16;
        CAPTURE(window);
        check_shape(shape, seed++);
    }
}

TEST_CASE("cuda attention: sink cells are visible to every row, as if before the window") {
    uint64_t seed = 70;
    for (const auto &[window, sinks] : {std::pair{40, 4}, {20, 300}, {5, 64}})
        for (const CacheType type : {CacheType::F16, CacheType::Q8_0}) {
            Shape shape{attention(4, 2, 32, 32),
                        {{600, 1}, {2, 2}, {299, 18}, {0, 70}},
                        rope_table(kernels::RopeTable::Pairs::Adjacent, 32),
                        true,
                        sinks == 4};
            shape.step.window = window;
            shape.step.sink_cells = sinks;
            shape.k_type = shape.v_type = type;
            CAPTURE(window);
            check_shape(shape, seed++);
        }
}

TEST_CASE("cuda attention: a layer reads the keys and values that another layer appended") {
    Shape shape{attention(4, 2, 64, 64), {{300, 3}, {10, 70}}, {}};
    const Problem p = make_problem(shape, 90);
    const Result own = run(p, Way::Split);
    for (const Way way : {Way::Decode, Way::Prefill, Way::Split})
        CHECK(same_bits(run(p, way, 3, &own).out, own.out));
}

TEST_CASE(
    "cuda attention: a row's bits do not depend on the batch, the grid, the chunks or the order of blocks") {
    using enum CacheType;
    for (const auto &[k_type, v_type, sinks] : {std::tuple{F16, F16, 0}, {Q5_1, Q4_0, 0}, {FP8, F16, 270}}) {
        CAPTURE(static_cast<int>(k_type));
        CAPTURE(sinks);
        const bool plain = k_type == F16 && sinks == 0;
        Shape shape{plain ? attention(6, 2, 64, 64) : attention(2, 1, 32, 32),
                    {{0, 300}, {40, 2}},
                    rope_table(kernels::RopeTable::Pairs::Halves, 32)};
        shape.k_type = k_type, shape.v_type = v_type;
        if (sinks > 0) shape.step.window = 50, shape.step.sink_cells = sinks;
        check_every_way(shape, 50);
    }
}

TEST_CASE("cuda attention: decode reads every K/V byte once") {
    if (!simt::emulated()) {
        runnel::testing::skip("only the emulator counts bytes");
        return;
    }
    using enum CacheType;
    for (const CacheType type : runnel::testing::kGpuCacheTypes) {
        CAPTURE(static_cast<int>(type));
        Shape shape{attention(8, 2, 64, 64), {{511, 1}, {100, 1}}, {}};
        shape.k_type = shape.v_type = type;
        const Problem p = make_problem(shape, 60);
        const Result result = run(p, Way::Decode);
        const auto &traffic = result.reports[0].traffic;
        const uint64_t cells = 511 + 100, bytes = 2 * kernels::cache_row_bytes(type, 64);
        CHECK(traffic.at("K cache").read == cells * bytes);
        CHECK(traffic.at("V cache").read == cells * bytes);
        CHECK(traffic.at("K cache").written == 2 * bytes);
        CHECK(traffic.at("V cache").written == 2 * bytes);
        CHECK(traffic.at("out").written == 2 * 8 * 64 * 4);
        CHECK(traffic.at("partial").written == 2 * 2 * 16 * (64 + 2) * 4);  // the long sequence's two splits
    }
    // A window with sink cells: the runs of both are read.
    Shape shape{attention(8, 2, 64, 64), {{5000, 1}}, {}};
    shape.step.window = 100, shape.step.sink_cells = 4;
    const auto reports = run(make_problem(shape, 61), Way::Decode).reports;
    CHECK(reports[0].traffic.at("K cache").read == (99 + 4) * 2 * 64 * 2);
}

// The emulator sums products of f16 in one order on all devices, so the versions for sm_75, which load
// differently and need less shared memory, must give the same bits.
TEST_CASE("cuda attention: sm_75 gives the same bits with 64 KB of shared memory") {
    using enum CacheType;
    uint64_t seed = 100;
    for (const auto &[k_type, v_type, dim_k, dim_v] : {std::tuple{F16, F16, 128, 128},
                                                       {F16, F16, 136, 256},
                                                       {BF16, BF16, 72, 80},
                                                       {BF16, BF16, 136, 256},
                                                       {Q8_0, Q8_0, 256, 128},
                                                       {Q4_0, FP8, 40, 24},
                                                       {Q5_1, IQ4_NL, 40, 24},
                                                       {Q4_1, Q5_0, 136, 256},
                                                       {F16, Q4_0, 72, 80},
                                                       {Q4_0, Q4_0, 128, 256}}) {
        Shape shape{attention(5, 1, dim_k, dim_v), {{30, 2}, {270, 1}, {0, 14}}, {}};
        shape.k_type = k_type, shape.v_type = v_type;
        if (dim_k == 72) shape.step.window = 90, shape.step.sink_cells = 5;
        CAPTURE(seed);
        CAPTURE(dim_k);
        CAPTURE(static_cast<int>(k_type));
        CAPTURE(static_cast<int>(v_type));
        const Problem p = make_problem(shape, seed++);
        const Result elsewhere = run(p, Way::Decode);
        const simt::Turing turing;
        const Result decode = run(p, Way::Decode), prefill = run(p, Way::Prefill);
        CHECK(same_bits(decode.out, prefill.out));
        CHECK(same_bits(decode.k_cache, elsewhere.k_cache));
        CHECK(same_bits(prefill.v_cache, elsewhere.v_cache));
        if (k_type == BF16 && simt::emulated())
            check_close(p, decode);
        else
            CHECK(same_bits(decode.out, elsewhere.out));
    }
}
