#include <algorithm>

#include "engine/commands/plot/scale.h"
#include "engine/commands/plot/svg.h"

namespace runnel::commands {
namespace {

constexpr double kWidth = 760, kHeight = 460, kLeft = 84, kRight = 24, kTop = 52, kBottom = 62;
constexpr double kLegendLine = 20;
// The palette of Okabe and Ito, whose colors color-blind people can tell apart.
constexpr const char *kColors[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                   "#E69F00", "#56B4E9", "#000000", "#999999"};

std::string line_at(double x0, double y0, double x1, double y1, const char *color) {
    return "<line x1=\"" + svg_number(x0) + "\" y1=\"" + svg_number(y0) + "\" x2=\"" + svg_number(x1) +
           "\" y2=\"" + svg_number(y1) + "\" stroke=\"" + color + "\"/>\n";
}

// The drawing area, in pixels.
struct Area {
    const Scales &scales;
    double height;  // of the picture
    double x(double value) const { return kLeft + scales.x.place(value) * (kWidth - kLeft - kRight); }
    double y(double value) const {
        return height - kBottom - scales.y.place(value) * (height - kTop - kBottom);
    }
    double bottom() const { return height - kBottom; }
};

std::string axes(const Plot &plot, const Area &area) {
    std::string text;
    for (const double tick : area.scales.x.ticks(9)) {
        text += line_at(area.x(tick), kTop, area.x(tick), area.bottom(), "#e4e4e4");
        text += svg_text(area.x(tick), area.bottom() + 18, "middle", short_number(tick));
    }
    for (const double tick : area.scales.y.ticks(8)) {
        text += line_at(kLeft, area.y(tick), kWidth - kRight, area.y(tick), "#e4e4e4");
        text += svg_text(kLeft - 8, area.y(tick) + 4, "end", short_number(tick));
    }
    text += line_at(kLeft, kTop, kLeft, area.bottom(), "#333");
    text += line_at(kLeft, area.bottom(), kWidth - kRight, area.bottom(), "#333");
    text += svg_text((kLeft + kWidth - kRight) / 2, area.bottom() + 42, "middle", plot.x.label);
    const double middle = (kTop + area.bottom()) / 2;
    text += svg_text(20, middle, "middle", plot.y.label,
                     " transform=\"rotate(-90 20 " + svg_number(middle) + ")\"");
    return text;
}

std::string drawn(const Series &series, const Area &area, const char *color) {
    std::string path, dots;
    for (const auto &point : series.points) {
        if (!area.scales.shows(point)) continue;
        const std::string x = svg_number(area.x(point.first)), y = svg_number(area.y(point.second));
        path += (path.empty() ? "" : " ") + x + "," + y;
        if (series.style == Series::Style::Curve) continue;
        dots += "<circle cx=\"" + x + "\" cy=\"" + y + "\" r=\"" +
                (series.style == Series::Style::Points ? "4.5" : "3") + "\" fill=\"" + color + "\"/>\n";
    }
    if (series.style != Series::Style::Points)
        dots = "<polyline points=\"" + path + "\" fill=\"none\" stroke=\"" + color +
               "\" stroke-width=\"2\"/>\n" + dots;
    return dots;
}

}  // namespace

std::string svg_plot(const Plot &plot) {
    const Scales scales = scales_of(plot);
    // The legend below the axis has two columns.
    const auto rows = static_cast<double>((plot.series.size() + 1) / 2);
    const double below = rows * kLegendLine + 8;
    const Area area{scales, kHeight};
    std::string text = svg_begin(kWidth, kHeight + below);
    text += svg_text(kLeft, 28, "start", plot.title, " font-size=\"16\" font-weight=\"bold\"");
    text += axes(plot, area);
    for (size_t i = 0; i < plot.series.size(); ++i) {
        const char *const color = kColors[i % std::size(kColors)];
        text += drawn(plot.series[i], area, color);
        const double x = i % 2 == 0 ? kLeft : (kLeft + kWidth) / 2;
        const double y = kHeight + static_cast<double>(i / 2) * kLegendLine;
        text += "<circle cx=\"" + svg_number(x) + "\" cy=\"" + svg_number(y - 4) + "\" r=\"5\" fill=\"" +
                color + "\"/>\n";
        text += svg_text(x + 12, y, "start", plot.series[i].name);
    }
    return text + "</svg>\n";
}

}  // namespace runnel::commands
