#include "kernels/cuda/linear/tiles.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "gguf/quantize.h"
#include "tests/kernels/cpu/random_blocks.h"
#include "tests/kernels/cuda/linear/tile_reader.h"

using namespace runnel;
using namespace runnel::kernels::cuda;

namespace {

constexpr TileFormat kAllFormats[] = {
    TileFormat::F32,    TileFormat::F16,     TileFormat::BF16,  TileFormat::Q4_0,    TileFormat::Q4_1,
    TileFormat::Q5_0,   TileFormat::Q5_1,    TileFormat::Q8_0,  TileFormat::IQ4_NL,  TileFormat::MXFP4,
    TileFormat::Q2_K,   TileFormat::Q3_K,    TileFormat::Q4_K,  TileFormat::Q5_K,    TileFormat::Q6_K,
    TileFormat::IQ4_XS, TileFormat::NVFP4,   TileFormat::IQ1,   TileFormat::IQ2_XXS, TileFormat::IQ2_XS,
    TileFormat::IQ2_S,  TileFormat::IQ3_XXS, TileFormat::IQ3_S,
};

}  // namespace

TEST_CASE("cuda tiles: planes are aligned, and no larger than the weights in the file") {
    for (const TileFormat format : kAllFormats) {
        CAPTURE(static_cast<int>(format));
        const TileLayout layout = tile_layout(format);
        CHECK(layout.high % 16 == 0);
        CHECK(layout.signs % 16 == 0);
        CHECK(layout.side % 16 == 0);
        CHECK(layout.chunk % 16 == 0);
    }
    for (const gguf::Type type : tests::kLinearTypes) {
        CAPTURE(gguf::traits(type).name);
        REQUIRE(has_tiles(type));
        const auto raw = static_cast<int64_t>(16 * gguf::row_bytes(type, 256));
        // Types that become another format, and those that store all signs.
        constexpr std::pair<gguf::Type, int64_t> kRicher[] = {
            {gguf::Type::TQ1_0, 84},    {gguf::Type::TQ2_0, 84},         {gguf::Type::IQ1_S, 58},
            {gguf::Type::IQ1_M, 58},    {gguf::Type::IQ2_XXS, 70},       {gguf::Type::IQ2_XS, 78},
            {gguf::Type::IQ3_XXS, 102}, {gguf::Type::BF16, 2 * 256 + 2}, {gguf::Type::Q1_0, 144},
            {gguf::Type::Q2_0, 144},    {gguf::Type::PQ2_0, 144},        {gguf::Type::PTQ1_0, 144},
        };
        int64_t expected = raw;
        for (const auto &[richer, bytes] : kRicher)
            if (type == richer) expected = 16 * bytes;
        CHECK(block_bytes(tile_format(type)) == expected);
    }
    CHECK(!has_tiles(gguf::Type::I32));
}

TEST_CASE("cuda tiles: every weight reads back to the bit, and padding is zero") {
    for (const gguf::Type type : tests::kLinearTypes) {
        const uint32_t seed = 1000 + static_cast<uint32_t>(type);
        std::mt19937 random(seed);
        const bool super = gguf::traits(type).block_size == 256;
        const std::vector<int64_t> widths =
            super                                  ? std::vector<int64_t>{256, 768}
            : gguf::traits(type).block_size == 128 ? std::vector<int64_t>{128, 256, 896}
            : gguf::traits(type).block_size == 64  ? std::vector<int64_t>{64, 256, 832}
            : gguf::traits(type).quantized         ? std::vector<int64_t>{32, 64, 288, 512, 896}
                                                   : std::vector<int64_t>{1, 40, 64, 256, 300};
        for (const int64_t cols : widths)
            for (const int64_t rows : {1, 16, 23}) {
                CAPTURE(gguf::traits(type).name);
                CAPTURE(seed);
                CAPTURE(rows);
                CAPTURE(cols);
                const auto raw = tests::random_weights(type, rows, cols, random);
                const auto tiles = tests::tiles_of(type, raw, rows, cols);
                REQUIRE(static_cast<int64_t>(tiles.size() * 4) == tiled_bytes(tile_format(type), rows, cols));
                const tests::TileReader reader(tile_format(type), tiles, cols);
                std::vector<float> expected(static_cast<size_t>(rows * cols));
                gguf::dequantize_row(type, raw.data(), expected.data(), rows * cols);
                size_t wrong = 0;
                for (int64_t r = 0; r < row_tiles(rows) * 16; ++r)
                    for (int64_t c = 0; c < col_chunks(cols) * 64; ++c) {
                        const float value = reader.value(r, c);
                        const bool inside = r < rows && c < cols;
                        // -0 and 0 are the same weight: formats with minimums subtract 0, the others do not.
                        wrong += value != (inside ? expected[static_cast<size_t>(r * cols + c)] : 0.0f);
                    }
                CHECK(wrong == 0);
            }
    }
}
