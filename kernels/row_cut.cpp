#include "kernels/row_cut.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

namespace runnel::kernels {

Cut cut_units(int64_t units, std::span<const double> shares) {
    const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
    assert(all > 0);
    std::vector<int64_t> counts;
    std::vector<std::pair<double, size_t>> remainders;  // and the rank
    int64_t left = units;
    for (size_t rank = 0; rank < shares.size(); ++rank) {
        const double exact = static_cast<double>(units) * (shares[rank] / all);
        const auto whole = std::min(static_cast<int64_t>(std::floor(exact)), left);
        counts.push_back(whole);
        left -= whole;
        if (shares[rank] > 0) remainders.emplace_back(exact - static_cast<double>(whole), rank);
    }
    std::ranges::stable_sort(remainders, std::greater(), [](const auto &one) { return one.first; });
    for (size_t i = 0; left > 0; i = (i + 1) % remainders.size(), --left) ++counts[remainders[i].second];
    Cut cut;
    int64_t begin = 0;
    for (const int64_t count : counts) {
        cut.push_back({begin, begin + count});
        begin += count;
    }
    return cut;
}

Cut cut_rows(int64_t rows, int64_t unit, std::span<const double> shares) {
    Cut cut = scaled(cut_units((rows + unit - 1) / unit, shares), unit);
    for (Range &range : cut) range = {std::min(range.begin, rows), std::min(range.end, rows)};
    return cut;
}

HeadCut cut_heads(int32_t heads, int32_t kv_heads, std::span<const double> shares) {
    const int64_t group = heads / kv_heads;
    std::vector<size_t> active;
    for (size_t rank = 0; rank < shares.size(); ++rank)
        if (shares[rank] > 0) active.push_back(rank);
    if (static_cast<size_t>(kv_heads) >= active.size()) {
        const Cut groups = cut_units(kv_heads, shares);
        return {scaled(groups, group), groups};
    }
    HeadCut cut{Cut(shares.size()), Cut(shares.size())};
    const auto of_rank = [&](size_t i) {
        return static_cast<int64_t>(i) * kv_heads / static_cast<int64_t>(active.size());
    };
    for (size_t i = 0; i < active.size();) {
        const int64_t kv_head = of_rank(i);
        std::vector<double> within;
        const size_t first = i;
        for (; i < active.size() && of_rank(i) == kv_head; ++i) within.push_back(shares[active[i]]);
        const Cut queries = cut_units(group, within);
        for (size_t j = 0; j < queries.size(); ++j) {
            const Range own = queries[j];
            if (own.size() == 0) continue;
            cut.heads[active[first + j]] = {kv_head * group + own.begin, kv_head * group + own.end};
            cut.kv_heads[active[first + j]] = {kv_head, kv_head + 1};
        }
    }
    // A rank without heads has an empty range between its neighbors.
    Range heads_before, kv_before;
    for (size_t rank = 0; rank < shares.size(); ++rank) {
        if (cut.heads[rank].size() == 0) {
            cut.heads[rank] = {heads_before.end, heads_before.end};
            cut.kv_heads[rank] = {kv_before.end, kv_before.end};
        }
        heads_before = cut.heads[rank];
        kv_before = cut.kv_heads[rank];
    }
    return cut;
}

Cut scaled(const Cut &units, int64_t by) {
    Cut cut = units;
    for (Range &range : cut) range = {range.begin * by, range.end * by};
    return cut;
}

Cut without_copies(const Cut &cut) {
    Cut own = cut;
    int64_t covered = 0;
    for (Range &range : own) {
        range.begin = std::min(std::max(range.begin, covered), range.end);
        covered = std::max(covered, range.end);
    }
    return own;
}

bool all_or_none(const Cut &cut, int64_t size) {
    return std::ranges::all_of(cut,
                               [&](const Range &range) { return range.size() == 0 || range.size() == size; });
}

}  // namespace runnel::kernels
