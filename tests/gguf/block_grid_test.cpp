// The levels of blocks with fixed scales.
#include "gguf/block_grid.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gguf/quantize.h"
#include "tests/gguf/sample_weights.h"
#include "tests/support/random.h"

using namespace runnel;
using namespace runnel::gguf;
using namespace runnel::testing;

namespace {

constexpr Type kTypes[] = {Type::Q4_0, Type::Q4_1, Type::Q5_0, Type::Q5_1, Type::Q8_0,   Type::Q2_K,
                           Type::Q3_K, Type::Q4_K, Type::Q5_K, Type::Q6_K, Type::IQ4_NL, Type::IQ4_XS};

}  // namespace

TEST_CASE("block grid: levels that are set are the values that the block then has, and its scales stay") {
    const std::vector<float> weights = sample_weights();
    Random random(7);
    for (const Type type : kTypes) {
        CAPTURE(traits(type).name);
        REQUIRE(has_grid(type));
        const size_t size = traits(type).block_size, bytes = traits(type).block_bytes;
        std::vector<std::byte> blocks(row_bytes(type, static_cast<int64_t>(weights.size())));
        quantize_standard(type, weights, static_cast<int64_t>(weights.size()), {}, blocks.data());
        for (size_t b = 0; b < weights.size() / size; ++b) {
            std::byte *const block = blocks.data() + b * bytes;
            std::vector<float> decoded(size);
            dequantize_row(type, block, decoded.data(), static_cast<int64_t>(size));
            const BlockGrid grid = grid_of(type, block);
            std::vector<uint8_t> levels(size);
            for (size_t i = 0; i < size; ++i) {
                // What the encoder chose is one of the levels.
                REQUIRE(grid.value(i, grid.nearest(i, decoded[i])) == decoded[i]);
                levels[i] = static_cast<uint8_t>(random.below(grid.levels.size()));
            }
            set_levels(type, levels, block);
            dequantize_row(type, block, decoded.data(), static_cast<int64_t>(size));
            const BlockGrid after = grid_of(type, block);
            for (size_t i = 0; i < size; ++i) {
                REQUIRE(grid.value(i, levels[i]) == decoded[i]);
                REQUIRE(after.value(i, levels[i]) == decoded[i]);
            }
        }
    }
    for (const Type type : {Type::F16, Type::IQ2_XXS, Type::IQ3_S, Type::MXFP4, Type::TQ1_0})
        CHECK_FALSE(has_grid(type));
}

TEST_CASE("block grid: no level is nearer than the nearest") {
    const std::vector<float> weights = sample_weights();
    Random random(8);
    for (const Type type : kTypes) {
        CAPTURE(traits(type).name);
        const size_t size = traits(type).block_size;
        std::vector<std::byte> block(traits(type).block_bytes);
        for (size_t at = 0; at < weights.size(); at += 256) {
            quantize_standard(type, std::span(weights).subspan(at, size), static_cast<int64_t>(size), {},
                              block.data());
            const BlockGrid grid = grid_of(type, block.data());
            for (size_t i = 0; i < size; ++i) {
                const float x = 2 * weights[at + random.below(size)];
                const auto distance = [&](size_t level) { return std::fabs(x - grid.value(i, level)); };
                float least = distance(0);
                for (size_t q = 1; q < grid.levels.size(); ++q) least = std::min(least, distance(q));
                REQUIRE(distance(grid.nearest(i, x)) <= least + 1e-5f * std::fabs(x));
            }
        }
        const BlockGrid grid = grid_of(type, block.data());
        for (const float x : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()})
            CHECK(grid.nearest(0, x) < grid.levels.size());
    }
}
