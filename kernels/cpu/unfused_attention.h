// Attention in three passes over a matrix of all scores in memory: the baseline that `bench --attention` compares
// attention.h with. The products are the same code; what differs is that the scores are written to memory and
// read back, twice:
//   1. scores:  matrix[row][cell] = q . k * scale                      K is read, the matrix written
//   2. softmax: a row's visible cells become exp(s - max) / sum        the matrix is read and written
//   3. values:  out = sum over the visible cells of p * v              the matrix and V are read
// Soft-caps, sinks and sink cells are not supported.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention.h"

namespace runnel::kernels::cpu {

// matrix: row (t, h) of the tile begins at matrix + (t * heads + h) * stride; stride is a multiple of 32 and at least
// first_cell + tokens. scratch: as for AttentionKernels::attend.
struct UnfusedKernels {
    void (*scores)(const AttentionTile &tile, float *matrix, int64_t stride, float *scratch) noexcept;
    void (*softmax)(const AttentionTile &tile, float *matrix, int64_t stride) noexcept;
    void (*values)(const AttentionTile &tile, const float *matrix, int64_t stride, float *scratch) noexcept;
};

extern const UnfusedKernels kUnfusedScalar, kUnfusedAvx2, kUnfusedAvx512;
// Of the same instruction set as attention_best().
const UnfusedKernels &unfused_best();

}  // namespace runnel::kernels::cpu
