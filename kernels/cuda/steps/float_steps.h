// F32 weights, 16 columns at a time ("step"), for kernels that multiply them in float32.
#pragma once

#include "kernels/cuda/linear/activation_group.h"
#include "kernels/cuda/linear/fragments.h"

namespace runnel::kernels::cuda {

// Four weights of each of the rows g and g + 8: those of columns 16 * step + 4t of a tile.
template <class Memory = GlobalWeights>
DEVICE void load_step(const std::byte *tile, int64_t step, float4 (&w)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const uint4 v = Memory::load128(tile + 1024 * step + 512 * r + 16 * lane_index());
        w[r] = {bits_float(v.x), bits_float(v.y), bits_float(v.z), bits_float(v.w)};
    }
}

DEVICE float multiply_add(float4 w, float4 x, float sum) {
    return fma_rn(w.w, x.w, fma_rn(w.z, x.z, fma_rn(w.y, x.y, fma_rn(w.x, x.x, sum))));
}

}  // namespace runnel::kernels::cuda
