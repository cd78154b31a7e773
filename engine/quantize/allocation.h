// Chooses one option per item: the least total cost within a budget of bytes (the multiple-choice knapsack problem).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace runnel::quantize {

struct AllocationOption {
    uint64_t bytes;
    double cost;  // finite
};

// The index of the chosen option of every item; nullopt if the smallest options together exceed the budget.
//
// A Lagrange multiplier (cost per byte) selects a point of each item's lower convex hull of (bytes, cost). Taking the
// edges of all hulls from the steepest on yields the solution for every multiplier. The rest of the budget is spent by
// changing one item, or one up and another down, as long as that lowers the cost. The total cost is at
// most that of the best choice plus the drop of the first edge that did not fit. Ties go to the earlier item, then to
// fewer bytes. Precondition: every item has options.
std::optional<std::vector<size_t>> allocate(std::span<const std::vector<AllocationOption>> items,
                                            uint64_t budget);

}  // namespace runnel::quantize
