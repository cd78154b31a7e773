// Maps the values of an axis to positions on it.
#pragma once

#include <string>
#include <vector>

#include "engine/commands/plot/plot.h"

namespace runnel::commands {

class Scale {
  public:
    // Covers all `values` that the axis can show, with a small margin. A linear axis begins at 0 if 0 is
    // near.
    Scale(std::vector<double> values, bool logarithmic);
    bool shows(double value) const;
    double place(double value) const;  // 0 .. 1
    double low() const { return low_; }
    double high() const { return high_; }
    std::vector<double> ticks(int most) const { return commands::ticks(low_, high_, logarithmic_, most); }

  private:
    bool logarithmic_;
    double low_, high_;
};

struct Scales {
    Scale x, y;
    bool shows(const std::pair<double, double> &point) const {
        return x.shows(point.first) && y.shows(point.second);
    }
};
Scales scales_of(const Plot &plot);

}  // namespace runnel::commands
