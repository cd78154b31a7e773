#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "engine/commands/plot/scale.h"

namespace runnel::commands {
namespace {

constexpr char kMarks[] = {'o', 'x', '+', '*', '#', '@', '%', '='};
constexpr int kMargin = 9;  // columns for the numbers of the vertical axis

char mark_of(size_t series) {
    return kMarks[series % std::size(kMarks)];
}

// A drawing made of dots, 2 x 4 per braille character, with marks on top.
class Canvas {
  public:
    Canvas(int columns, int rows)
        : columns_(columns),
          rows_(rows),
          dots_(static_cast<size_t>(columns * rows), 0),
          marks_(dots_.size(), '\0') {}

    // Coordinates from 0 to 1, from the left and from the bottom.
    void dot(double x, double y) {
        const int column = place(x, 2 * columns_), row = 4 * rows_ - 1 - place(y, 4 * rows_);
        static constexpr uint8_t kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
        dots_[cell(column / 2, row / 4)] |= kBits[row % 4][column % 2];
    }
    void line(double x0, double y0, double x1, double y1) {
        const double length = std::max(std::abs(x1 - x0) * 2 * columns_, std::abs(y1 - y0) * 4 * rows_);
        const int steps = std::max(1, static_cast<int>(std::ceil(length)));
        for (int i = 0; i <= steps; ++i) {
            const double part = static_cast<double>(i) / steps;
            dot(x0 + part * (x1 - x0), y0 + part * (y1 - y0));
        }
    }
    void mark(double x, double y, char with) {
        marks_[cell(place(x, columns_), rows_ - 1 - place(y, rows_))] = with;
    }
    std::string row(int row, bool ascii) const {
        std::string text;
        for (int column = 0; column < columns_; ++column) {
            const uint8_t dots = dots_[cell(column, row)];
            if (const char mark = marks_[cell(column, row)])
                text += mark;
            else if (dots == 0)
                text += ' ';
            else if (ascii)
                text += '.';
            else  // U+2800 + dots
                text +=
                    {'\xe2', static_cast<char>(0xa0 | (dots >> 6)), static_cast<char>(0x80 | (dots & 0x3f))};
        }
        text.erase(text.find_last_not_of(' ') + 1);
        return text;
    }

  private:
    static int place(double part, int count) {
        return std::clamp(static_cast<int>(part * count), 0, count - 1);
    }
    size_t cell(int column, int row) const { return static_cast<size_t>(row * columns_ + column); }
    int columns_, rows_;
    std::vector<uint8_t> dots_;
    std::vector<char> marks_;
};

void draw(Canvas &canvas, const Plot &plot, const Scales &scales) {
    for (const Series &series : plot.series) {
        if (series.style == Series::Style::Points) continue;
        const std::pair<double, double> *before = nullptr;
        for (const auto &point : series.points) {
            if (!scales.shows(point)) continue;
            if (before)
                canvas.line(scales.x.place(before->first), scales.y.place(before->second),
                            scales.x.place(point.first), scales.y.place(point.second));
            before = &point;
        }
    }
    for (size_t i = 0; i < plot.series.size(); ++i)
        for (const auto &point : plot.series[i].points)
            if (plot.series[i].style != Series::Style::Curve && scales.shows(point))
                canvas.mark(scales.x.place(point.first), scales.y.place(point.second), mark_of(i));
}

std::string padded(std::string text, int columns) {
    if (static_cast<int>(text.size()) < columns)
        text.insert(0, static_cast<size_t>(columns) - text.size(), ' ');
    return text;
}

// The line below the drawing: a number centered under each tick, if there is space.
std::string tick_line(const Scale &scale, int columns) {
    std::string text(static_cast<size_t>(columns), ' ');
    int free = 0;
    for (const double tick : scale.ticks(columns / 9)) {
        const std::string number = short_number(tick);
        const int width = static_cast<int>(number.size());
        const int center = static_cast<int>(scale.place(tick) * columns);
        const int begin = std::clamp(center - width / 2, 0, columns - width);
        if (begin < free) continue;
        text.replace(static_cast<size_t>(begin), number.size(), number);
        free = begin + width + 1;
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
}

// At most the first `columns` bytes; labels are ASCII.
std::string cut(const std::string &text, int columns) {
    return text.substr(0, static_cast<size_t>(columns));
}

std::string legend(const Plot &plot, int columns) {
    std::string text, line;
    for (size_t i = 0; i < plot.series.size(); ++i) {
        const bool curve = plot.series[i].style == Series::Style::Curve;
        const std::string entry =
            cut(std::string(1, curve ? '-' : mark_of(i)) + " " + plot.series[i].name, columns - 2);
        if (!line.empty() && line.size() + 3 + entry.size() > static_cast<size_t>(columns)) {
            text += line + "\n";
            line.clear();
        }
        line += (line.empty() ? "  " : "   ") + entry;
    }
    return text + line + "\n";
}

}  // namespace

PlotSize plot_size() {
    PlotSize size;
    const char *const term = std::getenv("TERM");
    if (term != nullptr && std::strcmp(term, "dumb") == 0) size.ascii = true;
    for (const char *name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
        const char *const value = std::getenv(name);
        if (value == nullptr || *value == '\0') continue;
        const std::string locale = value;
        if (locale.find("UTF-8") == std::string::npos && locale.find("utf8") == std::string::npos &&
            locale.find("UTF8") == std::string::npos && locale.find("utf-8") == std::string::npos)
            size.ascii = true;
        break;
    }
    return size;
}

std::string terminal_plot(const Plot &plot, const PlotSize &size) {
    const Scales scales = scales_of(plot);
    std::string text = cut(plot.title, size.columns) + "\n";
    bool any = false;
    for (const Series &series : plot.series)
        for (const auto &point : series.points) any = any || scales.shows(point);
    if (!any) return text + "(nothing to draw)\n";
    const int columns = size.columns - kMargin - 1, rows = size.rows;
    Canvas canvas(columns, rows);
    draw(canvas, plot, scales);
    std::vector<std::string> numbers(static_cast<size_t>(rows));
    for (const double tick : scales.y.ticks(std::max(2, rows / 3))) {
        const int row = rows - 1 - std::clamp(static_cast<int>(scales.y.place(tick) * rows), 0, rows - 1);
        numbers[static_cast<size_t>(row)] = short_number(tick);
    }
    text += cut(plot.y.label, size.columns) + "\n";
    for (int row = 0; row < rows; ++row) {
        const std::string &number = numbers[static_cast<size_t>(row)];
        text +=
            padded(number, kMargin - 1) + (number.empty() ? " |" : " +") + canvas.row(row, size.ascii) + "\n";
    }
    text += std::string(kMargin, ' ') + "+" + std::string(static_cast<size_t>(columns), '-') + "\n";
    text += std::string(kMargin + 1, ' ') + tick_line(scales.x, columns) + "\n";
    text += padded(cut(plot.x.label, size.columns), size.columns) + "\n";
    return text + legend(plot, size.columns);
}

}  // namespace runnel::commands
