// Reference conversions between float32 and every block format of block.h.
//
// They define the meaning of a block; kernels are tested against them. Scalar code, one thread, written for
// correctness and readability.
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

// How thoroughly the searching quantizers look for the best scales. Formats without a search ignore it.
enum class Effort {
    Plain,  // no search: the largest and smallest values of a group give its scale
    Fast,   // about 4 times faster; up to 10% more squared error than ggml's reference
    Thorough,
};

// Whether quantize_row can write the type: every type that dequantize_row reads, except F64, the
// integers and the codebook formats.
bool can_quantize(Type type) noexcept;

// Whether quantize_standard can: also the formats with codebooks, IQ1_S to IQ3_S. For some of these it needs the
// importance of the columns.
bool can_quantize_standard(Type type) noexcept;
bool standard_needs_importance(Type type) noexcept;

// `n` finite values (n a multiple of the type's block size) -> row_bytes(type, n) bytes at `blocks`.
//
// F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, MXFP4, NVFP4, TQ1_0, TQ2_0, Q1_0, Q2_0: exactly the bytes of
// ggml's quantize_row_*_ref. PQ2_0, PTQ1_0: the levels of Q2_0. Q2_K..Q6_K, IQ4_NL, IQ4_XS: our own search for the least plain squared error of the
// dequantized values (ggml weights it by the size of the values). On normally distributed weights the error
// is below that of ggml's reference for each of them (tests/gguf/quantize_test.cpp has the numbers).
// Precondition: can_quantize(type).
void quantize_row(Type type, const float *in, std::byte *blocks, int64_t n, Effort effort = Effort::Thorough);

// Quantizes rows of a tensor to the bytes that llama.cpp's quantizer writes (x86-64 builds, which round every
// product and sum to float32): tests/gguf/standard_quantize_test.cpp has hashes of its output.
//
// `rows`: [count][columns] finite values. `importance`: [columns], from an importance matrix, or empty.
// Writes count * row_bytes(type, columns) bytes. Preconditions: can_quantize_standard(type), and importance where
// standard_needs_importance(type). The only blocks that differ are those of IQ3_S with groups of 32 zeros
// (standard_encode_codebook.cpp says why).
void quantize_standard(Type type, std::span<const float> rows, int64_t columns,
                       std::span<const float> importance, std::byte *blocks);

}  // namespace runnel::gguf
