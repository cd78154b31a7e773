// Percentiles of measurements.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace runnel::measure {

// The nearest-rank percentile: the smallest value that is not below `percent` percent of the values. 0 <
// percent <= 100. Precondition: `values` is not empty.
inline double percentile(std::vector<double> values, double percent) {
    std::ranges::sort(values);
    const double rank = std::ceil(percent / 100 * static_cast<double>(values.size()) - 1e-9);
    return values[static_cast<size_t>(std::clamp(rank, 1.0, static_cast<double>(values.size()))) - 1];
}

}  // namespace runnel::measure
