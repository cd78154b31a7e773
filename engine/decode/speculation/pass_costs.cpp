#include "engine/decode/speculation/pass_costs.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <vector>

#include "engine/decode/speculation/pass_trial.h"

namespace runnel::decode {
namespace {

constexpr auto kSizes = PassCosts::kSizes;

// In plain steps; measured on two cores with AVX2, 1.1 billion weights in Q4_K.
constexpr Pass kCommon[] = {{1, 1}, {2, 1.5}, {4, 2.6}, {8, 3.7}, {16, 5.8}, {32, 9.4}};

// An observation is valid for this many passes.
constexpr uint64_t kMemory = 200;
constexpr size_t kEnough = 3;  // observations of a size before they correct it

size_t nearest_size(int32_t tokens) {
    const auto above = std::ranges::lower_bound(kSizes, tokens);
    if (above == kSizes.begin()) return 0;
    if (above == kSizes.end()) return kSizes.size() - 1;
    const auto index = static_cast<size_t>(above - kSizes.begin());
    return kSizes[index] - tokens < tokens - kSizes[index - 1] ? index : index - 1;
}

// Piecewise linear interpolation of `known`, the costs at kSizes.
double interpolate(const std::array<double, kSizes.size()> &known, int32_t tokens) {
    const auto above = std::ranges::lower_bound(kSizes, tokens);
    const size_t right =
        std::clamp<size_t>(static_cast<size_t>(above - kSizes.begin()), 1, kSizes.size() - 1);
    const double share =
        static_cast<double>(tokens - kSizes[right - 1]) / (kSizes[right] - kSizes[right - 1]);
    return known[right - 1] + share * (known[right] - known[right - 1]);
}

// The median of each size, ascending in size and in cost: if a larger size came out cheaper than a smaller
// one, both get their mean (isotonic regression by pooling adjacent violators, Ayer et al. 1955).
std::vector<Pass> medians(std::span<const Pass> measured) {
    std::vector<Pass> sorted(measured.begin(), measured.end());
    std::ranges::sort(sorted, {}, [](const Pass &p) { return std::pair(p.tokens, p.seconds); });
    std::vector<Pass> result;
    struct Pool {
        double seconds, count;
        size_t sizes;
    };
    std::vector<Pool> pools;
    for (auto first = sorted.begin(); first != sorted.end();) {
        const auto end =
            std::find_if(first, sorted.end(), [&](const Pass &p) { return p.tokens != first->tokens; });
        const auto n = end - first;
        result.push_back({first->tokens, 0});
        pools.push_back({(first[(n - 1) / 2].seconds + first[n / 2].seconds) / 2, static_cast<double>(n), 1});
        while (pools.size() > 1 && pools.back().seconds < pools.end()[-2].seconds) {
            const Pool above = pools.back();
            pools.pop_back();
            Pool &pool = pools.back();
            const double count = pool.count + above.count;
            pool = {(pool.seconds * pool.count + above.seconds * above.count) / count, count,
                    pool.sizes + above.sizes};
        }
        first = end;
    }
    auto size = result.begin();
    for (const Pool &pool : pools)
        for (size_t i = 0; i < pool.sizes; ++i) (size++)->seconds = pool.seconds;
    return result;
}

// The cost of a pass of `tokens`, interpolated from the sizes in `known` (at least one).
double cost_by(const std::vector<Pass> &known, int32_t tokens) {
    if (known.size() == 1) {  // scaled as on a common machine
        const std::vector<Pass> common(std::begin(kCommon), std::end(kCommon));
        return known[0].seconds * cost_by(common, tokens) / cost_by(common, known[0].tokens);
    }
    auto right = std::ranges::lower_bound(known, tokens, {}, &Pass::tokens);
    if (right == known.begin()) ++right;
    if (right == known.end()) --right;
    const Pass &a = right[-1], &b = *right;
    const double slope = (b.seconds - a.seconds) / (b.tokens - a.tokens);
    return std::max(a.seconds + slope * (tokens - a.tokens), 0.5 * known.front().seconds);
}

}  // namespace

PassCosts::PassCosts() : PassCosts(kCommon) {}

PassCosts::PassCosts(std::span<const Pass> measured) {
    assert(!measured.empty());
    const std::vector<Pass> known = medians(measured);
    for (size_t i = 0; i < kSizes.size(); ++i) measured_[i] = cost_by(known, kSizes[i]);
    seconds_ = measured_;
}

double PassCosts::correction(size_t size) const {
    const Correction &own = corrections_[size];
    if (own.ratio.count() >= kEnough && passes_ - own.last < kMemory) return own.ratio.value();
    return all_.empty() ? 1.0 : all_.value();
}

double PassCosts::seconds(int32_t tokens) const {
    assert(tokens >= 1);
    return interpolate(seconds_, tokens);
}

void PassCosts::observe(const Pass &pass) {
    if (pass.tokens < 1 || pass.tokens > 2 * kSizes.back() || !(pass.seconds > 0)) return;
    const double ratio = pass.seconds / interpolate(measured_, pass.tokens);
    Correction &own = corrections_[nearest_size(pass.tokens)];
    own.ratio.add(ratio);
    own.last = ++passes_;
    all_.add(ratio);
    for (size_t i = 0; i < kSizes.size(); ++i) {
        seconds_[i] = measured_[i] * correction(i);
        if (i > 0) seconds_[i] = std::max(seconds_[i], seconds_[i - 1]);
    }
}

PassCosts measure_pass_costs(const Sequence &sequence, double steps, const StopRequest *stop,
                             int32_t candidates) {
    PassTrial trial(sequence, candidates);
    if (!trial.seconds_of(1, stop)) return PassCosts();  // not counted: allocates memory, copies a block
    std::vector<Pass> passes;
    double spent = 0;
    const auto measure = [&](int32_t tokens) {
        const auto seconds = trial.seconds_of(tokens, stop);
        if (seconds) passes.push_back({tokens, *seconds});
        spent += seconds.value_or(0);
        return seconds.has_value();
    };
    if (!measure(1)) return PassCosts();
    measure(4);
    // Other sizes are measured while the budget allows, at the costs of a common machine. Every round
    // measures all sizes again, so that a burst of other work does not hit one size alone.
    const double plain = passes.front().seconds, budget = (steps - 1) * plain;
    const PassCosts common;
    constexpr std::array<int32_t, 10> kOrder{8, 2, 1, 4, 16, 6, 3, 12, 32, 24};
    for (int round = 0; round < 5; ++round)
        for (const int32_t tokens : kOrder)
            if (spent + plain * common.seconds(tokens) <= budget) measure(tokens);
    return PassCosts(passes);
}

}  // namespace runnel::decode
