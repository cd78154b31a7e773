#include "engine/grammar/gbnf.h"

#include <string>
#include <unordered_map>

#include "engine/grammar/characters.h"
#include "gguf/printable.h"

namespace runnel::grammar {
namespace {

bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
}

class Parser {
  public:
    Parser(std::string_view text, const Tokenize &tokenize) : text_(text), tokenize_(tokenize) {}

    Grammar parse() {
        skip_blanks(true);
        while (!at_end()) {
            parse_rule();
            skip_blanks(true);
        }
        for (const auto &[index, at] : references_)
            if (!grammar_.rules[index].body)
                throw GrammarError("rule '" + grammar_.rules[index].name + "' is not defined", text_, at);
        const auto root = ids_.find("root");
        if (root == ids_.end()) throw GrammarError("there is no rule 'root'");
        grammar_.root = root->second;
        return std::move(grammar_);
    }

  private:
    [[noreturn]] void fail(const std::string &message) const { throw GrammarError(message, text_, at_); }
    [[noreturn]] void fail_expecting(const std::string &what) const {
        fail("expected " + what +
             (at_end() ? " at the end" : ", not '" + gguf::printable(text_.substr(at_), 12) + "'"));
    }
    bool at_end() const { return at_ >= text_.size(); }
    char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
    bool take(std::string_view what) {
        if (!text_.substr(at_).starts_with(what)) return false;
        at_ += what.size();
        return true;
    }

    void skip_blanks(bool newlines) {
        while (!at_end()) {
            const char c = peek();
            if (c == '#')
                while (!at_end() && peek() != '\n' && peek() != '\r') ++at_;
            else if (c == ' ' || c == '\t' || (newlines && (c == '\n' || c == '\r')))
                ++at_;
            else
                return;
        }
    }

    std::string parse_name() {
        const size_t start = at_;
        while (is_name(peek())) ++at_;
        if (at_ == start) fail_expecting("a name (letters, digits and '-')");
        return std::string(text_.substr(start, at_ - start));
    }

    uint32_t id_of(const std::string &name) {
        const auto [at, added] = ids_.try_emplace(name, 0);
        if (added) at->second = grammar_.add(name);
        return at->second;
    }

    void parse_rule() {
        const size_t start = at_;
        const uint32_t index = id_of(parse_name());
        skip_blanks(false);
        if (!take("::=")) fail_expecting("::=");
        skip_blanks(true);
        const Expr body = parse_alternatives(false);
        grammar_.rules[index].body = body;  // defined twice: the last one counts
        set_place(grammar_.rules[index], start);
        if (take("\r")) {
            take("\n");
        } else if (!take("\n") && !at_end()) {
            fail_expecting("the end of the line");
        }
    }

    void set_place(Rule &rule, size_t start) {
        for (; placed_ < start; ++placed_) {
            ++column_;
            if (text_[placed_] == '\n') ++line_, column_ = 1;
        }
        rule.line = line_;
        rule.column = column_;
    }

    Expr parse_alternatives(bool nested) {
        if (++depth_ > kMaxNesting) fail("groups are nested too deeply");
        std::vector<Expr> alternatives{parse_sequence(nested)};
        while (peek() == '|') {
            ++at_;
            skip_blanks(true);
            alternatives.push_back(parse_sequence(nested));
        }
        --depth_;
        return choice(std::move(alternatives));
    }

    Expr parse_sequence(bool nested) {
        std::vector<Expr> parts;
        bool repeatable = false;  // false after "" and [], as in llama.cpp
        for (;; skip_blanks(nested)) {
            const char c = peek();
            if (c == '*' || c == '+' || c == '?' || c == '{') {
                if (!repeatable) fail("there is nothing before '" + std::string(1, c) + "' to repeat");
                parts.back() = parse_repetition(parts.back());
                continue;
            }
            repeatable = true;
            if (c == '"') {
                parts.push_back(parse_literal());
                repeatable = parts.back()->kind != Kind::Empty;
            } else if (c == '[') {
                parts.push_back(parse_class());
                repeatable = parts.back()->kind != Kind::Empty;
            } else if (c == '.') {
                ++at_;
                parts.push_back(one_of(CharSet::all()));
            } else if (c == '<' || c == '!') {
                parts.push_back(parse_token());
            } else if (is_name(c)) {
                const size_t start = at_;
                const uint32_t index = id_of(parse_name());
                references_.emplace_back(index, start);
                parts.push_back(rule(index));
            } else if (c == '(') {
                ++at_;
                skip_blanks(true);
                parts.push_back(parse_alternatives(true));
                if (!take(")")) fail_expecting("')'");
            } else {
                return sequence(std::move(parts));
            }
        }
    }

