// F16 and BF16 weights (tiles.h, "halves") as operands of mma_f16_k16, without conversion.
#pragma once

#include "kernels/cuda/linear/tiles.h"
#include "kernels/cuda/runtime/device.h"

namespace runnel::kernels::cuda {

// The factor that undoes the scaling of a BF16 row (tiles.h), from the row's byte e: 2^(e - 142).
DEVICE float row_factor(uint32_t e) {
    return bits_float((e - 15) << 23);
}

// The bytes e of rows g and g + 8 of a tile, in one word; for F16 0, without a load.
template <TileFormat F>
DEVICE uint32_t row_exponents(const std::byte *tile) {
    if constexpr (F == TileFormat::BF16)
        return ldg32_stream(tile + 4 * (lane_index() >> 2));
    else
        return 0;
}

// A sum of products for row g + 8r, times the scales of its row and of its token's activations.
template <TileFormat F>
DEVICE float scaled_sum(float sum, uint32_t exponents, int r, float scale) {
    sum = sum * scale;
    return F == TileFormat::BF16 ? sum * row_factor(exponents >> 8 * r & 255u) : sum;
}

// The start of the 64 columns of `chunk` in a row tile.
template <TileFormat F>
DEVICE const std::byte *half_chunk(const std::byte *tile, int32_t chunk) {
    constexpr TileLayout kLayout = tile_layout(F);
    return tile + chunk / 4 * block_bytes(F) + kLayout.side + chunk % 4 * kLayout.chunk;
}

}  // namespace runnel::kernels::cuda
