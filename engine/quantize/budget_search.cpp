#include "engine/quantize/budget_search.h"

#include <algorithm>

namespace runnel::quantize {

std::optional<uint64_t> smallest_budget(const BudgetRange &range, double limit,
                                        const std::function<double(uint64_t)> &damage) {
    const uint64_t step = std::max<uint64_t>(1, range.step);
    uint64_t at = std::clamp(range.start, range.low, range.high), stride = 4 * step;
    uint64_t good = at, bad = at;
    if (damage(at) <= limit) {
        for (;; stride *= 2) {  // down, to a budget that is too small
            if (good == range.low) return good;
            bad = good - range.low > stride ? good - stride : range.low;
            if (!(damage(bad) <= limit)) break;
            good = bad;
        }
    } else {
        for (;; stride *= 2) {
            if (bad == range.high) return std::nullopt;
            good = range.high - bad > stride ? bad + stride : range.high;
            if (damage(good) <= limit) break;
            bad = good;
        }
    }
    while (good - bad > step) {
        at = bad + (good - bad) / 2;
        (damage(at) <= limit ? good : bad) = at;
    }
    return good;
}

}  // namespace runnel::quantize
