// How the values of an activation, or the rows of a matrix, are shared out over ranks.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

namespace runnel::kernels {

struct Range {
    int64_t begin = 0, end = 0;
    int64_t size() const { return end - begin; }
    auto operator<=>(const Range &) const = default;
};

// By rank, what it holds: ascending ranges that together cover everything. A range may be empty. Two ranges are disjoint
// or, if there are fewer things than ranks and each rank needs one, equal.
using Cut = std::vector<Range>;

// Shares out `units` in proportion to the shares: not negative, some of them positive. What remains after rounding down
// goes to the largest remainders, the lower rank first.
Cut cut_units(int64_t units, std::span<const double> shares);

// The same for rows, in units of `unit` rows; the last unit may be smaller.
Cut cut_rows(int64_t rows, int64_t unit, std::span<const double> shares);

// Query heads and the K/V heads that they use. A rank gets whole groups: a K/V head with all of its query heads. If there
// are fewer K/V heads than ranks with a share, the ranks are shared out over the K/V heads, and those of one K/V head
// share its query heads. heads is a multiple of kv_heads.
struct HeadCut {
    Cut heads, kv_heads;
};
HeadCut cut_heads(int32_t heads, int32_t kv_heads, std::span<const double> shares);

// Every unit consists of `by` values.
Cut scaled(const Cut &units, int64_t by);

// Of values that several ranks hold, only the first rank's: disjoint ranges.
Cut without_copies(const Cut &cut);

// Whether each rank holds all of `size` values or none.
bool all_or_none(const Cut &cut, int64_t size);

}  // namespace runnel::kernels
