#include "kernels/weight_slices.h"

#include <cassert>
#include <cstddef>
#include <utility>

namespace runnel::kernels {

WeightId WeightSlices::slice(WeightId id, Range range, Kind kind) {
    if (id == kNoWeight) return kNoWeight;
    const auto [known, is_new] =
        known_.try_emplace({id, range, kind}, static_cast<WeightId>(weights_.size()));
    if (!is_new) return known->second;
    Weight part = weights_[static_cast<size_t>(id)];
    const size_t distance = part.stride > 0 ? part.stride : part.matrix_bytes();
    if (kind != Kind::Matrices && part.count > 1) part.stride = distance;
    size_t offset = 0;
    if (kind == Kind::Rows) {
        offset = gguf::row_bytes(part.type, part.cols) * static_cast<size_t>(range.begin);
        part.rows = range.size();
    } else if (kind == Kind::Matrices) {
        offset = distance * static_cast<size_t>(range.begin);
        part.count = range.size();
    } else {
        assert(part.type == gguf::Type::F32 && part.rows == 1);
        offset = sizeof(float) * static_cast<size_t>(range.begin);
        part.cols = range.size();
    }
    if (part.data != nullptr) part.data += offset;
    weights_.push_back(std::move(part));
    return known->second;
}

WeightId WeightSlices::columns(WeightId id, Range range, int64_t ranges) {
    const auto [known, is_new] =
        known_.try_emplace({id, range, Kind::Columns}, static_cast<WeightId>(weights_.size()));
    if (!is_new) return known->second;
    Weight part = weights_[static_cast<size_t>(id)];
    assert(part.count == 1 && part.cols % ranges == 0);
    part.row_stride = gguf::row_bytes(part.type, part.cols);
    part.cols /= ranges;
    part.count = range.size();
    part.stride = gguf::row_bytes(part.type, part.cols);
    if (part.data != nullptr) part.data += part.stride * static_cast<size_t>(range.begin);
    weights_.push_back(std::move(part));
    return known->second;
}

}  // namespace runnel::kernels