    Expr parse_repetition(const Expr &part) {
        const char c = text_[at_++];
        if (c == '*') return repeat(part, 0);
        if (c == '+') return repeat(part, 1);
        if (c == '?') return optional(part);
        skip_blanks(true);
        const size_t start = at_;
        const uint32_t min = parse_count();
        uint32_t max = min;
        skip_blanks(true);
        if (take(",")) {
            skip_blanks(true);
            max = peek() == '}' ? kUnbounded : parse_count();
            skip_blanks(true);
        }
        if (!take("}")) fail_expecting("'}'");
        if (min > max) {
            at_ = start;
            fail("the minimum count is larger than the maximum: {" + std::to_string(min) + "," +
                 std::to_string(max) + "}");
        }
        if (max == 0) return empty();
        return repeat(part, min, max);
    }
    uint32_t parse_count() {
        uint64_t value = 0;
        const size_t start = at_;
        while (peek() >= '0' && peek() <= '9') {
            value = value * 10 + static_cast<uint64_t>(text_[at_++] - '0');
            if (value > kMaxCount) fail("the count is above " + std::to_string(kMaxCount));
        }
        if (at_ == start) fail_expecting("a number");
        return static_cast<uint32_t>(value);
    }

    // A character, or an escape sequence for one.
    uint32_t parse_char() {
        if (at_end()) fail("the text ends inside a literal");
        if (peek() != '\\') {
            uint32_t c = 0;
            if (!next_code_point(text_.data(), text_.size(), at_, c)) fail("this is not UTF-8");
            return c;
        }
        const size_t start = at_++;
        const char kind = peek();
        ++at_;
        switch (kind) {
            case 't':
                return '\t';
            case 'r':
                return '\r';
            case 'n':
                return '\n';
            case '\\':
            case '"':
            case '[':
            case ']':
            case '-':
                return static_cast<uint8_t>(kind);
            case 'x':
            case 'u':
            case 'U':
                return parse_hex(start, kind == 'x' ? 2 : kind == 'u' ? 4 : 8);
            default:
                at_ = start;
                fail("unknown escape sequence '" + gguf::printable(text_.substr(at_, 2)) + "'");
        }
    }
    uint32_t parse_hex(size_t start, int digits) {
        uint32_t c = 0;
        for (int i = 0; i < digits; ++i) {
            const int digit = hex_digit(peek());
            if (digit < 0) fail_expecting(std::to_string(digits) + " hexadecimal digits");
            c = c << 4 | static_cast<uint32_t>(digit);
            ++at_;
        }
        if (c > kLastCodePoint || (c >= 0xd800 && c <= 0xdfff)) {
            at_ = start;
            fail("the escape sequence is not a Unicode character");
        }
        return c;
    }

    Expr parse_literal() {
        ++at_;
        std::vector<uint8_t> bytes;
        while (peek() != '"' || at_end()) append_utf8(bytes, parse_char());
        ++at_;
        return literal({reinterpret_cast<const char *>(bytes.data()), bytes.size()});
    }

    Expr parse_class() {
        ++at_;
        const bool negated = take("^");
        std::vector<CharRange> ranges;
        bool any = false;
        while (peek() != ']' || at_end()) {
            any = true;
            const uint32_t first = parse_char();
            if (peek() == '-' && peek(1) != ']') {
                ++at_;
                ranges.push_back({first, parse_char()});
            } else {
                ranges.push_back({first, first});
            }
        }
        ++at_;
        if (!any) return empty();  // as in llama.cpp
        const CharSet set(std::move(ranges));
        return one_of(negated ? set.complement() : set);
    }

    Expr parse_token() {
        const size_t start = at_;
        const bool negated = take("!");
        if (!take("<")) fail_expecting("'<' after '!'");
        if (take("[")) {
            const uint32_t id = parse_count();
            if (!take("]>")) fail_expecting("']>'");
            return token({static_cast<int32_t>(id)}, negated);
        }
        const size_t end = text_.find('>', at_);
        if (end == text_.npos) fail("'<' without '>'");
        const std::string_view spelled = text_.substr(start + negated, end + 1 - start - negated);
        if (!tokenize_) {
            at_ = start;
            fail("naming a token by its text needs a model: " + gguf::printable(spelled));
        }
        const std::vector<int32_t> tokens = tokenize_(spelled);
        if (tokens.size() != 1) {
            at_ = start;
            fail(gguf::printable(spelled) + " is not one token of this model, but " +
                 std::to_string(tokens.size()));
        }
        at_ = end + 1;
        return token(tokens, negated);
    }

    std::string_view text_;
    const Tokenize &tokenize_;
    size_t at_ = 0, depth_ = 0;
    size_t placed_ = 0, line_ = 1, column_ = 1;
    Grammar grammar_;
    std::unordered_map<std::string, uint32_t> ids_;
    std::vector<std::pair<uint32_t, size_t>> references_;
};

}  // namespace

Grammar parse_gbnf(std::string_view text, const Tokenize &tokenize) {
    if (text.size() > kMaxGrammarBytes) throw GrammarError("the grammar is larger than 4 MiB");
    if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
    return Parser(text, tokenize).parse();
}

}  // namespace runnel::grammar
