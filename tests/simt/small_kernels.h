// Small kernels for the emulator's own tests: correct ones, and one violation of every check.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/runtime/kernel.h"

namespace runnel::simt {

struct SmallParams {
    float *in, *out;      // one float per thread of the grid
    uint32_t *counter;    // one
    const void *weights;  // 16 bytes per thread of a block
    int n;
};
inline constexpr int kSmallThreads = 64, kSmallShared = 2048;

using SmallKernel = kernels::cuda::Kernel<SmallParams>;

struct WrongKernel {
    SmallKernel kernel;
    bool dependent;
    const char *message;  // part of the Violation's message
};
std::vector<WrongKernel> wrong_kernels();

// out[i] = sum over the block of in, through shared memory and shuffles.
SmallKernel block_sum_kernel();
// out[0] = sum of all in, added by the last block to arrive, in order of the blocks; counter returns to 0.
// in: overwritten by the partial sums, one per block.
SmallKernel last_block_sum_kernel();
// out[i] = the first float of weights[i], through cp_async16; then + in[i] after grid_dep_wait().
SmallKernel staged_kernel();
// weights[i] = -1.
SmallKernel write_weights_kernel();

// One warp: c += a b for operands in fragment order (device.h), by lane. Each product interprets the
// registers as its own types.
struct ProductParams {
    const uint32_t *a, *b;               // [32][4], [32][2]
    float *f16_k8, *f16_k16, *bf16_k16;  // [32][4]
    int32_t *s8_k16, *s8_k32, *u8_k32;   // likewise
};
kernels::cuda::Kernel<ProductParams> products_kernel();

}  // namespace runnel::simt
