// The functions of kernels/cpu/amx_tiles.h in plain C++, from Intel's description of the instructions, for machines
// without AMX. Products of shapes that do not fit each other end the program.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/amx_shapes.h"

namespace runnel::kernels::cpu {
namespace {

struct EmulatedTile {
    int rows, row_bytes;
    uint8_t bytes[16][64];
};
inline thread_local EmulatedTile emulated_tiles[8];

inline void use_tiles(const TileShapes &shapes) {
    for (int i = 0; i < 8; ++i) emulated_tiles[i] = {shapes.rows[i], shapes.row_bytes[i], {}};
}
inline void release_tiles() {
    std::memset(emulated_tiles, 0, sizeof emulated_tiles);
}
template <int tile>
EmulatedTile &configured_tile() {
    if (emulated_tiles[tile].rows == 0) std::abort();
    return emulated_tiles[tile];
}
template <int tile>
void zero_tile() {
    std::memset(configured_tile<tile>().bytes, 0, sizeof emulated_tiles[tile].bytes);
}
template <int tile>
void load_tile(const void *p, int64_t stride) {
    EmulatedTile &t = configured_tile<tile>();
    std::memset(t.bytes, 0, sizeof t.bytes);
    for (int row = 0; row < t.rows; ++row)
        std::memcpy(t.bytes[row], static_cast<const std::byte *>(p) + row * stride,
                    static_cast<size_t>(t.row_bytes));
}
template <int tile>
void store_tile(void *p, int64_t stride) {
    const EmulatedTile &t = configured_tile<tile>();
    for (int row = 0; row < t.rows; ++row)
        std::memcpy(static_cast<std::byte *>(p) + row * stride, t.bytes[row],
                    static_cast<size_t>(t.row_bytes));
}
template <int sums, int a, int b, typename Byte>
void dot_emulated() {
    EmulatedTile &to = configured_tile<sums>();
    const EmulatedTile &x = configured_tile<a>(), &w = configured_tile<b>();
    if (x.rows != to.rows || x.row_bytes != 4 * w.rows || w.row_bytes != to.row_bytes) std::abort();
    for (int row = 0; row < to.rows; ++row)
        for (int lane = 0; lane < to.row_bytes / 4; ++lane) {
            int32_t sum;
            std::memcpy(&sum, to.bytes[row] + 4 * lane, sizeof sum);
            for (int k = 0; k < x.row_bytes; ++k)
                sum += static_cast<int8_t>(x.bytes[row][k]) *
                       static_cast<Byte>(w.bytes[k / 4][4 * lane + k % 4]);
            std::memcpy(to.bytes[row] + 4 * lane, &sum, sizeof sum);
        }
}
template <int sums, int a, int b>
void dot_tiles() {
    dot_emulated<sums, a, b, int8_t>();
}
template <int sums, int a, int b>
void dot_tiles_unsigned() {
    dot_emulated<sums, a, b, uint8_t>();
}

}  // namespace
}  // namespace runnel::kernels::cpu
