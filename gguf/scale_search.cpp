#include "gguf/scale_search.h"

#include <algorithm>
#include <cmath>

namespace runnel::gguf {
namespace {

// Groups whose largest magnitude is below this are treated as zeros.
constexpr float kNothing = 1e-15f;
constexpr int kDescents = 5;

// The value of largest magnitude, with its sign; the first among equals.
float extreme(std::span<const float> x) {
    float best = 0, magnitude = 0;
    for (const float value : x)
        if (const float a = std::fabs(value); a > magnitude) magnitude = a, best = value;
    return best;
}

// Sums over a group for one choice of levels: the best scale is xl / ll, its gain xl^2 / ll.
struct Products {
    float xl = 0, ll = 0;

    void add(float weight, float x, int level) {
        const auto l = static_cast<float>(level);
        xl += weight * x * l;
        ll += weight * l * l;
    }
    float scale() const { return xl / ll; }
    float scale_or_zero() const { return ll > 0 ? xl / ll : 0; }
};

int symmetric_level(float x, float inverse, int top) {
    return std::clamp(nearest_int(inverse * x), -top, top - 1);
}

}  // namespace

float search_symmetric(std::span<const float> x, int top, std::span<const float> weights, int8_t *levels) {
    const float largest = extreme(x);
    if (!(std::fabs(largest) >= kNothing)) {
        std::fill_n(levels, x.size(), int8_t{0});
        return 0;
    }
    const auto weight = [&](size_t i) { return weights.empty() ? x[i] * x[i] : weights[i]; };
    const auto products = [&](float inverse) {
        Products sums;
        for (size_t i = 0; i < x.size(); ++i) sums.add(weight(i), x[i], symmetric_level(x[i], inverse, top));
        return sums;
    };
    const auto write = [&](float inverse) {
        for (size_t i = 0; i < x.size(); ++i)
            levels[i] = static_cast<int8_t>(symmetric_level(x[i], inverse, top) + top);
    };
    const auto n = static_cast<float>(top);
    float inverse = -n / largest;
    const Products first = products(inverse);
    float scale = first.ll != 0 ? first.scale() : 0;
    float best = scale * first.xl;
    write(inverse);
    for (int k = -9; k <= 9; ++k) {
        if (k == 0) continue;
        inverse = -(n + 0.1f * static_cast<float>(k)) / largest;
        const Products sums = products(inverse);
        if (sums.ll > 0 && sums.xl * sums.xl > best * sums.ll) {
            write(inverse);
            scale = sums.scale();
            best = scale * sums.xl;
        }
    }
    return scale;
}

float descend_symmetric(std::span<const float> x, int top, int8_t *levels) {
    const float largest = extreme(x);
    if (!(std::fabs(largest) >= kNothing)) {
        std::fill_n(levels, x.size(), int8_t{0});
        return 0;
    }
    const float inverse = -static_cast<float>(top) / largest;
    Products sums;
    for (size_t i = 0; i < x.size(); ++i) {
        levels[i] = static_cast<int8_t>(symmetric_level(x[i], inverse, top));
        sums.add(x[i] * x[i], x[i], levels[i]);
    }
    for (int round = 0; round < kDescents; ++round) {
        bool changed = false;
        for (size_t i = 0; i < x.size(); ++i) {
            const float w = x[i] * x[i], level = levels[i];
            float xl = sums.xl - w * x[i] * level;  // without this value
            if (!(xl > 0)) continue;
            float ll = sums.ll - w * level * level;
            const int moved = std::clamp(nearest_int(x[i] * ll / xl), -top, top - 1);
            if (moved == levels[i]) continue;
            const auto m = static_cast<float>(moved);
            xl += w * x[i] * m;
            ll += w * m * m;
            if (ll > 0 && xl * xl * sums.ll > sums.xl * sums.xl * ll) {
                levels[i] = static_cast<int8_t>(moved);
                sums = {xl, ll};
                changed = true;
            }
        }
        if (!changed) break;
    }
    for (size_t i = 0; i < x.size(); ++i) levels[i] = static_cast<int8_t>(levels[i] + top);
    return sums.scale_or_zero();
}

float search_positive(std::span<const float> x, int top, std::span<const float> weights, uint8_t *levels) {
    float largest = 0;
    for (const float value : x) largest = std::max(largest, value);
    if (!(largest >= kNothing)) {
        std::fill_n(levels, x.size(), uint8_t{0});
        return 0;
    }
    const auto n = static_cast<float>(top);
    const auto error = [&](float inverse, bool first) {
        const float scale = 1 / inverse;
        float sum = 0;
        for (size_t i = 0; i < x.size(); ++i) {
            int level = nearest_int(inverse * x[i]);
            level = first ? static_cast<uint8_t>(level) : std::min(top, level);
            const float difference = x[i] - scale * static_cast<float>(level);
            sum += weights[i] * difference * difference;
        }
        return sum;
    };
    float best_inverse = n / largest, best = error(best_inverse, true);
    for (int k = -4; k <= 4; ++k) {
        if (k == 0) continue;
        const float inverse = (0.1f * static_cast<float>(k) + n) / largest;
        if (const float now = error(inverse, false); now < best) best = now, best_inverse = inverse;
    }
    Products sums;
    for (size_t i = 0; i < x.size(); ++i) {
        const int level = std::min(top, nearest_int(best_inverse * x[i]));
        levels[i] = static_cast<uint8_t>(level);
        sums.add(weights[i], x[i], level);
    }
    for (int round = 0; round < kDescents; ++round) {
        bool changed = false;
        for (size_t i = 0; i < x.size(); ++i) {
            const float w = weights[i], level = levels[i];
            float xl = sums.xl - w * x[i] * level, ll = sums.ll - w * level * level;
            if (!(xl > 0 && ll > 0)) continue;
            const int moved = std::min(top, nearest_int(x[i] * ll / xl));
            if (moved == levels[i]) continue;
            const auto m = static_cast<float>(moved);
            xl += w * x[i] * m;
            ll += w * m * m;
            if (xl * xl * sums.ll > sums.xl * sums.xl * ll) {
                levels[i] = static_cast<uint8_t>(moved);
                sums = {xl, ll};
                changed = true;
            }
        }
        if (!changed) break;
    }
    return sums.scale_or_zero();
}

ScaleAndMinimum search_affine(std::span<const float> x, int top, std::span<const float> weights,
                              AffineCandidates candidates, uint8_t *levels) {
    const size_t count = x.size();
    float low = x[0], high = x[0], sum_w = weights[0], sum_x = sum_w * x[0];
    for (size_t i = 1; i < count; ++i) {
        low = std::min(low, x[i]);
        high = std::max(high, x[i]);
        sum_w += weights[i];
        sum_x += weights[i] * x[i];
    }
    if (low > 0) low = 0;
    if (!(high > low)) {
        std::fill_n(levels, count, uint8_t{0});
        return {0, -low};
    }
    const auto n = static_cast<float>(top);
    const auto level_of = [&](float value, float inverse) {
        return std::clamp(nearest_int(inverse * (value - low)), 0, top);
    };
    const auto error = [&](const uint8_t *chosen, float scale, float minimum) {
        float sum = 0;
        for (size_t i = 0; i < count; ++i) {
            const float difference = scale * static_cast<float>(chosen[i]) + minimum - x[i];
            sum += weights[i] * (candidates.absolute_error ? std::fabs(difference) : difference * difference);
        }
        return sum;
    };
    const float range = high - low, inverse = n / range;
    float scale = 1 / inverse;
    for (size_t i = 0; i < count; ++i) levels[i] = static_cast<uint8_t>(level_of(x[i], inverse));
    float best = error(levels, scale, low);
    uint8_t tried[kLargestGroup];
    for (int k = 0; k <= candidates.last; ++k) {
        // A better minimum found by one candidate is used by the candidates after it as well.
        const float step = (candidates.first + candidates.step * static_cast<float>(k) + n) / (high - low);
        float l_sum = 0, ll_sum = 0, xl_sum = 0;
        for (size_t i = 0; i < count; ++i) {
            const int level = level_of(x[i], step);
            const auto l = static_cast<float>(level);
            tried[i] = static_cast<uint8_t>(level);
            l_sum += weights[i] * l;
            ll_sum += weights[i] * l * l;
            xl_sum += weights[i] * l * x[i];
        }
        const float determinant = sum_w * ll_sum - l_sum * l_sum;
        if (!(determinant > 0)) continue;
        float now_scale = (sum_w * xl_sum - sum_x * l_sum) / determinant;
        float now_low = (ll_sum * sum_x - l_sum * xl_sum) / determinant;
        if (now_low > 0) {
            now_low = 0;
            now_scale = xl_sum / ll_sum;
        }
        if (const float now = error(tried, now_scale, now_low); now < best) {
            std::copy_n(tried, count, levels);
            best = now;
            scale = now_scale;
            low = now_low;
        }
    }
    return {scale, -low};
}

}  // namespace runnel::gguf
