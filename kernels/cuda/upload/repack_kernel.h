// Fills tiles (tiles.h) from rows in the layout of the file, on the device.
#pragma once

#include "kernels/cuda/runtime/kernel.h"
#include "kernels/cuda/upload/repack.h"

namespace runnel::kernels::cuda {

// raw.bytes: the rows of whole row tiles (raw.rows of them; the last tile may be partial), in device memory.
// tiles: the destination of the first of these row tiles. Any grid.
struct RepackParams {
    RawRows raw;
    uint32_t *tiles;
};
Kernel<RepackParams> repack_kernel();

// For BF16, before the repack: row_exponent() of every row, one warp per row. Any grid.
struct RowExponentsParams {
    RawRows raw;
    uint8_t *exponents;
};
Kernel<RowExponentsParams> row_exponents_kernel();

}  // namespace runnel::kernels::cuda
