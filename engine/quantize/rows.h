// Rows of a tensor: read as floats, encoded in another type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/quantize/importance.h"
#include "engine/quantize/quantizer.h"
#include "gguf/file.h"

namespace runnel::quantize {

std::string called(const gguf::Tensor &tensor);  // "tensor blk.0.attn_q.weight", printable

// The tensor's importance, [matrices][columns]; empty if there is none. Throws QuantizeError if its size is wrong.
std::span<const float> importance_of(const gguf::Tensor &tensor, const Importance *importance);
// The part of the tensor's importance for one row; empty if `importance` is empty.
std::span<const float> row_importance(const gguf::Tensor &tensor, int64_t row,
                                      std::span<const float> importance);

// Fills values[columns]; returns the largest magnitude. Throws QuantizeError for values that are not finite.
float read_row(const gguf::Tensor &tensor, int64_t row, std::span<float> values);

// Writes row_bytes(type, row.size()) bytes.
void encode_row(Method method, gguf::Type type, std::span<const float> row, std::span<const float> importance,
                std::byte *out);

// From this magnitude on, sums of squares of weights overflow in the searches for scales.
inline constexpr float kBeyondScales = 0x1p60f;
// Reads a row, scales it (`scales` may be null) and encodes it. `importance`: of the scaled tensor; `values`: memory for a
// row. Throws QuantizeError for values that are not finite or do not fit the type.
void convert_row(Method method, const gguf::Tensor &tensor, int64_t row, gguf::Type type,
                 const TensorScales *scales, std::span<const float> importance, std::span<float> values,
                 std::byte *out);

// All rows of a tensor in another type. Throws QuantizeError for values that are not finite.
std::vector<std::byte> encode_tensor(const gguf::Tensor &tensor, gguf::Type type,
                                     const QuantizeRequest &request);

}  // namespace runnel::quantize
