#include "engine/decode/candidates.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

namespace runnel::decode {

using text::TokenId;

namespace {

// Sorts the front of `set` by `less` and calls more(candidate) in that order until it returns false. Returns
// the number of candidates visited; only about that many are sorted.
template <class Less, class More>
size_t walk_in_order(std::vector<TokenProb> &set, Less less, More more) {
    size_t sorted = 0;
    while (sorted < set.size()) {
        const size_t next = std::min(set.size(), std::max<size_t>(64, sorted * 4));
        const auto from = set.begin() + static_cast<std::ptrdiff_t>(sorted);
        const auto to = set.begin() + static_cast<std::ptrdiff_t>(next);
        if (next < set.size()) std::nth_element(from, to, set.end(), less);
        std::sort(from, to, less);
        for (; sorted < next; ++sorted)
            if (!more(set[sorted])) return sorted + 1;
    }
    return sorted;
}

}  // namespace

bool by_logit(const TokenProb &a, const TokenProb &b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

double Distribution::probability_of(TokenId id) const {
    for (const TokenProb &c : candidates)
        if (c.id == id) return c.probability;
    return 0;
}

TokenId Distribution::pick(double uniform) const {
    assert(!candidates.empty());
    double sum = 0;
    for (const TokenProb &c : candidates) {
        sum += c.probability;
        if (uniform < sum) return c.id;
    }
    // Rounding left the sum at or below `uniform`: take the last token whose probability is not 0.
    for (size_t i = candidates.size(); i-- > 0;)
        if (candidates[i].probability > 0) return candidates[i].id;
    return candidates.back().id;
}

void CandidateSet::clear() {
    all().clear();
    sorted = false;
    temperature = 1;
}

float CandidateSet::largest_logit() const {
    float top = all().front().logit;
    for (const TokenProb &c : all()) top = std::max(top, c.logit);
    return top;
}

double CandidateSet::softmax() {
    const double top = double{largest_logit()};
    double sum = 0;
    for (TokenProb &c : all()) {
        c.probability = std::exp((double{c.logit} - top) / temperature);
        sum += c.probability;
    }
    for (TokenProb &c : all()) c.probability /= sum;
    return top / temperature + std::log(sum);
}

void CandidateSet::sort() {
    if (!sorted) std::sort(all().begin(), all().end(), by_logit);
    sorted = true;
}

void CandidateSet::keep_top_k(int32_t k) {
    if (k <= 0 || static_cast<size_t>(k) >= all().size()) return;
    const auto end = all().begin() + k;
    if (!sorted) std::partial_sort(all().begin(), end, all().end(), by_logit);
    all().erase(end, all().end());
    sorted = true;
}

void CandidateSet::keep_typical(float mass) {
    const double log_sum = softmax();
    const auto surprise = [&](const TokenProb &c) { return log_sum - double{c.logit} / temperature; };
    double entropy = 0;
    for (const TokenProb &c : all()) entropy += c.probability * surprise(c);
    const auto distance = [&](const TokenProb &c) { return std::abs(surprise(c) - entropy); };
    const auto by_distance = [&](const TokenProb &a, const TokenProb &b) {
        const double da = distance(a), db = distance(b);
        return da != db ? da < db : a.id < b.id;
    };
    double sum = 0;
    all().resize(walk_in_order(all(), by_distance, [&](const TokenProb &c) {
        sum += c.probability;
        return !(sum > double{mass});
    }));
    sorted = false;
    sort();
}

void CandidateSet::keep_top_p(float mass) {
    softmax();
    double sum = 0;
    const auto more = [&](const TokenProb &c) {
        sum += c.probability;
        return sum < double{mass};
    };
    if (!sorted) {
        all().resize(walk_in_order(all(), by_logit, more));
    } else {
        size_t kept = 0;
        while (kept < all().size() && more(all()[kept])) ++kept;
        all().resize(std::min(all().size(), kept + 1));
    }
    sorted = true;
}

void CandidateSet::keep_min_p(float share) {
    const double least = double{largest_logit()} + temperature * std::min(0.0, std::log(double{share}));
    std::erase_if(all(), [&](const TokenProb &c) { return double{c.logit} < least; });
    sort();
}

// The temperature would scale logits and deviation alike, so it does not change what is kept.
void CandidateSet::keep_top_n_sigma(float n) {
    double mean = 0, variance = 0;
    const auto count = static_cast<double>(all().size());
    for (const TokenProb &c : all()) mean += double{c.logit};
    mean /= count;
    for (const TokenProb &c : all()) variance += (double{c.logit} - mean) * (double{c.logit} - mean);
    const double least = double{largest_logit()} - double{n} * std::sqrt(variance / count);
    std::erase_if(all(), [&](const TokenProb &c) { return double{c.logit} < least; });
}

void CandidateSet::exclude_top(float threshold) {
    softmax();
    const auto above = [&](const TokenProb &c) { return c.probability >= double{threshold}; };
    const TokenProb *least = nullptr;
    for (const TokenProb &c : all())
        if (above(c) && (!least || by_logit(*least, c))) least = &c;
    if (!least) return;
    std::erase_if(all(), [&, kept = least->id](const TokenProb &c) { return above(c) && c.id != kept; });
}

void CandidateSet::keep_best() {
    const TokenProb best = *std::min_element(all().begin(), all().end(), by_logit);
    all().assign(1, best);
    sorted = true;
}

void CandidateSet::scale_by_entropy(double low, double high, float exponent) {
    constexpr double kNothing = 1e-9;
    if (all().size() <= 1) return;
    softmax();
    double entropy = 0;
    for (const TokenProb &c : all())
        if (c.probability > 0) entropy -= c.probability * std::log(c.probability);
    const double share = std::clamp(entropy / std::log(static_cast<double>(all().size())), 0.0, 1.0);
    const double chosen = low + (high - low) * std::pow(share, double{exponent});
    if (chosen < kNothing) return keep_best();
    temperature *= chosen;
}

void CandidateSet::keep_surprise_up_to(double mu) {
    softmax();
    sort();
    size_t kept = 0;
    while (kept < all().size() && !(-std::log2(all()[kept].probability) > mu)) ++kept;
    all().resize(std::max<size_t>(1, kept));
}

void CandidateSet::keep_mirostat_top_k(double mu, int32_t vocab) {
    constexpr size_t kEstimated = 100;
    softmax();
    sort();
    double products = 0, squares = 0;
    for (size_t i = 0; i + 1 < std::min(kEstimated, all().size()); ++i) {
        const double t = std::log(static_cast<double>(i + 2) / static_cast<double>(i + 1));
        const double b = (double{all()[i].logit} - double{all()[i + 1].logit}) / temperature;
        products += t * b;
        squares += t * t;
    }
    if (squares == 0) return;
    const double s = products / squares, e = s - 1;
    const double k = std::pow(e * std::exp2(mu) / (1 - std::pow(static_cast<double>(vocab), -e)), 1 / s);
    if (k < static_cast<double>(all().size())) all().resize(static_cast<size_t>(std::max(1.0, k)));
}

std::vector<double> CandidateSet::prefer_probability(double target) {
    constexpr double kPeak = 5, kSharpness = 10, kWidth = 0.3;
    softmax();
    std::vector<double> before;
    for (TokenProb &c : all()) {
        before.push_back(c.probability);
        const double distance = std::abs(c.probability - target) / kWidth;
        c.logit = static_cast<float>(kPeak - kSharpness * distance * distance / (1 + distance));
    }
    temperature = 1;
    sorted = false;
    return before;
}

void CandidateSet::apply_temperature() {
    for (TokenProb &c : all()) c.logit = static_cast<float>(double{c.logit} / temperature);
    temperature = 1;
}

}  // namespace runnel::decode
