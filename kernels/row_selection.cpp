#include "kernels/row_selection.h"

#include <algorithm>
#include <cassert>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <limits>

namespace runnel::kernels {
namespace {

constexpr float kRefused = -std::numeric_limits<float>::infinity();
constexpr float kNotFinite = std::numeric_limits<float>::quiet_NaN();

bool is_allowed(TokenMask mask, size_t token) {
    return mask.empty() || (mask[token / 64] >> token % 64 & 1) != 0;
}

bool comes_before(const TopLogit &a, const TopLogit &b) {
    if (std::isnan(a.logit) != std::isnan(b.logit)) return std::isnan(a.logit);
    if (a.logit > b.logit || a.logit < b.logit) return a.logit > b.logit;
    return a.token < b.token;
}

}  // namespace

void select_candidates(std::span<const float> logits, TokenMask mask, std::span<TopLogit> candidates) {
    assert(!candidates.empty() && candidates.size() <= logits.size());
    const auto begin = candidates.begin();
    auto end = begin;  // of a heap, whose front comes last
    for (size_t token = 0; token < logits.size(); ++token) {
        const bool full = end == candidates.end(), finite = std::abs(logits[token]) <= FLT_MAX;
        if (full && finite && logits[token] <= begin->logit)
            continue;  // a later token comes after its equals
        TopLogit one{static_cast<int32_t>(token), kNotFinite};
        if (finite) one.logit = is_allowed(mask, token) ? logits[token] : kRefused;
        if (full && !comes_before(one, *begin)) continue;
        if (full) std::pop_heap(begin, end--, comes_before);
        *end++ = one;
        std::push_heap(begin, end, comes_before);
    }
    std::sort_heap(begin, end, comes_before);
}

ExpSum sum_of_exp(std::span<const float> logits, TokenMask mask) {
    float largest = -FLT_MAX;
    for (size_t token = 0; token < logits.size(); ++token)
        if (is_allowed(mask, token)) largest = std::max(largest, logits[token]);
    ExpSum sum;
    sum.top = ExpSum::window_of(largest);
    for (size_t token = 0; token < logits.size(); ++token)
        if (is_allowed(mask, token)) sum.add_below_top(exp_power(logits[token]));
    return sum;
}

void join_candidates(std::span<std::span<const TopLogit>> sorted, std::span<TopLogit> candidates) {
    for (TopLogit &next : candidates) {
        std::span<const TopLogit> *first = nullptr;
        for (std::span<const TopLogit> &list : sorted)
            if (!list.empty() && (!first || comes_before(list.front(), first->front()))) first = &list;
        next = first->front();
        *first = first->subspan(1);
    }
}

TokenMask part_of_mask(TokenMask mask, const Range &tokens, std::vector<uint64_t> &memory) {
    const auto size = static_cast<size_t>(tokens.size()), begin = static_cast<size_t>(tokens.begin);
    memory.assign(mask.empty() ? 0 : (size + 63) / 64, 0);
    for (size_t word = 0; word < memory.size(); ++word) {
        const size_t from = begin / 64 + word, shift = begin % 64;
        memory[word] = mask[from] >> shift;
        if (shift > 0 && from + 1 < mask.size()) memory[word] |= mask[from + 1] << (64 - shift);
    }
    if (!memory.empty() && size % 64 > 0) memory.back() &= (uint64_t{1} << size % 64) - 1;
    return memory;
}

}  // namespace runnel::kernels
