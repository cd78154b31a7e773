// Percentiles of measurements.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace runnel::measure {

// By nearest rank: the least of the values that at least `percent` of them do not exceed. 0 < percent <= 100.
// Precondition: there is one.
inline double percentile(std::vector<double> values, double percent) {
    std::ranges::sort(values);
    const double rank = std::ceil(percent / 100 * static_cast<double>(values.size()) - 1e-9);
    return values[static_cast<size_t>(std::clamp(rank, 1.0, static_cast<double>(values.size()))) - 1];
}

}  // namespace runnel::measure
