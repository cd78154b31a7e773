#include "engine/quantize/rows.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/quantize/parallel.h"
#include "gguf/printable.h"
#include "gguf/quantize.h"

namespace runnel::quantize {
namespace {

// Returns the largest magnitude of a row of finite values; throws QuantizeError for others.
float check_finite(const gguf::Tensor &tensor, int64_t row, std::span<const float> values) {
    // Magnitudes are ordered as their bits are, infinity and NaN above all others.
    uint32_t most = 0;
    for (const float value : values) most = std::max(most, std::bit_cast<uint32_t>(value) & 0x7fffffffu);
    const auto largest = std::bit_cast<float>(most);
    const bool finite = most < 0x7f800000u;
    if (!finite)
        throw QuantizeError(called(tensor) + ": row " + std::to_string(row) +
                            " has values that are not finite numbers");
    return largest;
}

// Blocks have half-precision scales, which may overflow from kLargeValue on.
constexpr float kLargeValue = 16384;

// Throws QuantizeError if the blocks of a row cannot hold its values.
void check_blocks(const gguf::Tensor &tensor, int64_t row, gguf::Type type, const std::byte *blocks,
                  float largest, std::span<float> scratch) {
    const bool beyond = gguf::traits(type).quantized && largest >= kBeyondScales;
    gguf::dequantize_row(type, blocks, scratch.data(), static_cast<int64_t>(scratch.size()));
    for (const float value : scratch)
        if (beyond || !std::isfinite(value))
            throw QuantizeError(called(tensor) + ": row " + std::to_string(row) +
                                " has values too large for " + std::string(gguf::traits(type).name) +
                                ": BF16 or F32 can hold them");
}

}  // namespace

std::string called(const gguf::Tensor &tensor) {
    return "tensor " + gguf::printable(tensor.name, 200);
}

std::span<const float> importance_of(const gguf::Tensor &tensor, const Importance *importance) {
    if (!importance) return {};
    const auto found = importance->find(tensor.name);
    if (found.empty()) return {};
    const auto wanted = static_cast<size_t>(tensor.shape[0] * tensor.shape[2]);
    if (found.size() == wanted) return found;
    // A tied output matrix is recorded under another name than the embeddings that it consists of.
    if (tensor.name == "token_embd.weight") return {};
    throw QuantizeError(called(tensor) + ": the importance matrix has " + std::to_string(found.size()) +
                        " values, expected " + std::to_string(wanted));
}

std::span<const float> row_importance(const gguf::Tensor &tensor, int64_t row,
                                      std::span<const float> importance) {
    if (importance.empty()) return {};
    const auto matrix = static_cast<size_t>(row / tensor.shape[1] * tensor.shape[0]);
    return importance.subspan(matrix % importance.size(), static_cast<size_t>(tensor.shape[0]));
}

float read_row(const gguf::Tensor &tensor, int64_t row, std::span<float> values) {
    const int64_t columns = tensor.shape[0];
    gguf::dequantize_row(tensor.type,
                         tensor.data + static_cast<size_t>(row) * gguf::row_bytes(tensor.type, columns),
                         values.data(), columns);
    return check_finite(tensor, row, values);
}

void encode_row(Method method, gguf::Type type, std::span<const float> row, std::span<const float> importance,
                std::byte *out) {
    const auto columns = static_cast<int64_t>(row.size());
    if (method == Method::Absmax)
        gguf::quantize_row(type, row.data(), out, columns, gguf::Effort::Plain);
    else if (method == Method::Search && gguf::can_quantize(type))
        gguf::quantize_row(type, row.data(), out, columns);
    else
        gguf::quantize_standard(type, row, columns, importance, out);
}

void convert_row(Method method, const gguf::Tensor &tensor, int64_t row, gguf::Type type,
                 const TensorScales *scales, std::span<const float> importance, std::span<float> values,
                 std::byte *out) {
    float largest = read_row(tensor, row, values);
    if (scales && scales->scales()) {
        scales->apply(tensor, row, values);
        largest = check_finite(tensor, row, values);
    }
    encode_row(method, type, values, row_importance(tensor, row, importance), out);
    if (largest >= kLargeValue) check_blocks(tensor, row, type, out, largest, values);
}

std::vector<std::byte> encode_tensor(const gguf::Tensor &tensor, gguf::Type type,
                                     const QuantizeRequest &request) {
    const int64_t columns = tensor.shape[0], rows = tensor.elements() / columns;
    const size_t bytes = gguf::row_bytes(type, columns);
    const std::span<const float> importance = importance_of(tensor, request.importance);
    std::vector<std::byte> blocks(bytes * static_cast<size_t>(rows));
    constexpr int64_t kRows = 16;  // number of rows that a thread takes at a time
    in_parallel(request.threads, rows, kRows, [&](int64_t begin, int64_t end) {
        std::vector<float> values(static_cast<size_t>(columns));
        for (int64_t row = begin; row < end; ++row) {
            read_row(tensor, row, values);
            encode_row(request.method, type, values, row_importance(tensor, row, importance),
                       blocks.data() + static_cast<size_t>(row) * bytes);
        }
    });
    return blocks;
}

}  // namespace runnel::quantize
