// The values that the weights of an encoded block can take while the block's scales stay as they are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "gguf/block.h"

namespace runnel::gguf {

struct BlockGrid {
    std::span<const int8_t> levels;  // ascending, the same for all weights
    // Of the first block_size weights.
    std::array<float, kSuperBlock> step, offset;

    // Exactly the value that dequantize_row computes.
    float value(size_t weight, size_t level) const {
        return step[weight] * static_cast<float>(levels[level]) + offset[weight];
    }
    // The index of the level whose value is nearest to x; of equally near ones, either.
    size_t nearest(size_t weight, float x) const;
};

// Whether the type has blocks whose weights are rounded one by one: Q4_0 to Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS.
bool has_grid(Type type) noexcept;

// Preconditions of both: has_grid(type). `block`: block_bytes.
BlockGrid grid_of(Type type, const std::byte *block);
// Replaces the weights of the block, keeps its scales. `levels`: block_size indices into BlockGrid::levels.
void set_levels(Type type, std::span<const uint8_t> levels, std::byte *block);

}  // namespace runnel::gguf
