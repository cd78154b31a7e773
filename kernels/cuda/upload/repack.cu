// Tiles from rows: every thread computes one word of the result at a time (repack.h). Neighboring threads compute
// neighboring words, so writes are coalesced; the reads are single bytes that a warp shares through L1.
// Bytes: each byte of the weights is read once from memory and written once.
#include "kernels/cuda/upload/repack_kernel.h"

#include "kernels/cuda/runtime/device.h"

namespace runnel::kernels::cuda {

namespace {

struct Repack {
    using Params = RepackParams;
    static constexpr const char *kName = "repack";
    static constexpr int kThreads = 256, kBlocks = 4;

    static DEVICE void run(const Params &p) {
        const int64_t words = row_tile_bytes(tile_format(p.raw.type), p.raw.cols) / 4;
        const int64_t all = row_tiles(p.raw.rows) * words, step = int64_t{block_count()} * block_threads();
        for (int64_t i = int64_t{block_index()} * block_threads() + thread_index(); i < all; i += step)
            p.tiles[i] = tile_word(p.raw, i / words, i % words);
    }
};

struct RowExponents {
    using Params = RowExponentsParams;
    static constexpr const char *kName = "row_exponents";
    static constexpr int kThreads = 256, kBlocks = 4, kWarps = kThreads / 32;

    static DEVICE void run(const Params &p) {
        for (int64_t row = int64_t{block_index()} * kWarps + warp_index(); row < p.raw.rows;
             row += int64_t{block_count()} * kWarps) {
            uint32_t largest = repack::largest_exponent(p.raw, row, lane_index(), 32);
#pragma unroll
            for (int mask = 16; mask > 0; mask /= 2) {
                const uint32_t other = shfl_xor(largest, mask);
                largest = other > largest ? other : largest;
            }
            if (lane_index() == 0) p.exponents[row] = static_cast<uint8_t>(largest);
        }
    }
};

}  // namespace

Kernel<RowExponentsParams> row_exponents_kernel() {
    return kernel_of<RowExponents>();
}

Kernel<RepackParams> repack_kernel() {
    return kernel_of<Repack>();
}

}  // namespace runnel::kernels::cuda
