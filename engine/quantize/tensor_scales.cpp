#include "engine/quantize/tensor_scales.h"

namespace runnel::quantize {
namespace {

int64_t rows_of(const gguf::Tensor &tensor) {
    return tensor.elements() / tensor.shape[0];
}
int64_t matrices_of(const gguf::Tensor &tensor) {
    return rows_of(tensor) / tensor.shape[1];
}

}  // namespace

void TensorScales::scale_value(const gguf::Tensor &tensor, int64_t at, float by) {
    columns.resize(static_cast<size_t>(tensor.elements()), 1.0f);
    columns[static_cast<size_t>(at)] *= by;
}

void TensorScales::scale_row(const gguf::Tensor &tensor, int64_t row, float by) {
    rows.resize(static_cast<size_t>(rows_of(tensor)), 1.0f);
    rows[static_cast<size_t>(row)] *= by;
}

void TensorScales::scale_column(const gguf::Tensor &tensor, int64_t matrix, int64_t column, float by) {
    const int64_t matrices = matrices_of(tensor);
    columns.resize(static_cast<size_t>(matrices * tensor.shape[0]), 1.0f);
    for (int64_t m = 0; m < matrices; ++m)
        if (matrix < 0 || m == matrix) columns[static_cast<size_t>(m * tensor.shape[0] + column)] *= by;
}

void TensorScales::apply(const gguf::Tensor &tensor, int64_t row, std::span<float> values) const {
    if (!columns.empty()) {
        const auto sets = static_cast<int64_t>(columns.size() / values.size());
        const float *const by = &columns[static_cast<size_t>(row / (rows_of(tensor) / sets)) * values.size()];
        for (size_t i = 0; i < values.size(); ++i) values[i] *= by[i];
    }
    if (!rows.empty())
        for (float &value : values) value *= rows[static_cast<size_t>(row)];
}

}  // namespace runnel::quantize
