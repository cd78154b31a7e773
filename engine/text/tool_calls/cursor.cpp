#include "engine/text/tool_calls/cursor.h"

#include <algorithm>

#include "engine/text/tool_calls/formats.h"
#include "engine/text/tool_calls/tools.h"

namespace runnel::text {

bool Cursor::skip_space() {
    at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size());
    return true;
}

bool Cursor::take(std::string_view text) {
    if (!rest().starts_with(text)) return false;
    at_ += text.size();
    return true;
}

bool Cursor::take_mark(std::string_view mark) {
    Cursor ahead = *this;
    const bool taken =
        all_words(mark, [&](std::string_view word) { return ahead.skip_space() && ahead.take(word); });
    if (taken) *this = ahead;
    return taken;
}

bool Cursor::take_end_mark(std::string_view mark) {
    const Cursor begin = *this;
    const bool taken = all_words(mark, [&](std::string_view word) {
        skip_space();
        return done() || take(word);
    });
    if (!taken) *this = begin;
    return taken;
}

std::optional<std::string_view> Cursor::until(std::string_view mark) {
    const size_t end = text_.find(mark, at_);
    if (end == text_.npos) return std::nullopt;
    const std::string_view before = text_.substr(at_, end - at_);
    at_ = end;
    return before;
}

std::string_view Cursor::take_name() {
    size_t end = at_;
    while (end < text_.size() && is_tool_name_character(text_[end])) ++end;
    const std::string_view name = text_.substr(at_, end - at_);
    at_ = end;
    return name;
}

std::optional<std::string_view> Cursor::take_json() {
    if (peek() != '{' && peek() != '[') return std::nullopt;
    size_t depth = 0;
    for (size_t i = at_; i < text_.size(); ++i) {
        const char c = text_[i];
        if (c == '"') {
            for (++i; i < text_.size() && text_[i] != '"'; ++i) i += text_[i] == '\\' ? 1 : 0;
        } else if (c == '{' || c == '[') {
            ++depth;
        } else if ((c == '}' || c == ']') && --depth == 0) {
            const std::string_view json = text_.substr(at_, i + 1 - at_);
            at_ = i + 1;
            return json;
        }
    }
    return std::nullopt;
}

}  // namespace runnel::text
