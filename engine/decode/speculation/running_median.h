// The median of the last few measurements, which one disturbed measurement hardly changes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace runnel::decode {

// The median of the last `Count` values.
template <size_t Count>
class RunningMedian {
  public:
    void add(double value) {
        values_[static_cast<size_t>(added_ % Count)] = value;
        ++added_;
    }
    bool empty() const { return added_ == 0; }
    size_t count() const { return static_cast<size_t>(std::min<uint64_t>(added_, Count)); }
    // The median; for an even number of values, the lower of the middle two. Precondition: !empty().
    double value() const {
        std::array<double, Count> sorted = values_;
        const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(count());
        const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((count() - 1) / 2);
        std::nth_element(sorted.begin(), middle, end);
        return *middle;
    }

  private:
    std::array<double, Count> values_{};
    uint64_t added_ = 0;
};

}  // namespace runnel::decode
