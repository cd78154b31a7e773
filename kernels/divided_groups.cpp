#include "kernels/divided_groups.h"

#include <algorithm>

#include "kernels/steps.h"

namespace runnel::kernels {

std::vector<int32_t> divided_groups(const Program &program, int32_t ranks) {
    std::vector<int32_t> attend, shares;  // by group: how many steps attend to it
    for (const CacheLayer &layer : program.cache_layers)
        shares.resize(std::max(shares.size(), static_cast<size_t>(layer.group) + 1), ranks);
    attend.resize(shares.size());
    const auto group = [&](int32_t cache) {
        return static_cast<size_t>(program.cache_layers[static_cast<size_t>(cache)].group);
    };
    for_each_step<Indexer>(program, [&](const Indexer &step) { shares[group(step.cache)] = 1; });
    for_each_step<Attention>(program, [&](const Attention &a) {
        attend[group(a.cache)] += a.attends();
        if (a.window > 0 || a.sink_cells > 0 || a.chosen != kNoSlot || a.stride > 1 || a.sums != kNoSlot)
            shares[group(a.cache)] = 1;
    });
    for (size_t g = 0; g < shares.size(); ++g)
        if (attend[g] == 0) shares[g] = 1;
    return shares;
}

}  // namespace runnel::kernels
