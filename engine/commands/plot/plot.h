// Plots of a few series over one axis: as text for a terminal, and as a self-contained SVG file.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace runnel::commands {

struct Series {
    enum class Style { Line, Points, Curve };  // Line: joined points; Curve: a line without points
    std::string name;
    std::vector<std::pair<double, double>> points;
    Style style = Style::Line;
};

struct Axis {
    std::string label;  // with the unit: "context, tokens"
    bool logarithmic = false;
};

struct Plot {
    std::string title;  // one line: what the plot shows
    Axis x, y;
    std::vector<Series> series;  // at most 8
};

struct PlotSize {
    int columns = 80, rows = 20;  // rows of the drawing, without title, axes and legend
    bool ascii = false;           // no braille characters
};

// The number as an axis shows it: "0", "250", "1.5k", "16M", "0.01".
std::string short_number(double value);

// Ascending tick values for an axis from `low` to `high`, within these bounds. On a linear axis they are multiples
// of 1, 2 or 5 times a power of ten; on a logarithmic axis powers of ten, with 2 and 5 times these if there are few.
std::vector<double> ticks(double low, double high, bool logarithmic, int most);

// Lines of at most `columns` columns. Points that are not finite, or not positive on a logarithmic axis, are
// left out. If no point is left, the text says so.
std::string terminal_plot(const Plot &plot, const PlotSize &size = {});

// PlotSize for this terminal: ASCII if TERM is dumb or the locale is not UTF-8.
PlotSize plot_size();

// A whole SVG document; text is escaped.
std::string svg_plot(const Plot &plot);

}  // namespace runnel::commands
