// Some input rows of a matrix, evenly spaced over all rows of a text, and the mean magnitude of each column.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace runnel::quantize {

class InputSample {
  public:
    // Keeps between most / 2 and `most` rows once that many were added. Memory: input_sample_bytes().
    InputSample(int64_t columns, size_t most);

    void add(std::span<const float> row);

    int64_t columns() const { return columns_; }
    int64_t rows() const { return rows_; }  // added
    bool is_finite() const;
    std::vector<double> mean_magnitudes() const;  // by column; of all rows
    size_t kept() const { return kept_; }
    std::span<const float> row(size_t i) const;  // a kept row

  private:
    int64_t columns_, rows_ = 0, step_ = 1;  // row i is kept if step_ divides i
    size_t most_, kept_ = 0;
    std::vector<double> magnitudes_;  // sums
    std::vector<float> values_;       // [kept][columns]
};
uint64_t input_sample_bytes(int64_t columns, size_t most);

}  // namespace runnel::quantize
