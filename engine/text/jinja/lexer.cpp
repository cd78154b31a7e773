#include "engine/text/jinja/lexer.h"

#include <algorithm>

#include "engine/text/jinja/characters.h"
#include "engine/text/utf8.h"

namespace runnel::text::jinja {
namespace {

constexpr std::string_view kOperators[] = {"**", "//", "==", "!=", ">=", "<=", "+", "-", "/",
                                           "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                           ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

bool is_hex(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

// The escapes of Python's string literals; unknown ones are kept.
class Unescaper {
  public:
    Unescaper(std::string_view text, Place place) : rest_(text), place_(place) {}

    std::string run() {
        while (!rest_.empty()) {
            const size_t plain = std::min(rest_.find('\\'), rest_.size());
            take_pending_surrogate(plain > 0);
            result_.append(rest_.substr(0, plain));
            rest_.remove_prefix(plain);
            if (rest_.size() < 2) break;
            escape();
        }
        take_pending_surrogate(true);
        return std::move(result_);
    }

  private:
    void escape() {
        constexpr std::string_view letters = "\\'\"abfnrtv", values = "\\'\"\a\b\f\n\r\t\v";
        const char c = rest_[1];
        if (const size_t at = letters.find(c); at != letters.npos) {
            take_pending_surrogate(true);
            result_ += values[at];
            rest_.remove_prefix(2);
        } else if (c == '\n') {
            rest_.remove_prefix(2);
        } else if (c >= '0' && c <= '7') {
            number(1, 3, 8);
        } else if (c == 'x' || c == 'u' || c == 'U') {
            const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
            if (rest_.size() < 2 + digits ||
                !std::all_of(rest_.begin() + 2, rest_.begin() + 2 + static_cast<std::ptrdiff_t>(digits),
                             is_hex))
                fail(TemplateError::Kind::Syntax, "an escape in a string is cut short", place_);
            number(2, digits, 16);
        } else {
            take_pending_surrogate(true);
            result_ += '\\';
            rest_.remove_prefix(1);
        }
    }

    void number(size_t begin, size_t most, uint32_t base) {
        uint32_t value = 0;
        size_t at = begin;
        for (; at < rest_.size() && at < begin + most && is_hex(rest_[at]); ++at) {
            const char c = rest_[at];
            const auto digit = static_cast<uint32_t>(is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
            if (digit >= base) break;
            value = value * base + digit;
        }
        if (value > 0x10ffff)
            fail(TemplateError::Kind::Syntax, "an escape sequence in a string does not stand for a character",
                 place_);
        rest_.remove_prefix(at);
        if (high_ != 0 && value >= 0xdc00 && value < 0xe000) {
            append_utf8(result_, 0x10000 + ((high_ - 0xd800) << 10) + (value - 0xdc00));
            high_ = 0;
            return;
        }
        take_pending_surrogate(true);
        if (value >= 0xd800 && value < 0xdc00)
            high_ = value;
        else
            append_utf8(result_, value);
    }

    // If `now`, replaces a high surrogate that was not completed by a low one.
    void take_pending_surrogate(bool now) {
        if (now && high_ != 0) append_utf8(result_, 0xfffd);
        if (now) high_ = 0;
    }

    std::string_view rest_;
    Place place_;
    std::string result_;
    uint32_t high_ = 0;
};

class Lexer {
  public:
    explicit Lexer(std::string_view source) : source_(source) {}

    std::vector<Token> run() {
        while (at_ < source_.size()) {
            const size_t open = find_tag();
            if (open == source_.npos) {
                data(source_.size(), false, false);
                break;
            }
            tag(open);
        }
        add(TokenKind::End, {}, source_.size());
        return std::move(tokens_);
    }

  private:
    char peek(size_t at) const { return at < source_.size() ? source_[at] : '\0'; }
    bool has(size_t at, std::string_view text) const { return source_.substr(at, text.size()) == text; }

    size_t find_tag() const {
        for (size_t at = source_.find('{', at_); at != source_.npos; at = source_.find('{', at + 1)) {
            const char next = peek(at + 1);
            if (next == '{' || next == '%' || next == '#') return at;
        }
        return source_.npos;
    }

    // The text up to `end`, without the white space that the following tag strips.
    void data(size_t end, bool strip, bool left_strip) {
        std::string_view text = source_.substr(at_, end - at_);
        if (strip) {
            text.remove_suffix(trailing_space(text));
        } else if (left_strip) {
            const size_t line = text.rfind('\n') + 1;  // npos + 1 is 0
            if ((line > 0 || line_starts_) && leading_space(text.substr(line)) == text.size() - line)
                text = text.substr(0, line);
        }
        if (!text.empty()) add(TokenKind::Data, std::string(text), at_);
        at_ = end;
    }

    void tag(size_t open) {
        const char kind = source_[open + 1];
        const char sign = peek(open + 2) == '-' || peek(open + 2) == '+' ? source_[open + 2] : '\0';
        data(open, sign == '-', kind != '{' && sign != '+');
        at_ = open + 2 + (sign ? 1 : 0);
        if (kind == '#')
            comment(open);
        else if (kind == '%' && is_raw())
            raw(open);
        else
            expression(kind == '%', open);
        line_starts_ = source_[at_ - 1] == '\n';
    }

    // After the end of a tag: "-" strips all white space; otherwise a newline after a block is dropped.
    void finish(char sign, bool trims) {
        if (sign == '-')
            at_ += leading_space(source_.substr(at_));
        else if (sign != '+' && trims && peek(at_) == '\n')
            ++at_;
    }

    void comment(size_t open) {
        const size_t close = source_.find("#}", at_);
        if (close == source_.npos) fail_at(open, "Missing end of comment tag");
        const char sign = close > at_ ? source_[close - 1] : '\0';
        at_ = close + 2;
        finish(sign, true);
    }

    bool is_raw() const {
        size_t at = skip_space(at_);
        if (!has(at, "raw")) return false;
        at = skip_space(at + 3);
        return has(at, "%}") || has(at, "-%}");
    }

    size_t skip_space(size_t at) const {
        return at + leading_space(source_.substr(std::min(at, source_.size())));
    }

    void raw(size_t open) {
        at_ = source_.find("%}", at_) + 2;
        finish(source_[at_ - 3] == '-' ? '-' : '+', false);
        line_starts_ = source_[at_ - 1] == '\n';
        for (size_t end = source_.find("{%", at_); end != source_.npos; end = source_.find("{%", end + 1)) {
            const char sign = peek(end + 2) == '-' || peek(end + 2) == '+' ? source_[end + 2] : '\0';
            size_t at = skip_space(end + 2 + (sign ? 1 : 0));
            if (!has(at, "endraw")) continue;
            at = skip_space(at + 6);
            const char last = peek(at) == '-' || peek(at) == '+' ? source_[at] : '\0';
            if (last) ++at;
            if (!has(at, "%}")) continue;
            data(end, sign == '-', sign != '+');
            at_ = at + 2;
            finish(last, true);
            return;
        }
        fail_at(open, "Missing end of raw directive");
    }

    // Tokens up to the end of the tag; end marks within brackets do not count.
    void expression(bool block, size_t open) {
        add(block ? TokenKind::BlockBegin : TokenKind::VariableBegin, {}, open);
        const std::string_view close = block ? "%}" : "}}";
        std::vector<std::pair<char, size_t>> brackets;
        for (;;) {
            at_ = skip_space(at_);
            if (at_ >= source_.size())
                fail_at(open, block ? "this block tag has no end" : "this {{ has no end");
            const char sign = source_[at_] == '-' || (block && source_[at_] == '+') ? source_[at_] : '\0';
            if (brackets.empty() && has(at_ + (sign ? 1 : 0), close)) {
                add(block ? TokenKind::BlockEnd : TokenKind::VariableEnd, {}, at_);
                at_ += sign ? 3 : 2;
                finish(sign, block);
                return;
            }
            token(brackets);
        }
    }

    void token(std::vector<std::pair<char, size_t>> &brackets) {
        const char c = source_[at_];
        const Utf8Char character = first_char(source_.substr(at_));
        if (c == '\'' || c == '"') {
            string(c);
        } else if (is_digit(c)) {
            number();
        } else if (character.valid && is_word(character.code_point)) {
            name();
        } else {
            symbol(brackets);
        }
    }

    void string(char quote) {
        const size_t begin = at_;
        size_t end = at_ + 1;
        while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
        if (end >= source_.size()) fail_at(begin, "this string has no end");
        const Place place = place_of(begin);
        tokens_.push_back(
            {TokenKind::String, Unescaper(source_.substr(begin + 1, end - begin - 1), place).run(), place});
        at_ = end + 1;
    }

    // Digits with single "_" between them.
    template <class Digit>
    size_t digits(size_t at, const Digit &is) const {
        while (is(peek(at)) || (peek(at) == '_' && at > 0 && is(source_[at - 1]) && is(peek(at + 1)))) ++at;
        return at;
    }

    void number() {
        const size_t begin = at_;
        const char second = static_cast<char>(peek(at_ + 1) | 0x20);
        if (source_[at_] == '0' && (second == 'x' || second == 'b' || second == 'o')) return prefixed(second);
        size_t end = digits(at_, is_digit);
        bool whole = true;
        // After a dot, "l.1.2" is two indices.
        const bool indexes = begin > 0 && source_[begin - 1] == '.';
        if (!indexes && peek(end) == '.' && is_digit(peek(end + 1))) {
            end = digits(end + 1, is_digit);
            whole = false;
        }
        if (!indexes && (peek(end) == 'e' || peek(end) == 'E')) {
            const size_t exponent = end + (peek(end + 1) == '+' || peek(end + 1) == '-' ? 2 : 1);
            if (is_digit(peek(exponent))) {
                end = digits(exponent, is_digit);
                whole = false;
            }
        }
        const std::string_view text = source_.substr(begin, end - begin);
        if (whole && text.size() > 1 && text[0] == '0' && text.find_first_not_of("0_") != text.npos)
            fail_at(begin, "numbers must not start with 0");
        add_number(whole ? TokenKind::Integer : TokenKind::Float, begin, end);
    }

    void prefixed(char base) {
        const size_t begin = at_;
        const auto is = [&](char c) {
            return base == 'x' ? is_hex(c) : base == 'o' ? c >= '0' && c <= '7' : c == '0' || c == '1';
        };
        const size_t first = at_ + 2 + (peek(at_ + 2) == '_' ? 1 : 0);
        const size_t end = is(peek(first)) ? digits(first, is) : at_ + 1;
        add_number(TokenKind::Integer, begin, end);
    }

    void add_number(TokenKind kind, size_t begin, size_t end) {
        std::string text(source_.substr(begin, end - begin));
        std::erase(text, '_');
        add(kind, std::move(text), begin);
        at_ = end;
    }

    void name() {
        const size_t begin = at_;
        while (at_ < source_.size()) {
            const Utf8Char c = first_char(source_.substr(at_));
            if (!c.valid || !is_word(c.code_point)) break;
            at_ += c.bytes;
        }
        add(TokenKind::Name, std::string(source_.substr(begin, at_ - begin)), begin);
    }

    void symbol(std::vector<std::pair<char, size_t>> &brackets) {
        const auto *const found = std::find_if(std::begin(kOperators), std::end(kOperators),
                                               [&](std::string_view text) { return has(at_, text); });
        if (found == std::end(kOperators)) fail_at(at_, "unexpected character");
        const char c = found->size() == 1 ? found->front() : '\0';
        if (c == '(' || c == '[' || c == '{')
            brackets.emplace_back(c == '(' ? ')' : c == '[' ? ']' : '}', at_);
        if (c == ')' || c == ']' || c == '}') {
            if (brackets.empty()) fail_at(at_, "unexpected '" + std::string(1, c) + "'");
            if (brackets.back().first != c)
                fail_at(at_,
                        "unexpected '" + std::string(1, c) + "', expected '" + brackets.back().first + "'");
            brackets.pop_back();
        }
        add(TokenKind::Operator, std::string(*found), at_);
        at_ += found->size();
    }

    void add(TokenKind kind, std::string text, size_t at) {
        tokens_.push_back({kind, std::move(text), place_of(at)});
    }

    // Positions are mostly requested in ascending order.
    Place place_of(size_t at) {
        if (at < counted_) {
            counted_ = line_begin_ = 0;
            line_ = 1;
        }
        for (; counted_ < at; ++counted_)
            if (source_[counted_] == '\n') {
                ++line_;
                line_begin_ = counted_ + 1;
            }
        // Far into a long line, columns are counted in bytes: counting characters would be quadratic.
        constexpr size_t kCounted = 512;
        const size_t length = at - line_begin_;
        const size_t column =
            length <= kCounted ? count_characters(source_.substr(line_begin_, length)) : length;
        return {line_, static_cast<uint32_t>(column + 1)};
    }

    [[noreturn]] void fail_at(size_t at, const std::string &message) {
        fail(TemplateError::Kind::Syntax, message, place_of(at));
    }

    std::string_view source_;
    size_t at_ = 0;
    bool line_starts_ = true;  // the last text ends a line
    std::vector<Token> tokens_;
    size_t counted_ = 0, line_begin_ = 0;
    uint32_t line_ = 1;
};

}  // namespace

std::string normalize_source(std::string_view source) {
    std::string text;
    text.reserve(source.size());
    for (size_t i = 0; i < source.size(); ++i) {
        if (source[i] == '\r') {
            text += '\n';
            if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
        } else {
            text += source[i];
        }
    }
    if (text.ends_with('\n')) text.pop_back();
    return text;
}

std::vector<Token> lex(std::string_view source) {
    return Lexer(source).run();
}

std::string describe(const Token &token) {
    switch (token.kind) {
        case TokenKind::Data:
            return "text";
        case TokenKind::VariableBegin:
            return "'{{'";
        case TokenKind::VariableEnd:
            return "'}}'";
        case TokenKind::BlockBegin:
            return "'{%'";
        case TokenKind::BlockEnd:
            return "'%}'";
        case TokenKind::String:
            return "a string";
        case TokenKind::End:
            return "the end of the template";
        default:
            return "'" + token.text + "'";
    }
}

}  // namespace runnel::text::jinja
