#include "kernels/cpu/linear_lookup.h"

#include <algorithm>
#include <cstring>

#include "gguf/block.h"
#include "kernels/cpu/lookup_sums.h"

namespace runnel::kernels::cpu {
namespace {

using Bytes = uint8_t __attribute__((vector_size(16)));

// One of four steps that turn [row][column] into [column][row]: after them, vector c has byte c of every row.
void interleave(Bytes (&v)[16]) {
    Bytes out[16];
    for (int i = 0; i < 8; ++i) {
        out[2 * i] =
            __builtin_shufflevector(v[i], v[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        out[2 * i + 1] = __builtin_shufflevector(v[i], v[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29,
                                                 14, 30, 15, 31);
    }
    std::copy_n(out, 16, v);
}

}  // namespace

void write_one_bit_tiles(const std::byte *weights, int64_t cols, int64_t row0, int64_t row1,
                         std::byte *tiles) {
    using Block = gguf::BlockQ1_0;
    const int64_t blocks = cols / OneBitTile::kCols;
    for (int64_t first = row0; first < row1; first += OneBitTile::kRows)
        for (int64_t b = 0; b < blocks; ++b) {
            OneBitTile tile = {};
            Bytes v[16] = {};
            for (int64_t r = 0; r < std::min(OneBitTile::kRows, row1 - first); ++r) {
                Block block;
                std::memcpy(&block, weights + ((first + r) * blocks + b) * int64_t{sizeof block},
                            sizeof block);
                std::memcpy(&v[r], block.qs, sizeof v[r]);
                std::memcpy(&tile.d[r], &block.d, sizeof block.d);
            }
            for (int step = 0; step < 4; ++step) interleave(v);
            for (int c = 0; c < 16; ++c) std::memcpy(tile.bits[c % 4][c / 4], &v[c], sizeof v[c]);
            std::memcpy(tiles + (first / OneBitTile::kRows * blocks + b) * int64_t{sizeof tile}, &tile,
                        sizeof tile);
        }
}

size_t lookup_sums_bytes(int64_t cols, int32_t tokens) {
    return static_cast<size_t>(cols / OneBitTile::kCols * tokens) * sizeof(LookupSums);
}

}  // namespace runnel::kernels::cpu
