#include <algorithm>
#include <cstdio>

#include "engine/commands/plot/scale.h"

namespace runnel::commands {
namespace {

constexpr double kWidth = 760, kHeight = 460, kLeft = 84, kRight = 24, kTop = 52, kBottom = 62;
constexpr double kLegendLine = 20;
// The palette of Okabe and Ito, whose colors color-blind people can tell apart.
constexpr const char *kColors[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                   "#E69F00", "#56B4E9", "#000000", "#999999"};

std::string escaped(const std::string &text) {
    std::string result;
    for (const char c : text) switch (c) {
            case '&':
                result += "&amp;";
                break;
            case '<':
                result += "&lt;";
                break;
            case '>':
                result += "&gt;";
                break;
            case '"':
                result += "&quot;";
                break;
            default:
                result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
        }
    return result;
}

std::string fixed(double value) {
    char text[40];
    std::snprintf(text, sizeof text, "%.1f", value);
    return text;
}

std::string text_at(double x, double y, const char *anchor, const std::string &text,
                    const std::string &more = "") {
    return "<text x=\"" + fixed(x) + "\" y=\"" + fixed(y) + "\" text-anchor=\"" + anchor + "\"" + more + ">" +
           escaped(text) + "</text>\n";
}

std::string line_at(double x0, double y0, double x1, double y1, const char *color) {
    return "<line x1=\"" + fixed(x0) + "\" y1=\"" + fixed(y0) + "\" x2=\"" + fixed(x1) + "\" y2=\"" +
           fixed(y1) + "\" stroke=\"" + color + "\"/>\n";
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
        text += text_at(area.x(tick), area.bottom() + 18, "middle", short_number(tick));
    }
    for (const double tick : area.scales.y.ticks(8)) {
        text += line_at(kLeft, area.y(tick), kWidth - kRight, area.y(tick), "#e4e4e4");
        text += text_at(kLeft - 8, area.y(tick) + 4, "end", short_number(tick));
    }
    text += line_at(kLeft, kTop, kLeft, area.bottom(), "#333");
    text += line_at(kLeft, area.bottom(), kWidth - kRight, area.bottom(), "#333");
    text += text_at((kLeft + kWidth - kRight) / 2, area.bottom() + 42, "middle", plot.x.label);
    const double middle = (kTop + area.bottom()) / 2;
    text +=
        text_at(20, middle, "middle", plot.y.label, " transform=\"rotate(-90 20 " + fixed(middle) + ")\"");
    return text;
}

std::string drawn(const Series &series, const Area &area, const char *color) {
    std::string path, dots;
    for (const auto &point : series.points) {
        if (!area.scales.shows(point)) continue;
        const std::string x = fixed(area.x(point.first)), y = fixed(area.y(point.second));
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
    const std::string size = fixed(kWidth) + "\" height=\"" + fixed(kHeight + below);
    std::string text = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + size + "\" viewBox=\"0 0 " +
                       fixed(kWidth) + " " + fixed(kHeight + below) +
                       "\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n"
                       "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
    text += text_at(kLeft, 28, "start", plot.title, " font-size=\"16\" font-weight=\"bold\"");
    text += axes(plot, area);
    for (size_t i = 0; i < plot.series.size(); ++i) {
        const char *const color = kColors[i % std::size(kColors)];
        text += drawn(plot.series[i], area, color);
        const double x = i % 2 == 0 ? kLeft : (kLeft + kWidth) / 2;
        const double y = kHeight + static_cast<double>(i / 2) * kLegendLine;
        text +=
            "<circle cx=\"" + fixed(x) + "\" cy=\"" + fixed(y - 4) + "\" r=\"5\" fill=\"" + color + "\"/>\n";
        text += text_at(x + 12, y, "start", plot.series[i].name);
    }
    return text + "</svg>\n";
}

}  // namespace runnel::commands
