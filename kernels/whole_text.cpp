#include "kernels/whole_text.h"

#include <algorithm>
#include <numeric>

namespace runnel::kernels {

CacheConfig cache_of_one(const Program &program, int32_t context) {
    CacheConfig cache;
    int32_t groups = 0;
    for (const CacheLayer &layer : program.cache_layers) groups = std::max(groups, layer.group + 1);
    cache.blocks.assign(static_cast<size_t>(groups), (context + kBlockTokens - 1) / kBlockTokens);
    cache.context = context;
    cache.states = program.state_layers.empty() ? 0 : 1;
    return cache;
}

WholeText::WholeText(const Program &program, std::span<const int32_t> tokens, int32_t context,
                     const std::atomic<bool> *cancel)
    : positions_(tokens.size()),
      sequence_{0, static_cast<int32_t>(tokens.size()), 0, {}},
      table_(static_cast<size_t>((context + kBlockTokens - 1) / kBlockTokens)) {
    std::iota(positions_.begin(), positions_.end(), 0);
    std::iota(table_.begin(), table_.end(), 0);
    const CacheConfig cache = cache_of_one(program, context);
    sequence_.tables.assign(cache.blocks.size(), table_);
    if (cache.states > 0) sequence_.state_writes = {{sequence_.count, 0}};
    batch.tokens = tokens, batch.positions = positions_, batch.sequences = {&sequence_, 1};
    batch.cancel = cancel;
}

}  // namespace runnel::kernels
