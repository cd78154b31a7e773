#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/attention_layout.h"
#include "kernels/cpu/vector_tables.h"

namespace runnel::kernels::cpu {

const AttentionKernels &attention_scalar() {
    return kAttentionScalar;
}
const AttentionKernels *attention_avx2() {
    return cpu_has_avx2() ? &kAttentionAvx2 : nullptr;
}
const AttentionKernels *attention_avx512() {
    return cpu_has_avx512() ? &kAttentionAvx512 : nullptr;
}

const AttentionKernels &attention_best() {
    if (cpu_has_avx512()) return kAttentionAvx512;
    return cpu_has_avx2() ? kAttentionAvx2 : kAttentionScalar;
}

size_t attention_scratch(int32_t head_dim_k, int32_t head_dim_v, int32_t rows) {
    const size_t k = static_cast<size_t>(head_dim_k), v = padded(head_dim_v), n = static_cast<size_t>(rows);
    // The pages in float32, the scores of one block, and per row: q, two o, l, m and the joined l and m.
    const size_t lanes = 16;
    return kBlockTokens * (k + v) + kMaxBlockRows * kBlockTokens + padded(rows) * (k + 4) +
           n * (2 * v + lanes);
}

size_t index_scratch(int32_t head_dim) {
    return kBlockTokens * (static_cast<size_t>(head_dim) + kMaxBlockRows);
}

int32_t attention_tile_tokens(int32_t heads) {
    return std::clamp(128 / heads, 1, kMostTileTokens);
}

int32_t range_count(const AttentionTile &tile) {
    const int32_t first = first_visible(tile, tile.first_cell) / kRangeCells;
    const int32_t last = (visible_end(tile, tile.first_cell + tile.tokens - 1) - 1) / kRangeCells;
    return last - first + 1 + (tile.sink_cells > 0 ? 1 : 0);
}

size_t attention_partial(const AttentionTile &tile) {
    return static_cast<size_t>(tile.tokens) * static_cast<size_t>(tile.heads) *
           static_cast<size_t>(kPartialHead + tile.pages.head_dim_v);
}

void rotate_heads(float *heads, int32_t count, int32_t head_dim) noexcept {
    const int32_t size = head_dim & -head_dim;
    const float scale = 1 / std::sqrt(static_cast<float>(size));
    for (float *x = heads; x < heads + int64_t{count} * head_dim; x += size) {
        for (int32_t apart = 1; apart < size; apart *= 2)
            for (int32_t i = 0; i < size; i += 2 * apart)
                for (int32_t j = i; j < i + apart; ++j) {
                    const float a = x[j], b = x[j + apart];
                    x[j] = a + b;
                    x[j + apart] = a - b;
                }
        for (int32_t i = 0; i < size; ++i) x[i] *= scale;
    }
}

}  // namespace runnel::kernels::cpu
