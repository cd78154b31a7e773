// The median of measurements.
#pragma once

#include <algorithm>
#include <vector>

namespace runnel::measure {

// For an even number of values, the mean of the middle two, because either one alone would be biased.
// Precondition: `values` is not empty.
inline double median(std::vector<double> values) {
    std::ranges::sort(values);
    const size_t n = values.size();
    return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

}  // namespace runnel::measure
