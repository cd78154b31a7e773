// Rows of a matrix in tiles as float32: the embeddings of a batch's tokens.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/tiles.h"
#include "kernels/cuda/runtime/kernel.h"

namespace runnel::kernels::cuda {

// out[t] = scale * row rows[t] of the matrix, dequantized with the operations of ggml's dequantize_row_*, in
// their order. The ternary types, stored as Q2_K tiles (tiles.h), have the same values. One block per row.
struct EmbedParams {
    const std::byte *tiles;
    TileFormat format;
    int32_t cols;
    float scale;
    const int32_t *rows;  // [t], each below the matrix's rows
    float *out;           // [t][out_stride]
    int64_t out_stride;
    int32_t last_row;  // larger row numbers are replaced by it
    bool add;          // adds to out instead of overwriting it
};
Kernel<EmbedParams> embed_kernel();

// out[i] = in[rows[i]]. One block per row.
struct GatherParams {
    const float *in;
    const int32_t *rows;
    float *out;
    int64_t in_stride, out_stride;
    int32_t width;
};
Kernel<GatherParams> gather_kernel();

}  // namespace runnel::kernels::cuda
