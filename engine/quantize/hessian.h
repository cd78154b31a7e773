// The Hessian of a matrix product's squared error: H = sum x x^T over the input rows x of calibration.
//
// For more than kMostColumns columns, H is block-diagonal: only columns of the same band of kBandColumns are related.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace runnel::quantize {

inline constexpr int64_t kMostColumns = 8192, kBandColumns = 4096;

// Columns [first, first + size) of a matrix.
struct Band {
    int64_t first, size;
};
std::vector<Band> bands_of(int64_t columns);

class Hessian {
  public:
    // Memory: hessian_bytes(columns).
    explicit Hessian(int64_t columns);

    // Adds an input row. Rows are added up in batches, on `threads` threads; the sums do not depend on their number.
    void add(std::span<const float> row, int threads);
    // Adds the rows of the last, incomplete batch.
    void finish(int threads);

    int64_t columns() const { return columns_; }
    int64_t rows() const { return rows_; }
    bool is_finite() const;
    // Mean squares of the columns: the importance of imatrix.
    std::vector<float> mean_squares() const;
    std::span<const Band> bands() const { return bands_; }
    // [size][size], upper triangle only.
    std::span<const float> band(size_t b) const { return sums_[b]; }

  private:
    void flush(int threads);

    int64_t columns_, rows_ = 0;
    std::vector<Band> bands_;
    std::vector<std::vector<float>> sums_;
    std::vector<float> batch_;  // [rows][columns] not yet added
};
uint64_t hessian_bytes(int64_t columns);

// H + damping = (I + A) D (I + A)^T with A strictly upper triangular and D diagonal. GPTQ's feedback follows from it
// without an inverse (Chee et al. 2023, QuIP, theorem 6): column k is rounded to the level nearest to
// w_k + sum over j < k of (w_j - w'_j) A_jk, and the squared error is the sum of D_k (rounding error of k)^2.
struct Feedback {
    Band band;
    std::vector<float> a;         // [size][size], strictly upper triangle
    std::vector<float> diagonal;  // D
    double damping;               // share of the mean of H's diagonal that was added
};

// Starts with `damping` = 0.01 and raises it up to 1 if the sums are not positive definite; then nothing.
// Memory: 12 bytes per element of the band.
std::optional<Feedback> feedback_of(const Hessian &hessian, size_t band, int threads);

}  // namespace runnel::quantize
