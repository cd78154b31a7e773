// What a step of an executor gives for the rows that a sequence asked for: of each the whole row, or, where
// that was enough and the device selects, its largest logits alone.
//
// Both are views of what the step wrote, valid as long as that; whole_or_read() also needs the step to be the
// last one that its executor ran.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/decode/executor.h"

namespace runnel::decode {

// One of whole and largest is there. Whoever cannot do with the largest reads the row.
class LogitRow {
  public:
    LogitRow(Executor &executor, int32_t number, std::span<const float> whole,
             std::span<const kernels::TopLogit> largest, float sum)
        : executor_(&executor), number_(number), whole_(whole), largest_(largest), sum_(sum) {}

    std::span<const float> whole() const { return whole_; }                  // [vocab] or empty
    std::span<const kernels::TopLogit> largest() const { return largest_; }  // descending, or empty
    // Of exp(logit - the largest) over the whole row. Precondition: there are two or more largest().
    float sum() const { return sum_; }
    // The whole row, which `memory` holds where it had to be read. Throws BackendError.
    std::span<const float> whole_or_read(std::vector<float> &memory) const;

  private:
    Executor *executor_;
    int32_t number_;  // in the step
    std::span<const float> whole_;
    std::span<const kernels::TopLogit> largest_;
    float sum_;
};

// Throws DecodeError{Failed} for NaN and infinity.
void expect_finite(std::span<const float> logits);

class LogitRows {
  public:
    LogitRows() = default;  // none
    // All `count` rows of the executor's last step.
    LogitRows(Executor &executor, size_t count, const StepOutput &output);

    size_t size() const { return count_; }
    bool empty() const { return count_ == 0; }
    LogitRow operator[](size_t row) const;
    LogitRows part(size_t first, size_t count) const;
    // [size()][vocab]; empty where only the largest are there.
    std::span<const float> whole() const { return logits_; }

  private:
    Executor *executor_ = nullptr;
    size_t first_ = 0, count_ = 0;  // of the step's rows
    std::span<const float> logits_;
    std::span<const kernels::TopLogit> largest_;
    std::span<const float> sums_;
};

}  // namespace runnel::decode
