// The shapes of AMX's tiles, as `ldtilecfg` reads them.
#pragma once

#include <cstdint>

namespace runnel::kernels::cpu {
namespace {

// Tiles 0-3 hold sums, 4 and 5 activations, 6 and 7 weights.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    // first, second: tokens of tiles 0, 1, 4 and of tiles 2, 3, 5 (0: those are not used). columns: of a dot product.
    TileShapes(int first, int second, int columns) {
        for (int i = 0; i < 8; ++i) {
            const bool weights = i >= 6, sums = i < 4;
            const int tokens = i < 2 || i == 4 ? first : second;
            if (tokens == 0 && !weights) continue;
            row_bytes[i] = static_cast<uint16_t>(weights || sums ? 64 : columns);
            rows[i] = static_cast<uint8_t>(weights ? columns / 4 : tokens);
        }
    }
};
static_assert(sizeof(TileShapes) == 64);

}  // namespace
}  // namespace runnel::kernels::cpu
