#include "engine/commands/plot/scale.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace runnel::commands {

std::string short_number(double value) {
    static constexpr std::pair<double, const char *> kUnits[] = {
        {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
    const char *unit = "";
    for (const auto &[factor, name] : kUnits)
        if (std::abs(value) >= factor * (1 - 1e-9)) {
            value /= factor, unit = name;
            break;
        }
    char text[40];  // (adding 0 makes -0 a 0)
    std::snprintf(text, sizeof text, "%.4g%s", value + 0.0, unit);
    return text;
}

std::vector<double> ticks(double low, double high, bool logarithmic, int most) {
    std::vector<double> all;
    if (logarithmic) {
        const int first = static_cast<int>(std::floor(std::log10(low))),
                  last = static_cast<int>(std::ceil(std::log10(high)));
        const bool few = 3 * (last - first) <= most;
        const int every = std::max(1, (last - first + most - 1) / most);
        for (int power = first; power <= last; power += every)
            for (const double factor : {1.0, 2.0, 5.0}) {
                const double value = factor * std::pow(10, power);
                if ((factor == 1 || few) && value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9))
                    all.push_back(value);
            }
        if (all.size() >= 2 || few) return all;
        all.clear();
    }
    double step = std::pow(10, std::floor(std::log10((high - low) / most)));
    for (const double factor : {1.0, 2.0, 5.0, 10.0})
        if ((high - low) / (step * factor) <= most) {
            step *= factor;
            break;
        }
    const size_t limit = 2 * static_cast<size_t>(std::max(
                                 most, 1));  // ends the loop even if i is so large that ++i has no effect
    for (double i = std::ceil(low / step - 1e-9); i * step <= high + step * 1e-9 && all.size() < limit; ++i)
        all.push_back(i * step);
    return all;
}

Scale::Scale(std::vector<double> values, bool logarithmic) : logarithmic_(logarithmic), low_(0), high_(1) {
    std::erase_if(values, [&](double value) { return !shows(value); });
    if (values.empty()) {
        if (logarithmic) low_ = 0.1;
        return;
    }
    low_ = std::ranges::min(values), high_ = std::ranges::max(values);
    if (logarithmic) {
        low_ /= 1.1, high_ *= 1.1;
    } else {
        if (low_ > 0 && low_ < 0.5 * high_) low_ = 0;
        if (low_ == high_)
            low_ -= 0.5 * std::max(1.0, std::abs(low_)), high_ += 0.5 * std::max(1.0, std::abs(high_));
        high_ += 0.04 * (high_ - low_);
    }
}

bool Scale::shows(double value) const {
    return std::isfinite(value) && std::abs(value) < 1e300 && (!logarithmic_ || value > 1e-300);
}

double Scale::place(double value) const {
    if (logarithmic_) return std::log(value / low_) / std::log(high_ / low_);
    return (value - low_) / (high_ - low_);
}

Scales scales_of(const Plot &plot) {
    std::vector<double> x, y;
    for (const Series &series : plot.series)
        for (const auto &[at, value] : series.points) x.push_back(at), y.push_back(value);
    return {Scale(std::move(x), plot.x.logarithmic), Scale(std::move(y), plot.y.logarithmic)};
}

}  // namespace runnel::commands
