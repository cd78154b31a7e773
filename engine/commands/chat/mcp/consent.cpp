#include "engine/commands/chat/mcp/consent.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "engine/commands/chat/edit/cells.h"
#include "engine/text/utf8.h"

namespace runnel::commands::mcp {
namespace {

constexpr size_t kMostShown = size_t{16} << 10;  // bytes of the arguments
constexpr size_t kMostName = 128;
constexpr int kNarrowest = 16;
constexpr std::string_view kGutter = "  | ";

bool is_blank(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

bool is_mark(uint32_t c) {
    const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_ME;
}

// Characters that are invisible or look like a blank, and characters that move the text around them.
bool has_no_ink(uint32_t c) {
    switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
        case UTF8PROC_CATEGORY_CC:
        case UTF8PROC_CATEGORY_CF:
        case UTF8PROC_CATEGORY_CN:
        case UTF8PROC_CATEGORY_CO:
        case UTF8PROC_CATEGORY_CS:
        case UTF8PROC_CATEGORY_ZL:
        case UTF8PROC_CATEGORY_ZP:
        case UTF8PROC_CATEGORY_ZS:
            return c != ' ';
        default:
            break;
    }
    // The default-ignorable characters of other categories (Unicode 15), and the blank Braille pattern.
    return c == 0x034F || c == 0x115F || c == 0x1160 || c == 0x17B4 || c == 0x17B5 ||
           (c >= 0x180B && c <= 0x180F) || c == 0x2800 || c == 0x3164 || (c >= 0xFE00 && c <= 0xFE0F) ||
           c == 0xFFA0 || (c >= 0xE0000 && c <= 0xE0FFF);
}

std::string named(const char *format, unsigned value) {
    char name[24];
    std::snprintf(name, sizeof name, format, value);
    return name;
}

}  // namespace

std::string visible(std::string_view text) {
    std::string shown;
    int marks = 2;  // at most two in a row; none at the beginning of a text
    while (!text.empty()) {
        size_t blanks = 0;
        while (blanks < text.size() && is_blank(text[blanks])) ++blanks;
        if (blanks > 0) {
            shown += blanks == 1 && text[0] == ' ' ? " "
                     : blanks == 1                 ? named("<U+%04X>", static_cast<unsigned char>(text[0]))
                                                   : "<" + std::to_string(blanks) + " blanks>";
            text.remove_prefix(blanks);
            marks = 2;
            continue;
        }
        const text::Utf8Char c = text::first_char(text);
        const bool mark = is_mark(c.code_point);
        marks = mark ? marks + 1 : 0;
        if (!c.valid)
            for (const char byte : text.substr(0, c.bytes))
                shown += named("<0x%02X>", static_cast<unsigned char>(byte));
        else if (has_no_ink(c.code_point) || marks > 2)
            shown += named("<U+%04X>", c.code_point);
        else
            shown += text.substr(0, c.bytes);
        if (marks > 2) marks = 2;
        text.remove_prefix(c.bytes);
    }
    return shown;
}

CallText call_text(std::string_view server, std::string_view tool, std::string_view arguments, int columns) {
    const auto name = [](std::string_view text) {
        return visible(text.substr(0, kMostName)) + (text.size() > kMostName ? "..." : "");
    };
    const bool is_whole = arguments.size() <= kMostShown;
    CallText call{name(server) + ": " + name(tool), {}, is_whole};
    call.lines = call.name + "\n";
    const std::string shown = visible(arguments.substr(0, kMostShown));
    // One cell less than the window: the last column makes some terminals wrap.
    const int width = std::max(columns, kNarrowest) - static_cast<int>(kGutter.size()) - 1;
    for (std::string_view rest = shown; !rest.empty();) {
        size_t end = 0;
        for (int used = 0; end < rest.size();) {
            const size_t bytes = first_grapheme(rest.substr(end));
            used += std::max(1, grapheme_width(rest.substr(end, bytes)));
            if (used > width && end > 0) break;
            end += bytes;
        }
        call.lines += std::string(kGutter) + std::string(rest.substr(0, end)) + "\n";
        rest.remove_prefix(end);
    }
    if (!is_whole)
        call.lines +=
            "not shown: " + std::to_string(arguments.size() - kMostShown) + " more bytes of arguments\n";
    return call;
}

}  // namespace runnel::commands::mcp
