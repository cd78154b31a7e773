#include "engine/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace runnel::model {
namespace {

// The (fractional) index of the pair that rotates `turns` times within the original context.
double yarn_correction(int32_t dimensions, double context, double turns, double base) {
    return dimensions * std::log(context / (turns * 2 * std::numbers::pi)) / (2 * std::log(base));
}

// The share of the unscaled frequency that pair j keeps: 1 for fast pairs, 0 for slow ones.
double yarn_mix(const RopeScaling &s, int32_t dimensions, double base, int32_t j) {
    const double low =
        std::max(0.0, std::floor(yarn_correction(dimensions, s.original_context, s.beta_fast, base)));
    const double high = std::min(
        dimensions - 1.0, std::ceil(yarn_correction(dimensions, s.original_context, s.beta_slow, base)));
    const double ramp = 1 - std::clamp((j - low) / std::max(0.001, high - low), 0.0, 1.0);
    return ramp * s.extrapolation;
}

double yarn_magnitude(const RopeScaling &s) {
    const auto gain = [&](double m) { return s.factor <= 1 ? 1.0 : 1 + 0.1 * m * std::log(s.factor); };
    return s.log_multiplier == 0 ? gain(1) : gain(1) / gain(s.log_multiplier);
}

}  // namespace

kernels::RopeTable make_rope(kernels::RopeTable::Pairs pairs, int32_t dimensions, double base,
                             const RopeScaling &scaling, std::span<const float> divisors) {
    kernels::RopeTable table;
    table.pairs = pairs;
    table.inv_freq.resize(static_cast<size_t>(dimensions / 2));
    const bool yarn = scaling.kind == RopeScaling::Kind::Yarn;
    for (int32_t j = 0; j < dimensions / 2; ++j) {
        double freq = std::pow(base, -2.0 * j / dimensions);
        if (!divisors.empty()) freq /= static_cast<double>(divisors[static_cast<size_t>(j)]);
        const double mix = yarn ? yarn_mix(scaling, dimensions, base, j) : 0;
        const double slow = scaling.kind == RopeScaling::Kind::None ? freq : freq / scaling.factor;
        table.inv_freq[static_cast<size_t>(j)] = slow * (1 - mix) + freq * mix;
    }
    table.magnitude = static_cast<float>((yarn ? yarn_magnitude(scaling) : 1.0) * scaling.attention_factor);
    return table;
}

}  // namespace runnel::model
