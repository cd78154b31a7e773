// `bench --attention`: counts of small cases by hand, the compared shapes, and a measurement of a tiny program.
#include "engine/measure/attention_cost.h"

#include <doctest/doctest.h>

#include "engine/measure/planner.h"
#include "tests/support/cache_types.h"

namespace runnel::measure {
namespace {

using kernels::CacheType;

TEST_CASE("attention cost: scores, operations and bytes of small passes, counted by hand") {
    // 4 query heads of 16 values over 2 K/V heads in f16.
    const AttentionShape shape{4, 2, 16, 16};
    AttentionPass decode{.shape = shape, .depth = 9};
    CHECK(decode.scores() == 4 * 10);                   // the token sees 9 others and itself
    CHECK(decode.operations() == 4 * 10 * 2 * 32);      // a score and a weighted value: 16 + 16 multiply-adds
    CHECK(decode.cache_bytes() == 10 * 2 * (32 + 32));  // 10 cells of 2 heads
    CHECK(decode.row_bytes() == 4 * 4 * (16 + 16));
    CHECK(decode.matrix_bytes() == 0);
    decode.fused = false;
    CHECK(decode.matrix_bytes() == 40 * 16);  // 4 bytes, written twice and read twice
    CHECK(decode.bytes() == 1280 + 512 + 640);

    // 3 tokens after 5 with a window of 4: each sees 4 cells, together the last 6 of 8.
    const AttentionPass window{.shape = shape, .depth = 5, .tokens = 3, .window = 4};
    CHECK(window.scores() == 4 * 12);
    CHECK(window.cache_bytes() == 6 * 2 * 64);
    CHECK(window.row_bytes() == 3 * 512);
    // Without: 6, 7 and 8 cells.
    const AttentionPass full{.shape = shape, .depth = 5, .tokens = 3};
    CHECK(full.scores() == 4 * 21);
    CHECK(full.cache_bytes() == 8 * 2 * 64);

    // Keys of q8_0: 16 values are padded to a block of 34 bytes. One latent vector has no values of its own.
    AttentionShape other = shape;
    other.types.k = CacheType::Q8_0;
    CHECK(AttentionPass{.shape = other, .depth = 9}.cache_bytes() == 10 * 2 * (34 + 32));
    other = {8, 1, 40, 32, true};
    CHECK(AttentionPass{.shape = other, .depth = 9}.cache_bytes() == 10 * 80);
}

TEST_CASE("attention cost: the model's shape is always one of the compared ones") {
    for (const int32_t heads : {1, 2, 3, 6, 8, 14, 32, 71})
        for (int32_t kv_heads = 1; kv_heads <= heads; ++kv_heads) {
            if (heads % kv_heads != 0) continue;
            CAPTURE(heads);
            CAPTURE(kv_heads);
            const auto all = compared_shapes({heads, kv_heads, 16, 16});
            int found = 0, before = heads + 1;
            for (const NamedShape &one : all) {
                found += one.shape.kv_heads == kv_heads;
                CHECK(heads % one.shape.kv_heads == 0);
                CHECK(one.shape.kv_heads < before);  // descending
                before = one.shape.kv_heads;
            }
            CHECK(found == 1);
        }
    CHECK(compared_shapes({8, 1, 40, 32, true}).size() == 1);
}

TEST_CASE("attention cost: fused and unfused results are equal within rounding, for every cache type") {
    const kernels::Program program =
        program_of(parse_shape("layers=3,width=96,heads=6,kv-heads=2,ff=64,vocab=32"));
    const decode::StopRequest stop;
    for (const CacheType type : runnel::testing::kCacheTypes)
        for (const int threads : {1, 3}) {
            AttentionCostOptions how;
            how.depths = {40, 600};
            how.window = 33, how.chunk = 21, how.repetitions = 1, how.threads = threads,
            how.types = {type, type};
            const AttentionCosts costs = measure_attention(program, how, stop);
            CHECK(costs.layers == 3);
            CHECK(costs.window == 33);
            CHECK(!costs.own_window);
            CHECK(costs.largest_difference < 1e-4);
            CHECK(costs.largest_difference > 0);  // they were compared, and the sums differ in order
            // Per depth: 3 numbers of K/V heads, and of the model's own 5 more passes.
            CHECK(costs.times.size() == 2 * (3 + 5));
            for (const AttentionTime &one : costs.times) CHECK(one.seconds > 0);
            for (const int64_t depth : how.depths)
                for (const int64_t tokens : {1, 21})
                    for (const int32_t window : {0, 33})
                        CHECK(costs.find(depth, tokens, 2, window, true) != nullptr);
        }
    CHECK_THROWS_AS(measure_attention(kernels::Program{}, {.depths = {4}, .show = {}}, stop),
                    std::invalid_argument);
}

}  // namespace
}  // namespace runnel::measure
