// The reference conversions between float32 and every block format of block.h.
//
// These are the definition of what a block means; kernels are tested against them. Scalar code, one thread,
// made to be right and readable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gguf/block.h"

namespace runnel::gguf {

// `n` values of a row (n a multiple of the type's block size) at `blocks` (any alignment) -> out[0..n).
// Bit-exact with ggml's dequantize_row_*: same operations in the same order, each rounded to float32.
// Integers and F64 are rounded to the nearest float. Precondition: traits(type).supported.
void dequantize_row(Type type, const std::byte *blocks, float *out, int64_t n);

// How hard the searching quantizers look for the best scales. Formats without a search ignore it.
enum class Effort {
    Fast,  // some 4 times quicker, up to a tenth more squared error than ggml's reference
    Thorough,
};

// Whether quantize_row can write the type: everything dequantize_row reads but F64, the integers and
// the formats with codebooks.
bool can_quantize(Type type) noexcept;

// Whether quantize_standard can: also the formats with codebooks, IQ1_S to IQ3_S. For some of these it needs the
// importance of the columns.
bool can_quantize_standard(Type type) noexcept;
bool standard_needs_importance(Type type) noexcept;

// `n` finite values (n a multiple of the type's block size) -> row_bytes(type, n) bytes at `blocks`.
//
// F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, MXFP4, NVFP4, TQ1_0, TQ2_0: the very bytes of ggml's
// quantize_row_*_ref. Q2_K..Q6_K, IQ4_NL, IQ4_XS: our own search, made to minimize the plain squared error of
// the dequantized values (ggml weights it by the size of the values); on normally distributed weights the
// error is below that of ggml's reference for each of them (tests/gguf/quantize_test.cpp holds the numbers).
// Precondition: can_quantize(type).
void quantize_row(Type type, const float *in, std::byte *blocks, int64_t n, Effort effort = Effort::Thorough);

// Rows of a tensor in the bytes that llama.cpp's quantizer writes (x86-64 builds, which round every product and
// sum to float32): tests/gguf/standard_quantize_test.cpp holds hashes of its output.
//
// `rows`: [count][columns] finite values. `importance`: of each column, from an importance matrix, or empty.
// Writes count * row_bytes(type, columns) bytes. Preconditions: can_quantize_standard(type), and importance where
// standard_needs_importance(type). The only blocks that differ are those of IQ3_S with groups of 32 zeros
// (standard_encode_codebook.cpp says why).
void quantize_standard(Type type, std::span<const float> rows, int64_t columns,
                       std::span<const float> importance, std::byte *blocks);

}  // namespace runnel::gguf
