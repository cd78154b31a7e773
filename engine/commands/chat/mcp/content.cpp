#include "engine/commands/chat/mcp/content.h"

#include <algorithm>

#include "engine/commands/chat/conversation_text.h"
#include "engine/text/utf8.h"

namespace runnel::commands::mcp {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

bool is_control(uint32_t c) {
    return (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7f && c < 0xa0);
}

std::string part_text(const Json &part) {
    const std::string type = text_member(part, "type");
    if (type == "text") return text_member(part, "text");
    const Json *inner = text::find_member(part, "resource");
    const Json &described = inner ? *inner : part;
    std::string text = "[" + (type.empty() ? "a part of unknown type" : type);
    for (const char *key : {"uri", "mimeType"})
        if (const std::string value = text_member(described, key); !value.empty()) text += ", " + value;
    return text + ": not shown]";
}

}  // namespace

std::string text_member(const Json &object, std::string_view key) {
    const Json *value = text::find_member(object, key);
    return value && value->is_string() ? value->get<std::string>() : std::string();
}

std::string plain_text(std::string_view text) {
    std::string plain;
    plain.reserve(text.size());
    while (!text.empty()) {
        const text::Utf8Char c = text::first_char(text);
        if (text.starts_with("\r\n"))
            ;  // the newline follows
        else if (!c.valid || is_control(c.code_point))
            plain += kReplacement;
        else
            plain += text.substr(0, c.bytes);
        text.remove_prefix(c.bytes);
    }
    return plain;
}

std::string bounded(std::string text, size_t most) {
    if (text.size() <= most) return text;
    size_t end = most;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
    const size_t cut = text.size() - end;
    text.resize(end);
    return text + "\n[cut: " + std::to_string(cut) + " more bytes]";
}

std::string result_text(const Json &result) {
    std::string text;
    const Json *content = text::find_member(result, "content");
    if (content && content->is_array())
        for (const Json &part : *content) text += (text.empty() ? "" : "\n") + part_text(part);
    if (text.empty())
        if (const Json *structured = text::find_member(result, "structuredContent"))
            text = structured->dump(-1, ' ', false, Json::error_handler_t::replace);
    return plain_text(text);
}

std::string shortened(const std::string &text, size_t columns) {
    constexpr size_t kLines = 4;
    std::string result;
    size_t begin = 0;
    for (size_t line = 0; line < kLines && begin < text.size(); ++line) {
        const size_t end = std::min(text.find('\n', begin), text.size());
        result += (line == 0 ? "  " : "\n  ") +
                  clipped(std::string_view(text).substr(begin, end - begin), columns - 2);
        begin = end + 1;
    }
    if (begin < text.size()) result += "\n  ... " + std::to_string(text.size() - begin) + " more bytes";
    return result.empty() ? "  (nothing)" : result;
}

}  // namespace runnel::commands::mcp
