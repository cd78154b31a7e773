#include "engine/commands/chat/edit/cells.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "engine/text/utf8.h"

namespace runnel::commands {
namespace {

constexpr size_t kLongestGrapheme = 256;  // in bytes: a text may consist of combining marks alone

// Characters that reorder the text around them.
bool is_bidi_control(char32_t c) {
    return c == 0x061C || c == 0x200E || c == 0x200F || (c >= 0x202A && c <= 0x202E) ||
           (c >= 0x2066 && c <= 0x2069);
}

bool is_line_separator(char32_t c) {
    return c == 0x2028 || c == 0x2029;
}

bool is_control(char32_t c) {
    return c < 0x20 || (c >= 0x7F && c <= 0x9F);
}

}  // namespace

size_t first_grapheme(std::string_view text) {
    text::Utf8Char before = text::first_char(text);
    size_t at = before.bytes;
    utf8proc_int32_t state = 0;
    while (at < text.size() && at < kLongestGrapheme) {
        const text::Utf8Char next = text::first_char(text.substr(at));
        if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(before.code_point),
                                             static_cast<utf8proc_int32_t>(next.code_point), &state))
            break;
        at += next.bytes;
        before = next;
    }
    return at;
}

int grapheme_width(std::string_view grapheme) {
    int width = 0;
    bool regional = false;
    while (!grapheme.empty()) {
        const text::Utf8Char c = text::first_char(grapheme);
        // Two regional indicators form a flag; variation selector 16 selects the wide form.
        if ((regional && c.code_point >= 0x1F1E6 && c.code_point <= 0x1F1FF) ||
            (c.code_point == 0xFE0F && width > 0))
            return 2;
        regional = c.code_point >= 0x1F1E6 && c.code_point <= 0x1F1FF;
        width = std::max(width, utf8proc_charwidth(static_cast<utf8proc_int32_t>(c.code_point)));
        grapheme.remove_prefix(c.bytes);
    }
    return std::min(width, 2);
}

int text_width(std::string_view text) {
    int width = 0;
    while (!text.empty()) {
        const size_t bytes = first_grapheme(text);
        width += grapheme_width(text.substr(0, bytes));
        text.remove_prefix(bytes);
    }
    return width;
}

std::string shown_grapheme(std::string_view grapheme) {
    std::string shown;
    for (std::string_view rest = grapheme; !rest.empty();) {
        const text::Utf8Char c = text::first_char(rest);
        if (c.code_point < 0x20) {
            shown += {'^', static_cast<char>('@' + c.code_point)};
        } else if (is_bidi_control(c.code_point) || is_line_separator(c.code_point) ||
                   is_control(c.code_point)) {
            char name[16];
            std::snprintf(name, sizeof name, "<U+%04X>", c.code_point);
            shown += name;
        } else {
            shown += rest.substr(0, c.bytes);
        }
        rest.remove_prefix(c.bytes);
    }
    constexpr const char *kDottedCircle = "\u25CC";
    return grapheme_width(shown) == 0 ? kDottedCircle + shown : shown;
}

std::string clean_text(std::string_view bytes) {
    std::string clean;
    clean.reserve(bytes.size());
    while (!bytes.empty()) {
        const text::Utf8Char c = text::first_char(bytes);
        if (c.code_point == '\r')
            clean += bytes.starts_with("\r\n") ? "" : "\n";
        else if (!c.valid)
            clean += "\uFFFD";
        else if (c.code_point == '\n' || c.code_point == '\t' || !is_control(c.code_point))
            clean += bytes.substr(0, c.bytes);
        bytes.remove_prefix(c.bytes);
    }
    return clean;
}

std::string grouped(size_t number) {
    std::string digits = std::to_string(number);
    for (size_t i = digits.size(); i > 3;) digits.insert(i -= 3, 1, ',');
    return digits;
}

}  // namespace runnel::commands
