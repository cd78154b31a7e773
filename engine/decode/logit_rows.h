// Rows of logits that an executor's step computed for a sequence: whole rows, or only the largest logits of
// each row if these are enough for the sequence and the device can select them.
//
// LogitRow and LogitRows are views of the step's output and valid as long as that output. whole_or_read() must be
// called before the executor runs another step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/decode/executor.h"

namespace runnel::decode {

// Holds either the whole row or its largest logits. whole_or_read() gives the whole row in both cases.
class LogitRow {
  public:
    LogitRow(Executor &executor, int32_t number, std::span<const float> whole,
             std::span<const kernels::TopLogit> largest, float sum, bool masked = false)
        : executor_(&executor),
          number_(number),
          whole_(whole),
          largest_(largest),
          sum_(sum),
          masked_(masked) {}

    std::span<const float> whole() const { return whole_; }                  // [vocab] or empty
    std::span<const kernels::TopLogit> largest() const { return largest_; }  // descending, or empty
    // Whether the device applied a mask: tokens outside it come last in largest(), with the logit -infinity.
    bool masked() const { return masked_; }
    // The sum of exp(logit - largest logit) over the whole row, or over the mask. Precondition: largest() has
    // two or more.
    float sum() const { return sum_; }
    // The whole row. If it must be read from the device, `memory` holds it. Throws BackendError.
    std::span<const float> whole_or_read(std::vector<float> &memory) const;

  private:
    Executor *executor_;
    int32_t number_;  // in the step
    std::span<const float> whole_;
    std::span<const kernels::TopLogit> largest_;
    float sum_;
    bool masked_;
};

// Throws DecodeError{Failed} for NaN and infinity.
void expect_finite(std::span<const float> logits);

class LogitRows {
  public:
    LogitRows() = default;  // no rows
    // All `count` rows of the executor's last step.
    LogitRows(Executor &executor, size_t count, const StepOutput &output);

    size_t size() const { return count_; }
    bool empty() const { return count_ == 0; }
    LogitRow operator[](size_t row) const;
    LogitRows part(size_t first, size_t count) const;
    // [size()][vocab]; empty if only the largest logits were selected.
    std::span<const float> whole() const { return logits_; }

  private:
    Executor *executor_ = nullptr;
    size_t first_ = 0, count_ = 0;  // of the step's rows
    std::span<const float> logits_;
    std::span<const kernels::TopLogit> largest_;
    std::span<const float> sums_;
    const std::vector<bool> *masked_ = nullptr;  // of all rows of the step; null: none
};

}  // namespace runnel::decode
