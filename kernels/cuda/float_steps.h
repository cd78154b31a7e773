// F32, F16 and BF16 weights, 16 columns at a time ("step"), for kernels that multiply them in float32.
#pragma once

#include "kernels/cuda/fragments.h"

namespace runnel::kernels::cuda {

// Four float32 activations at `k`, zero beyond the end.
DEVICE float4 load_floats(const float *x, int64_t k, int64_t cols) {
    if (k + 4 <= cols) return *reinterpret_cast<const float4 *>(x + k);
    return {k < cols ? x[k] : 0.0f, k + 1 < cols ? x[k + 1] : 0.0f, k + 2 < cols ? x[k + 2] : 0.0f, 0.0f};
}

DEVICE float4 floats_of(uint32_t low, uint32_t high, TileFormat format) {
    if (format == TileFormat::BF16)
        return {bits_float(low << 16), bits_float(low & 0xffff0000u), bits_float(high << 16),
                bits_float(high & 0xffff0000u)};
    return {half_of(low, 0), half_of(low, 1), half_of(high, 0), half_of(high, 1)};
}

// Four weights of each of the rows g and g + 8: those of columns 16 * step + 4t of a tile.
template <TileFormat F, class Memory = GlobalWeights>
DEVICE void load_step(const std::byte *tile, int64_t step, float4 (&w)[2]) {
    if constexpr (F == TileFormat::F32) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const uint4 v = Memory::load128(tile + 1024 * step + 512 * r + 16 * lane_index());
            w[r] = {bits_float(v.x), bits_float(v.y), bits_float(v.z), bits_float(v.w)};
        }
    } else {
        const uint4 v = Memory::load128(tile + 512 * step + 16 * lane_index());
        w[0] = floats_of(v.x, v.z, F);
        w[1] = floats_of(v.y, v.w, F);
    }
}

DEVICE float multiply_add(float4 w, float4 x, float sum) {
    return fma_rn(w.w, x.w, fma_rn(w.z, x.z, fma_rn(w.y, x.y, fma_rn(w.x, x.x, sum))));
}

}  // namespace runnel::kernels::cuda
