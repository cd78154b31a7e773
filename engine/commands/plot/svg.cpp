#include "engine/commands/plot/svg.h"

#include <cstdio>
#include <span>

#include "engine/commands/arguments.h"
#include "gguf/output_file.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

gguf::OutputOptions svg_output(const Io &io) {
    return {.overwrite = io.overwrite, .own = "<svg xmlns"};
}

}  // namespace

std::string svg_escaped(const std::string &text) {
    std::string result, shown = gguf::printable(text, std::string::npos);
    for (const char *forbidden : {"\xef\xbf\xbe", "\xef\xbf\xbf"})  // U+FFFE and U+FFFF: not in XML
        for (size_t at; (at = shown.find(forbidden)) != shown.npos;) shown.replace(at, 3, "\xef\xbf\xbd");
    for (const char c : shown) switch (c) {
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
                result += c;
        }
    return result;
}

std::string svg_number(double value) {
    char text[40];
    std::snprintf(text, sizeof text, "%.1f", value);
    return text;
}

std::string svg_begin(double width, double height) {
    const std::string wide = svg_number(width), high = svg_number(height);
    return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + wide + "\" height=\"" + high +
           "\" viewBox=\"0 0 " + wide + " " + high +
           "\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n"
           "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
}

std::string svg_text(double x, double y, const char *anchor, const std::string &text,
                     const std::string &more) {
    return "<text x=\"" + svg_number(x) + "\" y=\"" + svg_number(y) + "\" text-anchor=\"" + anchor + "\"" +
           more + ">" + svg_escaped(text) + "</text>\n";
}

std::string svg_rectangle(double x, double y, double width, double height, const std::string &fill,
                          const std::string &more) {
    return "<rect x=\"" + svg_number(x) + "\" y=\"" + svg_number(y) + "\" width=\"" + svg_number(width) +
           "\" height=\"" + svg_number(height) + "\" fill=\"" + fill + "\"" + more + "/>\n";
}

void check_svg_file(const std::string &path, const std::string &option, const Io &io) {
    if (path.empty()) return;
    if (!path.ends_with(".svg")) throw UsageError(option + " writes SVG: the file's name must end with .svg");
    gguf::check_output(path, svg_output(io));
}

void write_svg_file(const std::string &path, const std::string &svg, const Io &io) {
    if (path.empty()) return;
    gguf::OutputFile file(path, svg_output(io));
    file.write(std::as_bytes(std::span(svg)));
    file.commit();
}

}  // namespace runnel::commands
