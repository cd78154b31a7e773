#include "engine/text/tool_calls/literal.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/text/hex.h"
#include "engine/text/jinja/characters.h"
#include "engine/text/tool_calls/formats.h"

namespace runnel::text {
namespace {

constexpr int kMostNested = 100;
constexpr size_t kMostMembers = 1000;  // of one object: every key is compared with the earlier ones

class LiteralReader {
  public:
    LiteralReader(Cursor &cursor, LiteralStyle style) : cursor_(cursor), style_(style) {}

    std::optional<Json> value(int depth) {
        if (depth > kMostNested) return std::nullopt;
        cursor_.skip_space();
        const char c = cursor_.peek();
        if (style_ == LiteralStyle::Fields && cursor_.rest().starts_with(kFieldQuote)) return quoted_field();
        if (c == '\'' || c == '"') return string();
        if (c == '[' || (c == '(' && style_ == LiteralStyle::Python)) return list(depth);
        if (c == '{') return object(depth);
        for (const auto &[word, meaning] : kWords)
            if (cursor_.take(word)) return meaning;
        return number();
    }

    std::optional<Json> object(int depth) {
        if (!cursor_.take("{")) return std::nullopt;
        return members(depth, '}', ':', false);
    }

    // "key: value, ..." up to `close`.
    std::optional<Json> members(int depth, char close, char between, bool names_only) {
        Json result = Json::object();
        for (;;) {
            cursor_.skip_space();
            if (cursor_.take({&close, 1})) return result;
            const auto name = key(names_only);
            cursor_.skip_space();
            if (!name || result.size() >= kMostMembers || !cursor_.take({&between, 1})) return std::nullopt;
            auto inner = value(depth + 1);
            if (!inner) return std::nullopt;
            result[*name] = std::move(*inner);
            cursor_.skip_space();
            if (!cursor_.take(",") && cursor_.peek() != close) return std::nullopt;
        }
    }

  private:
    static inline const std::pair<std::string_view, Json> kWords[] = {{"True", true},    {"true", true},
                                                                      {"False", false},  {"false", false},
                                                                      {"None", nullptr}, {"null", nullptr}};

    std::optional<std::string> key(bool name_only) {
        const char c = cursor_.peek();
        if (!name_only && (c == '\'' || c == '"')) {
            const auto text = string();
            if (!text) return std::nullopt;
            return text->get<std::string>();
        }
        if (!name_only && cursor_.rest().starts_with(kFieldQuote)) {
            const auto text = quoted_field();
            if (!text) return std::nullopt;
            return text->get<std::string>();
        }
        const std::string_view rest = cursor_.rest();
        const size_t end = rest.find_first_of(" \t\r\n:=,{}[]()'\"<>");
        if (end == 0 || end == rest.npos) return std::nullopt;
        cursor_.skip(end);
        return std::string(rest.substr(0, end));
    }

    std::optional<Json> quoted_field() {
        cursor_.take(kFieldQuote);
        const auto text = cursor_.until(kFieldQuote);
        if (!text) return std::nullopt;
        cursor_.take(kFieldQuote);
        return Json(std::string(*text));
    }

    std::optional<Json> string() {
        const char quote = cursor_.next();
        std::string text;
        while (!cursor_.done()) {
            const char c = cursor_.next();
            if (c == quote) return Json(std::move(text));
            if (c != '\\')
                text += c;
            else if (!escape(text))
                return std::nullopt;
        }
        return std::nullopt;
    }

    bool escape(std::string &text) {
        constexpr std::string_view kLetters = "ntrbf\\'\"/", kMeanings = "\n\t\r\b\f\\'\"/";
        if (cursor_.done()) return false;
        const char c = cursor_.next();
        if (const size_t i = kLetters.find(c); i != kLetters.npos) {
            text += kMeanings[i];
            return true;
        }
        if (c != 'u') {  // like Python, keeps unknown escapes
            text += '\\';
            text += c;
            return true;
        }
        uint32_t code = 0;
        if (!code_unit(code)) return false;
        if (code >= 0xd800 && code < 0xdc00 && cursor_.take("\\u")) {
            uint32_t low = 0;
            if (!code_unit(low) || low < 0xdc00 || low > 0xdfff) return false;
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        }
        if (code >= 0xd800 && code < 0xe000) return false;
        jinja::append_utf8(text, code);
        return true;
    }

    bool code_unit(uint32_t &code) {
        for (int i = 0; i < 4; ++i) {
            const int digit = hex_digit(cursor_.next());
            if (digit < 0) return false;
            code = code * 16 + static_cast<uint32_t>(digit);
        }
        return true;
    }

    std::optional<Json> list(int depth) {
        const char close = cursor_.next() == '[' ? ']' : ')';
        Json result = Json::array();
        for (;;) {
            cursor_.skip_space();
            if (cursor_.take({&close, 1})) return result;
            auto inner = value(depth + 1);
            if (!inner) return std::nullopt;
            result.push_back(std::move(*inner));
            cursor_.skip_space();
            if (!cursor_.take(",") && cursor_.peek() != close) return std::nullopt;
        }
    }

    std::optional<Json> number() {
        const std::string_view rest = cursor_.rest();
        const size_t length = std::min(rest.find_first_not_of("0123456789+-.eE"), rest.size());
        if (length == 0 || length > 400) return std::nullopt;
        try {
            Json value = parse_json(rest.substr(0, length));
            if (!value.is_number()) return std::nullopt;
            cursor_.skip(length);
            return value;
        } catch (const JsonError &) {
            return std::nullopt;
        }
    }

    Cursor &cursor_;
    LiteralStyle style_;
};

}  // namespace

std::optional<Json> take_literal(Cursor &cursor, LiteralStyle style) {
    return LiteralReader(cursor, style).value(0);
}

std::optional<Json> take_python_arguments(Cursor &cursor) {
    return LiteralReader(cursor, LiteralStyle::Python).members(0, ')', '=', true);
}

std::optional<Json> take_fields(Cursor &cursor) {
    cursor.skip_space();
    return LiteralReader(cursor, LiteralStyle::Fields).object(0);
}

}  // namespace runnel::text
