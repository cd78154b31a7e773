#include "engine/quantize/input_sample.h"

#include <algorithm>
#include <cmath>

namespace runnel::quantize {

InputSample::InputSample(int64_t columns, size_t most)
    : columns_(columns), most_(std::max<size_t>(2, most)), magnitudes_(static_cast<size_t>(columns)) {}

void InputSample::add(std::span<const float> row) {
    for (size_t i = 0; i < row.size(); ++i) magnitudes_[i] += std::fabs(double{row[i]});
    const int64_t number = rows_++;
    if (number % step_ != 0) return;
    const auto width = static_cast<size_t>(columns_);
    if (kept_ == most_) {
        step_ *= 2;
        kept_ = (kept_ + 1) / 2;
        for (size_t i = 1; i < kept_; ++i)
            std::copy_n(values_.begin() + static_cast<std::ptrdiff_t>(2 * i * width), width,
                        values_.begin() + static_cast<std::ptrdiff_t>(i * width));
        values_.resize(kept_ * width);
        if (number % step_ != 0) return;
    }
    values_.insert(values_.end(), row.begin(), row.end());
    ++kept_;
}

bool InputSample::is_finite() const {
    return std::ranges::all_of(magnitudes_, [](double sum) { return std::isfinite(sum); });
}

std::vector<double> InputSample::mean_magnitudes() const {
    std::vector<double> means = magnitudes_;
    for (double &mean : means) mean /= static_cast<double>(std::max<int64_t>(1, rows_));
    return means;
}

std::span<const float> InputSample::row(size_t i) const {
    const auto width = static_cast<size_t>(columns_);
    return std::span(values_).subspan(i * width, width);
}

uint64_t input_sample_bytes(int64_t columns, size_t most) {
    return static_cast<uint64_t>(columns) * (most * sizeof(float) + sizeof(double));
}

}  // namespace runnel::quantize
