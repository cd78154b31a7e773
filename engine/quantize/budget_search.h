// The smallest budget that keeps a limit: for `runnel quantize --target-kl`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

namespace runnel::quantize {

struct BudgetRange {
    uint64_t low, high;  // low <= high
    uint64_t start;      // an estimate of the answer; tried first
    uint64_t step;       // at least 1: the search ends when the answer is known to within a step
};

// Returns the smallest budget tried at which damage(budget) <= limit; nullopt if it is above the limit at range.high.
// If the damage never rises with the budget, the answer is less than a step above the smallest possible. Otherwise
// (measured damage is noisy) the returned budget still kept the limit when it was tried. From `start` the search
// doubles its step until it has passed the limit, then it bisects.
std::optional<uint64_t> smallest_budget(const BudgetRange &range, double limit,
                                        const std::function<double(uint64_t budget)> &damage);

}  // namespace runnel::quantize
