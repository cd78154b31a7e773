#include "kernels/cpu/route.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace runnel::kernels::cpu {
namespace {

// Scores that take part are finite or +infinity; excluded scores, and those already
// taken, are minus infinity.
constexpr float kOut = -std::numeric_limits<float>::infinity(),
                kLowest = std::numeric_limits<float>::lowest();
constexpr float kSmallestSum = 0x1p-14f;  // a smaller sum of weights is replaced by this

float taking_part(float score) noexcept {
    return score >= kLowest ? score : kLowest;  // NaN and minus infinity become the lowest
}

// p = exp(x - largest x) / sum. p may be x.
void softmax(const float *x, size_t n, const VectorKernels &vector, float *p) noexcept {
    const float largest = *std::max_element(x, x + n);
    for (size_t i = 0; i < n; ++i) p[i] = x[i] - largest;
    vector.exp(p, static_cast<int64_t>(n), p);
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += static_cast<double>(p[i]);
    for (size_t i = 0; i < n; ++i) p[i] = static_cast<float>(static_cast<double>(p[i]) / sum);
}

void sigmoid(const float *x, size_t n, const VectorKernels &vector, float *p) noexcept {
    for (size_t i = 0; i < n; ++i) p[i] = -x[i];
    vector.exp(p, static_cast<int64_t>(n), p);
    for (size_t i = 0; i < n; ++i) p[i] = 1 / (1 + p[i]);
}

// sqrt(ln(1 + exp(x)))
void sqrt_softplus(const float *x, size_t n, const VectorKernels &vector, float *p) noexcept {
    for (size_t i = 0; i < n; ++i) p[i] = -std::fabs(x[i]);
    vector.exp(p, static_cast<int64_t>(n), p);
    for (size_t i = 0; i < n; ++i)
        p[i] = static_cast<float>(std::sqrt(std::max(0.0, double{x[i]}) + std::log1p(double{p[i]})));
}

// Calls visit(index) for the `count` largest scores, largest first, by index among equals; sets them to kOut.
template <typename Visit>
void take_largest(std::span<float> s, int32_t count, Visit visit) noexcept {
    for (int32_t i = 0; i < count; ++i) {
        const auto best = std::max_element(s.begin(), s.end());
        visit(static_cast<size_t>(best - s.begin()));
        *best = kOut;
    }
}

// Excludes the experts of all but the best groups. copy, totals: work space, [experts] and [groups].
void drop_groups(const Routing &routing, std::span<float> s, float *copy, float *totals) noexcept {
    const size_t groups = static_cast<size_t>(routing.groups), size = s.size() / groups;
    std::copy(s.begin(), s.end(), copy);
    for (size_t g = 0; g < groups; ++g) {
        float total = 0;
        take_largest({copy + g * size, size}, routing.group_best,
                     [&](size_t i) { total += s[g * size + i]; });
        totals[g] = taking_part(total);
    }
    take_largest({totals, groups}, routing.groups_used, [](size_t) {});
    for (size_t i = 0; i < s.size(); ++i)
        if (totals[i / size] != kOut) s[i] = kOut;  // not in a chosen group
}

// Steps 1 and 2 of Routing: p, and the scores s by which experts are chosen.
void score(const Routing &routing, std::span<const float> logits, const float *bias,
           const VectorKernels &vector, float *p, float *s) noexcept {
    const size_t n = logits.size();
    if (routing.score == Routing::Score::Softmax)
        softmax(logits.data(), n, vector, p);
    else if (routing.score == Routing::Score::Sigmoid)
        sigmoid(logits.data(), n, vector, p);
    else if (routing.score == Routing::Score::SqrtSoftplus)
        sqrt_softplus(logits.data(), n, vector, p);
    else
        std::copy(logits.begin(), logits.end(), p);
    const bool by_logit = bias == nullptr && routing.groups <= 1;
    for (size_t i = 0; i < n; ++i) s[i] = taking_part(by_logit ? logits[i] : bias ? p[i] + bias[i] : p[i]);
}

// The weight of a chosen expert (Routing::Score::SparseMixer). exponents: work space, [experts].
float mixer_weight(std::span<const float> logits, size_t own, const VectorKernels &vector,
                   float *exponents) noexcept {
    const float l = taking_part(logits[own]);
    int64_t count = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
        const float other = taking_part(logits[i]), distance = l - other;
        const bool after = other < l || (other == l && i > own);
        if (after && distance <= Routing::kNear * std::max(std::fabs(other), l))
            exponents[count++] = -distance;
    }
    vector.exp(exponents, count, exponents);
    double sum = 1;
    for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(exponents[i]);
    return static_cast<float>(1 / sum);
}

}  // namespace

size_t route_scratch(int64_t experts) {
    return 4 * static_cast<size_t>(experts);
}

void route(const Routing &routing, std::span<const float> logits, const float *selection_bias,
           const VectorKernels &vector, float *scratch, int32_t *chosen, float *weights,
           const float *given) noexcept {
    const size_t n = logits.size(), used = static_cast<size_t>(routing.used);
    float *p = scratch, *s = scratch + n;
    score(routing, logits, selection_bias, vector, p, s);
    if (given != nullptr) {
        for (size_t i = 0; i < used; ++i) chosen[i] = static_cast<int32_t>(given[i]);
    } else {
        if (routing.groups > 1) drop_groups(routing, {s, n}, scratch + 2 * n, scratch + 3 * n);
        int32_t *next = chosen;
        take_largest({s, n}, routing.used, [&](size_t i) { *next++ = static_cast<int32_t>(i); });
        std::sort(chosen, next);
    }
    for (size_t i = 0; i < used; ++i) weights[i] = p[chosen[i]];
    if (routing.score == Routing::Score::SelectedSoftmax) softmax(weights, used, vector, weights);
    if (routing.score == Routing::Score::SparseMixer)
        for (size_t i = 0; i < used; ++i)
            weights[i] = mixer_weight(logits, static_cast<size_t>(chosen[i]), vector, scratch + 2 * n);
    if (routing.normalize) {
        double sum = 0;
        for (size_t i = 0; i < used; ++i) sum += static_cast<double>(weights[i]);
        const float divisor = std::max(static_cast<float>(sum), kSmallestSum);
        for (size_t i = 0; i < used; ++i) weights[i] /= divisor;
    }
    for (size_t i = 0; i < used; ++i) weights[i] *= routing.scale;
}

}  // namespace runnel::kernels::cpu
