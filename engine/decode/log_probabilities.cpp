#include "engine/decode/log_probabilities.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace runnel::decode {

using text::TokenId;

TokenLogProbabilities log_probabilities(std::span<const float> logits, TokenId id, int32_t top) {
    const float own = logits[static_cast<size_t>(id)];
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    int32_t rank = 1;
    for (size_t i = 0; i < logits.size(); ++i) {
        sum += std::exp(double{logits[i]} - largest);
        rank += logits[i] > own || (logits[i] == own && static_cast<TokenId>(i) < id);
    }
    const double log_sum = largest + std::log(sum);
    TokenLogProbabilities result{{id, double{own} - log_sum, rank}, {}};
    const auto count = std::min(static_cast<size_t>(std::max(0, top)), logits.size());
    if (count == 0) return result;
    const auto before = [&](TokenId a, TokenId b) {
        const float la = logits[static_cast<size_t>(a)], lb = logits[static_cast<size_t>(b)];
        return la != lb ? la > lb : a < b;
    };
    std::vector<TokenId> ids(logits.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(), before);
    for (size_t i = 0; i < count; ++i)
        result.top.push_back(
            {ids[i], double{logits[static_cast<size_t>(ids[i])]} - log_sum, static_cast<int32_t>(i + 1)});
    return result;
}

}  // namespace runnel::decode
