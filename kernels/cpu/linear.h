// Matrix times activations, y = W x, for weights in F32, F16, BF16 and every block format.
//
// Weights stay in the file's layout (gguf/block.h). Activations are packed once per step into the form that
// the weight type needs (quantized to int8 for block formats); all matrices with the same input share them.
// There is one implementation per instruction set. All give bit-equal results, for any number of tokens and
// any split of the rows: kernels/cpu/README.md states that contract.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gguf/block.h"

namespace runnel::kernels::cpu {

// The storage of activations for a weight type (layouts: linear_packed.h).
enum class ActFormat {
    F32,     // unchanged: for F32, F16 and BF16 weights
    Q8x32,   // int8 with a float scale per 32: for formats with blocks of 32 or 64 weights
    Q8x256,  // int8 with a float scale per 256: for formats with blocks of 256 weights
};

// Precondition: `weight` is supported and is F32, F16, BF16 or a block format.
ActFormat act_format(gguf::Type weight);

// Bytes of the packed activations of `tokens` tokens of `cols` columns: a multiple of 64. The
// buffer must be 64-aligned.
size_t packed_bytes(ActFormat format, int64_t cols, int32_t tokens);

struct LookupKernels;

struct LinearKernels {
    const char *name;  // "scalar", "avx2", "avx512", "amx"

    // Packs columns [col0, col1) of tokens [t0, t1) of x (token t starts at x + t * x_stride) into `packed`,
    // the buffer of all `tokens` tokens. col0 is a multiple of 256; col1 is a multiple of 256 or equals cols.
    // Different threads may pack disjoint ranges.
    void (*pack)(ActFormat format, const float *x, int64_t x_stride, int64_t cols, int32_t tokens, int32_t t0,
                 int32_t t1, int64_t col0, int64_t col1, void *packed);

    // out[t * out_stride + r] = sum_k W[r][k] x[t][k] for r in [row0, row1) and all tokens.
    // `weights` points to row 0. Any number of rows and tokens; cols is a multiple of the
    // type's block size. With many tokens, a call should have 64 rows or more. `scratch`:
    // scratch_bytes(cols) bytes, 64-aligned, private to the calling thread. `next`: a prefetch
    // hint, the bytes that this thread reads next, or null.
    void (*multiply)(gguf::Type type, const std::byte *weights, int64_t cols, int64_t row0, int64_t row1,
                     const void *packed, int32_t tokens, float *out, int64_t out_stride, void *scratch,
                     const std::byte *next);

    size_t (*scratch_bytes)(int64_t cols);

    // out[0..cols) = the row's values, bit-exact with ggml's dequantization.
    void (*dequantize)(gguf::Type type, const std::byte *row, int64_t cols, float *out);

    const LookupKernels *lookup = nullptr;  // for formats of one and two bits (linear_lookup.h); null: none
};

const LinearKernels &linear_scalar();
// Null when this CPU or operating system lacks the instructions: AVX2, FMA, F16C, BMI2.
const LinearKernels *linear_avx2();
// Null when this CPU or operating system lacks the instructions: as AVX2, and AVX-512 F, BW, DQ, VL, VNNI.
const LinearKernels *linear_avx512();
// Null when this CPU or operating system lacks the instructions: as AVX-512, and AMX with 8-bit integers.
const LinearKernels *linear_amx();

}  // namespace runnel::kernels::cpu
