#include "engine/text/jinja/error.h"

#include <algorithm>

#include "engine/text/utf8.h"

namespace runnel::text::jinja {
namespace {

constexpr size_t kShown = 100;  // bytes of a line

std::string_view line_of(std::string_view source, uint32_t number) {
    for (; number > 1; --number) {
        const size_t end = source.find('\n');
        if (end == source.npos) return {};
        source.remove_prefix(end + 1);
    }
    return source.substr(0, source.find('\n'));
}

// The part of a long line around a column.
std::string excerpt(std::string_view line, uint32_t column) {
    if (line.size() > kShown) {
        const size_t middle = std::min<size_t>(column, line.size());
        size_t begin = std::min(middle - std::min(middle, kShown / 3), line.size() - kShown);
        size_t end = begin + kShown;
        const auto continues = [&](size_t at) {
            return at < line.size() && (static_cast<uint8_t>(line[at]) & 0xc0) == 0x80;
        };
        while (continues(begin)) ++begin;
        while (continues(end)) ++end;
        return (begin > 0 ? "..." : "") + std::string(line.substr(begin, end - begin)) +
               (end < line.size() ? "..." : "");
    }
    const size_t begin = line.find_first_not_of(" \t");
    return begin == line.npos ? std::string() : std::string(line.substr(begin));
}

std::string describe(const std::string &message, Place place, std::string_view source) {
    if (place.line == 0) return message;
    const std::string line = excerpt(line_of(source, place.line), place.column);
    std::string text = "line " + std::to_string(place.line) + ", column " + std::to_string(place.column) +
                       ": " + message + (line.empty() ? "" : " in: " + line);
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
}

}  // namespace

TemplateError::TemplateError(const TemplateError &error, Place at, std::string_view source)
    : std::runtime_error(describe(error.message, at, source)),
      kind(error.kind),
      message(error.message),
      place(at) {}

}  // namespace runnel::text::jinja
