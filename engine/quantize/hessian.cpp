#include "engine/quantize/hessian.h"

#include <algorithm>
#include <cmath>

#include "engine/quantize/parallel.h"

namespace runnel::quantize {
namespace {

constexpr size_t kBatchRows = 64;

// H = R R^T with R upper triangular, in place, on the upper triangle of h[n][n]: Cholesky's method from the last column
// to the first. False if H is not positive definite.
bool factor(std::vector<double> &h, size_t n, int threads) {
    constexpr size_t kPanel = 64;  // columns
    std::vector<double> panel;     // the panel's columns of R as rows, [columns][end]
    for (size_t end = n; end > 0;) {
        const size_t begin = end > kPanel ? end - kPanel : 0;
        for (size_t j = end; j-- > begin;) {
            double &pivot = h[j * n + j];
            if (!(pivot > 0) || !std::isfinite(pivot)) return false;
            pivot = std::sqrt(pivot);
            for (size_t i = 0; i < j; ++i) h[i * n + j] /= pivot;
            for (size_t i = 0; i < j; ++i)
                for (size_t k = std::max(i, begin); k < j; ++k) h[i * n + k] -= h[i * n + j] * h[k * n + j];
        }
        panel.resize((end - begin) * begin);
        for (size_t j = begin; j < end; ++j)
            for (size_t i = 0; i < begin; ++i) panel[(j - begin) * begin + i] = h[i * n + j];
        in_parallel(threads, static_cast<int64_t>(begin), 16, [&](int64_t first, int64_t last) {
            for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(last); ++i)
                for (size_t j = 0; j < end - begin; ++j) {
                    const double *const column = &panel[j * begin], factor = column[i];
                    double *const row = &h[i * n];
                    for (size_t k = i; k < begin; ++k) row[k] -= factor * column[k];
                }
        });
        end = begin;
    }
    return true;
}

double mean_of_diagonal(std::span<const float> h, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += double{h[i * n + i]};
    return sum / static_cast<double>(n);
}

}  // namespace

std::vector<Band> bands_of(int64_t columns) {
    if (columns <= kMostColumns) return {{0, columns}};
    std::vector<Band> bands;
    for (int64_t first = 0; first < columns; first += kBandColumns)
        bands.push_back({first, std::min(kBandColumns, columns - first)});
    return bands;
}

uint64_t hessian_bytes(int64_t columns) {
    uint64_t bytes = 0;
    for (const Band &band : bands_of(columns))
        bytes += sizeof(float) * static_cast<uint64_t>(band.size * band.size);
    return bytes;
}

Hessian::Hessian(int64_t columns) : columns_(columns), bands_(bands_of(columns)) {
    for (const Band &band : bands_) sums_.emplace_back(static_cast<size_t>(band.size * band.size), 0.0f);
}

void Hessian::add(std::span<const float> row, int threads) {
    batch_.insert(batch_.end(), row.begin(), row.end());
    ++rows_;
    if (batch_.size() == kBatchRows * static_cast<size_t>(columns_)) flush(threads);
}

void Hessian::finish(int threads) {
    flush(threads);
    batch_ = {};
}

void Hessian::flush(int threads) {
    const auto columns = static_cast<size_t>(columns_);
    const size_t rows = batch_.size() / columns;
    for (size_t b = 0; b < bands_.size(); ++b) {
        const auto first = static_cast<size_t>(bands_[b].first), size = static_cast<size_t>(bands_[b].size);
        in_parallel(threads, bands_[b].size, 32, [&](int64_t begin, int64_t end) {
            // Sums of one batch are added up first: fewer roundings.
            std::vector<float> sums(size);
            for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
                std::fill(sums.begin() + static_cast<std::ptrdiff_t>(i), sums.end(), 0.0f);
                for (size_t r = 0; r < rows; ++r) {
                    const float *const x = &batch_[r * columns + first], factor = x[i];
                    for (size_t k = i; k < size; ++k) sums[k] += factor * x[k];
                }
                float *const to = &sums_[b][i * size];
                for (size_t k = i; k < size; ++k) to[k] += sums[k];
            }
        });
    }
    batch_.clear();
}

bool Hessian::is_finite() const {
    return std::ranges::all_of(mean_squares(), [](float square) { return std::isfinite(square); });
}

std::vector<float> Hessian::mean_squares() const {
    std::vector<float> result;
    const auto rows = static_cast<float>(std::max<int64_t>(1, rows_));
    for (size_t b = 0; b < bands_.size(); ++b) {
        const auto size = static_cast<size_t>(bands_[b].size);
        for (size_t i = 0; i < size; ++i) result.push_back(sums_[b][i * size + i] / rows);
    }
    return result;
}

std::optional<Feedback> feedback_of(const Hessian &hessian, size_t b, int threads) {
    const Band band = hessian.bands()[b];
    const auto n = static_cast<size_t>(band.size);
    const std::span<const float> sums = hessian.band(b);
    const double mean = mean_of_diagonal(sums, n);
    // Columns that are always 0 keep the damping alone: they are rounded without feedback.
    const double unit = mean > 0 ? mean : 1;
    std::vector<double> h(n * n);
    for (const double damping : {0.01, 0.1, 1.0}) {
        for (size_t i = 0; i < n; ++i) {
            for (size_t k = i; k < n; ++k) h[i * n + k] = double{sums[i * n + k]};
            h[i * n + i] += damping * unit;
        }
        if (!factor(h, n, threads)) continue;
        Feedback result{band, std::vector<float>(n * n, 0.0f), std::vector<float>(n), damping};
        for (size_t k = 0; k < n; ++k) {
            const double pivot = h[k * n + k];
            // Only the ratios of D matter: it becomes the importance of the columns.
            result.diagonal[k] = static_cast<float>(pivot * pivot / unit);
        }
        for (size_t i = 0; i < n; ++i)
            for (size_t k = i + 1; k < n; ++k)
                result.a[i * n + k] = static_cast<float>(h[i * n + k] / h[k * n + k]);
        return result;
    }
    return std::nullopt;
}

}  // namespace runnel::quantize
