// Factors that a tensor's values are multiplied by before they are encoded.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "gguf/file.h"

namespace runnel::quantize {

struct TensorScales {
    std::vector<float> columns;     // [matrices][columns]; empty: ones
    std::vector<float> rows;        // [rows of all matrices]; empty: ones
    std::vector<float> importance;  // [matrices][columns], of the scaled tensor; empty: as without scales

    bool scales() const { return !columns.empty() || !rows.empty(); }
    // Multiplies the factor of value `at` of the tensor, row by row, by `by`. For vectors and tables of biases.
    void scale_value(const gguf::Tensor &tensor, int64_t at, float by);
    // Row `row` of all matrices.
    void scale_row(const gguf::Tensor &tensor, int64_t row, float by);
    // Column `column` of one matrix; -1: of all.
    void scale_column(const gguf::Tensor &tensor, int64_t matrix, int64_t column, float by);

    // Multiplies the values of row `row` of the tensor.
    void apply(const gguf::Tensor &tensor, int64_t row, std::span<float> values) const;
};
// By the tensor's name in the source.
using TensorScalesByName = std::map<std::string, TensorScales, std::less<>>;

}  // namespace runnel::quantize
