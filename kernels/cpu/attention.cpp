#include "kernels/cpu/attention.h"

#include <algorithm>

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
    // The pages in float32, the scores of one block, and of each row: q, two o, l, m and the joined l and m.
    const size_t lanes = 16;
    return kBlockTokens * (k + v) + kMaxBlockRows * kBlockTokens + padded(rows) * (k + 4) +
           n * (2 * v + lanes);
}

int32_t attention_tile_tokens(int32_t heads) {
    return std::clamp(128 / heads, 1, 32);
}

int32_t first_range(const AttentionTile &tile) {
    return first_visible(tile, tile.first_cell) / kRangeCells;
}

int32_t range_count(const AttentionTile &tile) {
    return (tile.first_cell + tile.tokens - 1) / kRangeCells - first_range(tile) + 1;
}

size_t attention_partial(const AttentionTile &tile) {
    return static_cast<size_t>(tile.tokens) * static_cast<size_t>(tile.heads) *
           static_cast<size_t>(kPartialHead + tile.pages.head_dim_v);
}

}  // namespace runnel::kernels::cpu
