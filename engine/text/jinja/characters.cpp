#include "engine/text/jinja/characters.h"

#include <utf8proc.h>

#include <algorithm>

#include "engine/text/utf8.h"

namespace runnel::text::jinja {
namespace {

utf8proc_category_t category(uint32_t c) {
    return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool is_cased(uint32_t c) {
    return is_upper(c) || is_lower(c) || category(c) == UTF8PROC_CATEGORY_LT;
}

uint32_t mapped(uint32_t c, utf8proc_int32_t (*map)(utf8proc_int32_t)) {
    return static_cast<uint32_t>(map(static_cast<utf8proc_int32_t>(c)));
}

void append_upper(std::string &text, uint32_t c, bool only_first = false) {
    constexpr uint32_t kSharpS = 0xdf;
    if (c == kSharpS)
        text += only_first ? "Ss" : "SS";
    else
        append_utf8(text, mapped(c, only_first ? utf8proc_totitle : utf8proc_toupper));
}

// A capital sigma at the end of a word is lowered to the final sigma.
bool is_final(std::string_view before, std::string_view after) {
    bool letter_before = false;
    while (!before.empty()) {
        const Utf8Char c = first_char(before);
        letter_before = is_cased(c.code_point);
        before.remove_prefix(c.bytes);
    }
    return letter_before && (after.empty() || !is_cased(first_char(after).code_point));
}

// Applies `map`(result, character, rest of the text) to every character; invalid UTF-8 is kept.
template <class Map>
std::string transform(std::string_view text, const Map &map) {
    std::string result;
    result.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
        const Utf8Char c = first_char(text.substr(at));
        if (c.valid)
            map(result, c.code_point, at, at + c.bytes);
        else
            result.append(text.substr(at, c.bytes));
        at += c.bytes;
    }
    return result;
}

void append_lower(std::string &result, uint32_t c, std::string_view text, size_t begin, size_t end) {
    constexpr uint32_t kSigma = 0x3a3, kFinalSigma = 0x3c2, kCapitalDottedI = 0x130;
    // (Only the last characters before it matter, because the text may be long.)
    if (c == kSigma && is_final(text.substr(begin - std::min<size_t>(begin, 2), std::min<size_t>(begin, 2)),
                                text.substr(end)))
        append_utf8(result, kFinalSigma);
    else if (c == kCapitalDottedI)
        result += "i\xcc\x87";
    else
        append_utf8(result, mapped(c, utf8proc_tolower));
}

}  // namespace

bool is_space(uint32_t c) {
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_alphabetic(uint32_t c) {
    const auto kind = category(c);
    return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(uint32_t c) {
    return category(c) == UTF8PROC_CATEGORY_ND;
}

bool is_upper(uint32_t c) {
    return c < 0x80 ? c >= 'A' && c <= 'Z' : category(c) == UTF8PROC_CATEGORY_LU;
}

bool is_lower(uint32_t c) {
    return c < 0x80 ? c >= 'a' && c <= 'z' : category(c) == UTF8PROC_CATEGORY_LL;
}

bool is_word(uint32_t c) {
    if (c < 0x80)
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    const auto kind = category(c);
    return is_alphabetic(c) || kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL ||
           kind == UTF8PROC_CATEGORY_NO;
}

std::string upper(std::string_view text) {
    return transform(text, [](std::string &result, uint32_t c, size_t, size_t) { append_upper(result, c); });
}

std::string lower(std::string_view text) {
    return transform(text, [&](std::string &result, uint32_t c, size_t begin, size_t end) {
        append_lower(result, c, text, begin, end);
    });
}

std::string title(std::string_view text) {
    bool inside = false;
    return transform(text, [&](std::string &result, uint32_t c, size_t begin, size_t end) {
        if (inside)
            append_lower(result, c, text, begin, end);
        else
            append_upper(result, c, true);
        inside = is_cased(c);
    });
}

std::string capitalize(std::string_view text) {
    return transform(text, [&](std::string &result, uint32_t c, size_t begin, size_t end) {
        if (begin == 0)
            append_upper(result, c, true);
        else
            append_lower(result, c, text, begin, end);
    });
}

std::string swap_case(std::string_view text) {
    return transform(text, [&](std::string &result, uint32_t c, size_t begin, size_t end) {
        if (is_upper(c))
            append_lower(result, c, text, begin, end);
        else
            append_upper(result, c);
    });
}

size_t count_characters(std::string_view text) {
    size_t count = 0;
    for (size_t at = 0; at < text.size(); ++count)
        at += static_cast<uint8_t>(text[at]) < 0x80 ? 1 : first_char(text.substr(at)).bytes;
    return count;
}

std::vector<size_t> character_offsets(std::string_view text) {
    std::vector<size_t> offsets;
    offsets.reserve(text.size() + 1);
    for (size_t at = 0; at < text.size();) {
        offsets.push_back(at);
        at += static_cast<uint8_t>(text[at]) < 0x80 ? 1 : first_char(text.substr(at)).bytes;
    }
    offsets.push_back(text.size());
    return offsets;
}

size_t leading_space(std::string_view text) {
    size_t at = 0;
    while (at < text.size()) {
        const Utf8Char c = first_char(text.substr(at));
        if (!c.valid || !is_space(c.code_point)) break;
        at += c.bytes;
    }
    return at;
}

size_t trailing_space(std::string_view text) {
    size_t end = text.size();
    while (end > 0) {
        size_t begin = end - 1;
        while (begin > 0 && end - begin < 3 && (static_cast<uint8_t>(text[begin]) & 0xc0) == 0x80) --begin;
        const Utf8Char c = first_char(text.substr(begin, end - begin));
        if (!c.valid || c.bytes != end - begin || !is_space(c.code_point)) break;
        end = begin;
    }
    return text.size() - end;
}

void append_utf8(std::string &text, uint32_t c) {
    if (c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) c = 0xfffd;
    utf8proc_uint8_t bytes[4];
    const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
    text.append(reinterpret_cast<const char *>(bytes), static_cast<size_t>(count));
}

}  // namespace runnel::text::jinja
