// Encodes one block of each searched format exactly as llama.cpp's quantizers do, byte for byte (x86-64).
// Internal to gguf/; quantize.h states the guarantee. encode.h has the formats without a search.
#pragma once

#include <cstddef>
#include <span>

#include "gguf/block.h"
#include "gguf/codebook.h"

namespace runnel::gguf {

// `x`: the values of a block. `importance`: the weight of each column of the block, or empty.
// `row_mean_square`: mean of x^2 over the whole row, used only with importance.
void standard_encode(std::span<const float> x, std::span<const float> importance, float row_mean_square,
                     BlockQ4_0 &block);
void standard_encode(std::span<const float> x, std::span<const float> importance, float row_mean_square,
                     BlockQ4_1 &block);
void standard_encode(std::span<const float> x, std::span<const float> importance, float row_mean_square,
                     BlockQ5_0 &block);
void standard_encode(std::span<const float> x, std::span<const float> importance, float row_mean_square,
                     BlockQ5_1 &block);

// Up to kEncodeBatch blocks at a time: `x` and `importance` have 256 values for each.
inline constexpr size_t kEncodeBatch = 16;
void standard_encode(std::span<const float> x, std::span<const float> importance,
                     std::span<BlockQ2_K> blocks);
void standard_encode(std::span<const float> x, std::span<const float> importance,
                     std::span<BlockQ3_K> blocks);
void standard_encode(std::span<const float> x, std::span<const float> importance,
                     std::span<BlockQ4_K> blocks);
void standard_encode(std::span<const float> x, std::span<const float> importance,
                     std::span<BlockQ5_K> blocks);
void standard_encode(std::span<const float> x, std::span<const float> importance,
                     std::span<BlockQ6_K> blocks);

void standard_encode(std::span<const float> x, std::span<const float> importance, BlockIQ4_NL &block);
void standard_encode(std::span<const float> x, std::span<const float> importance, BlockIQ4_XS &block);

// standard_encode_codebook.cpp. IQ2_XXS and IQ2_XS have no search without importance.
void standard_encode(std::span<const float> x, std::span<const float> importance, BlockIQ2_XXS &block);
void standard_encode(std::span<const float> x, std::span<const float> importance, BlockIQ2_XS &block);
void standard_encode(std::span<const float> x, std::span<const float> importance, BlockIQ2_S &block);
void standard_encode(std::span<const float> x, std::span<const float> importance, BlockIQ3_XXS &block);
void standard_encode(std::span<const float> x, std::span<const float> importance, BlockIQ3_S &block);

// standard_encode_ternary.cpp. IQ1_S has no search without importance.
void standard_encode(std::span<const float> x, std::span<const float> importance, BlockIQ1_S &block);
void standard_encode(std::span<const float> x, std::span<const float> importance, BlockIQ1_M &block);

}  // namespace runnel::gguf
