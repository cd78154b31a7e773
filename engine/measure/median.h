// The median of measurements.
#pragma once

#include <algorithm>
#include <vector>

namespace runnel::measure {

// Of an even number, the mean of the two in the middle: either of them alone would favor a side.
// Precondition: there is one.
inline double median(std::vector<double> values) {
    std::ranges::sort(values);
    const size_t n = values.size();
    return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

}  // namespace runnel::measure
