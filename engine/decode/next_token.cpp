#include "engine/decode/next_token.h"

#include <vector>

namespace runnel::decode {

TokenId sample_next(const LogitRow &row, std::span<const TokenId> history, Sampler &sampler) {
    if (!row.largest().empty())
        if (const auto token = sampler.sample(row.largest(), history, row.masked())) return *token;
    std::vector<float> memory;
    return sampler.sample(row.whole_or_read(memory), history);
}

const Distribution &distribution_of_next(const LogitRow &row, std::span<const TokenId> history,
                                         Sampler &sampler) {
    if (!row.largest().empty())
        if (const Distribution *found = sampler.distribution(row.largest(), history, row.masked()))
            return *found;
    std::vector<float> memory;
    return sampler.distribution(row.whole_or_read(memory), history);
}

}  // namespace runnel::decode
