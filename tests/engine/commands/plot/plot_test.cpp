// Plots: where everything is placed, in the terminal and in SVG.
#include "engine/commands/plot/plot.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <sstream>

#include "engine/commands/plot/svg.h"

namespace runnel::commands {
namespace {

std::vector<std::string> lines(const std::string &text) {
    std::vector<std::string> all;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
}

// The width in columns of a line of ASCII and braille.
int columns(const std::string &line) {
    int count = 0;
    for (const char c : line) count += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    return count;
}

size_t count(const std::string &text, const std::string &part) {
    size_t found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size()))
        ++found;
    return found;
}

Plot straight() {
    Plot plot{"tokens per second fall with depth", {"depth, tokens"}, {"tokens/s"}, {}};
    plot.series.push_back({"full", {{0, 100}, {50, 50}, {100, 0}}});
    plot.series.push_back({"window", {{0, 100}, {100, 90}}, Series::Style::Points});
    return plot;
}

TEST_CASE("plot: numbers are short, and ticks are round and within the axis") {
    CHECK(short_number(0) == "0");
    CHECK(short_number(1500) == "1.5k");
    CHECK(short_number(16e6) == "16M");
    CHECK(short_number(-2e9) == "-2G");
    CHECK(short_number(0.025) == "0.025");
    CHECK(ticks(0, 100, false, 5) == std::vector<double>{0, 20, 40, 60, 80, 100});
    CHECK(ticks(1, 1000, true, 4) == std::vector<double>{1, 10, 100, 1000});
    CHECK(ticks(1, 100, true, 9) == std::vector<double>{1, 2, 5, 10, 20, 50, 100});
    const unsigned seed = 5;
    CAPTURE(seed);
    std::mt19937 random(seed);
    for (int round = 0; round < 500; ++round) {
        const auto number = [&](unsigned below) { return static_cast<double>(random() % below); };
        const double low = std::pow(10, number(12) - 4) * (1 + number(9)),
                     high = low * (1.01 + number(100'000));
        const int most = 2 + static_cast<int>(random() % 10);
        const bool logarithmic = random() % 2 == 0;
        CAPTURE(low);
        CAPTURE(high);
        CAPTURE(most);
        CAPTURE(logarithmic);
        const auto all = ticks(low, high, logarithmic, most);
        CHECK(all.size() <= static_cast<size_t>(most) + 2);
        for (size_t i = 0; i < all.size(); ++i) {
            CHECK(all[i] >= low * (1 - 1e-6));
            CHECK(all[i] <= high * (1 + 1e-6));
            if (i > 0) CHECK(all[i] > all[i - 1]);
        }
    }
}

TEST_CASE("plot: in the terminal, higher values are drawn higher, and every line fits") {
    for (const bool ascii : {false, true}) {
        CAPTURE(ascii);
        const std::string text = terminal_plot(straight(), {.columns = 80, .rows = 10, .ascii = ascii});
        const auto all = lines(text);
        REQUIRE(all.size() == 16);  // title, label, 10 rows, axis, numbers, label, legend
        for (const std::string &line : all) CHECK(columns(line) <= 80);
        CHECK(all[0] == "tokens per second fall with depth");
        CHECK(all.back() == "  o full   x window");
        CHECK(count(text, "o") >= 3);
        // From the upper left to the lower right.
        CHECK(all[2].find('x') < all[7].find('o'));
        CHECK(all[11].rfind('o') > 70);
        if (ascii)
            for (const char c : text) CHECK((c == '\n' || (c >= ' ' && c <= '~')));
        else
            CHECK(text.find("\xe2\xa0") != std::string::npos);
    }
}

TEST_CASE("plot: points that an axis cannot show are left out") {
    Plot plot = straight();
    plot.x.logarithmic = plot.y.logarithmic = true;
    const double inf = std::numeric_limits<double>::infinity();
    plot.series[0].points = {{0, 1}, {-1, 5}, {inf, 2}, {10, std::nan("")}, {10, 100}, {1000, 1}};
    plot.series[1].points = {};
    const std::string text = terminal_plot(plot, {.columns = 60, .rows = 8, .ascii = true});
    size_t marks = 0;
    for (const std::string &line : lines(text))
        if (const size_t bar = line.find_first_of("|+"); bar == 9) marks += count(line.substr(bar), "o");
    CHECK(marks == 2);
    CHECK(svg_plot(plot).find("nan") == std::string::npos);
    CHECK(svg_plot(plot).find("inf") == std::string::npos);
    plot.series[0].points = {};
    CHECK(terminal_plot(plot).find("nothing to draw") != std::string::npos);
    plot.series[0].points = {{5, 5}};  // a single point
    CHECK(terminal_plot(plot).find('o') != std::string::npos);
}

TEST_CASE("plot: SVG has every point in its place, and escapes text") {
    Plot plot = straight();
    plot.title = "a < b & \"c\"";
    const std::string svg = svg_plot(plot);
    CHECK(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
    CHECK(svg.ends_with("</svg>\n"));
    CHECK(svg.find("a &lt; b &amp; &quot;c&quot;") != std::string::npos);
    CHECK(count(svg, "<circle") == 3 + 2 + 2);  // and the legend
    CHECK(count(svg, "<polyline") == 1);
    CHECK(count(svg, "<text") == count(svg, "</text>"));
    for (const char *part : {"depth, tokens", "tokens/s", ">full<", ">window<"})
        CHECK(svg.find(part) != std::string::npos);
    // 0 is at the left and at the bottom: x 84, y 398.
    CHECK(svg.find("points=\"84.0,") != std::string::npos);
    CHECK(svg.find(",398.0\" fill=\"none\"") != std::string::npos);
}

TEST_CASE("plot: SVG shows control characters, bidirectional controls and invalid UTF-8 as \\xNN") {
    CHECK(svg_escaped("a<b>&\"c\"") == "a&lt;b&gt;&amp;&quot;c&quot;");
    CHECK(svg_escaped("\x1b[2J\n") == "\\x1b[2J\\x0a");
    CHECK(svg_escaped("safe\u202egnp.\u2069") == "safe\\xe2\\x80\\xaegnp.\\xe2\\x81\\xa9");
    CHECK(svg_escaped("\xff") == "\\xff");
    CHECK(svg_escaped("gr\u00fc\u00df \u4e2d") == "gr\u00fc\u00df \u4e2d");
    CHECK(svg_escaped("\uffff") == "\ufffd");  // not allowed in XML
}

}  // namespace
}  // namespace runnel::commands
