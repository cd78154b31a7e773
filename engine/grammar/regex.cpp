#include "engine/grammar/regex.h"

#include <utf8proc.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "engine/grammar/characters.h"
#include "engine/grammar/dfa.h"
#include "gguf/printable.h"

namespace runnel::grammar {
namespace {

const CharSet kDigits{{'0', '9'}};
const CharSet kWords{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CharSet kSpaces{{'\t', '\r'},     {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680},
                      {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f},
                      {0x3000, 0x3000}, {0xfeff, 0xfeff}};
const CharSet kLineEnds{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

// Both names of every general category; one of a single letter includes all that begin with it.
constexpr struct {
    std::string_view brief, name;
} kCategories[] = {{"Cn", "Unassigned"},
                   {"Lu", "Uppercase_Letter"},
                   {"Ll", "Lowercase_Letter"},
                   {"Lt", "Titlecase_Letter"},
                   {"Lm", "Modifier_Letter"},
                   {"Lo", "Other_Letter"},
                   {"Mn", "Nonspacing_Mark"},
                   {"Mc", "Spacing_Mark"},
                   {"Me", "Enclosing_Mark"},
                   {"Nd", "Decimal_Number"},
                   {"Nl", "Letter_Number"},
                   {"No", "Other_Number"},
                   {"Pc", "Connector_Punctuation"},
                   {"Pd", "Dash_Punctuation"},
                   {"Ps", "Open_Punctuation"},
                   {"Pe", "Close_Punctuation"},
                   {"Pi", "Initial_Punctuation"},
                   {"Pf", "Final_Punctuation"},
                   {"Po", "Other_Punctuation"},
                   {"Sm", "Math_Symbol"},
                   {"Sc", "Currency_Symbol"},
                   {"Sk", "Modifier_Symbol"},
                   {"So", "Other_Symbol"},
                   {"Zs", "Space_Separator"},
                   {"Zl", "Line_Separator"},
                   {"Zp", "Paragraph_Separator"},
                   {"Cc", "Control"},
                   {"Cf", "Format"},
                   {"Cs", "Surrogate"},
                   {"Co", "Private_Use"}};
constexpr std::pair<std::string_view, char> kGroups[] = {
    {"Letter", 'L'}, {"Mark", 'M'},      {"Number", 'N'}, {"Punctuation", 'P'},
    {"Symbol", 'S'}, {"Separator", 'Z'}, {"Other", 'C'}};

std::optional<CharSet> category(std::string_view name) {
    for (const std::string_view prefix : {"General_Category=", "gc="})
        if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
    if (name == "Any") return CharSet::all();
    if (name == "ASCII") return CharSet{{0, 0x7f}};
    for (const auto &[group, letter] : kGroups)
        if (name == group) name = std::string_view(&letter, 1);
    std::vector<bool> wanted(std::size(kCategories));
    for (size_t i = 0; i < wanted.size(); ++i)
        wanted[i] = name == kCategories[i].brief || name == kCategories[i].name ||
                    (name.size() == 1 && name[0] == kCategories[i].brief[0]);
    if (std::find(wanted.begin(), wanted.end(), true) == wanted.end()) return std::nullopt;
    std::vector<CharRange> ranges;
    for (uint32_t c = 0; c <= kLastCodePoint; ++c) {
        const auto in = static_cast<size_t>(utf8proc_category(static_cast<utf8proc_int32_t>(c)));
        if (in >= wanted.size() || !wanted[in]) continue;
        if (!ranges.empty() && ranges.back().last + 1 == c)
            ranges.back().last = c;
        else
            ranges.push_back({c, c});
    }
    return CharSet(std::move(ranges));
}

class PatternParser {
  public:
    explicit PatternParser(std::string_view text) : text_(text) {}

    Expr parse() {
        Expr result = parse_alternatives();
        if (!at_end()) fail("')' without '('");
        return result;
    }

  private:
    [[noreturn]] void fail(const std::string &message) const {
        throw GrammarError(message + " in the pattern " + gguf::printable(text_), text_, at_);
    }
    bool at_end() const { return at_ >= text_.size(); }
    char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
    bool take(std::string_view what) {
        if (!text_.substr(at_).starts_with(what)) return false;
        at_ += what.size();
        return true;
    }

    Expr parse_alternatives() {
        if (++depth_ > kMaxNesting) fail("groups are nested too deeply");
        std::vector<Expr> alternatives{parse_sequence()};
        while (take("|")) alternatives.push_back(parse_sequence());
        --depth_;
        return choice(std::move(alternatives));
    }

    Expr parse_sequence() {
        std::vector<Expr> parts;
        while (!at_end() && peek() != '|' && peek() != ')') {
            const Expr part = parse_atom();
            parts.push_back(part->kind == Kind::Assert ? part : parse_quantifiers(part));
        }
        return sequence(std::move(parts));
    }

    Expr parse_quantifiers(Expr part) {
        uint32_t min = 0, max = kUnbounded;
        if (take("*")) {
        } else if (take("+")) {
            min = 1;
        } else if (take("?")) {
            max = 1;
        } else if (peek() != '{' || !parse_counts(min, max)) {
            return part;
        }
        if (!take("?") && peek() == '+') fail("a possessive quantifier is not supported");
        if (peek() == '*' || peek() == '+' || peek() == '?') fail("there is nothing to repeat");
        return repeat(std::move(part), min, max);
    }

    // {2}, {2,}, {2,3}; anything else in braces is text.
    bool parse_counts(uint32_t &min, uint32_t &max) {
        const size_t start = at_++;
        const auto number = [&](uint32_t &value) {
            uint64_t sum = 0;
            const size_t from = at_;
            while (is_digit(peek())) {
                sum = sum * 10 + static_cast<uint64_t>(text_[at_++] - '0');
                if (sum > kMaxCount) fail("the count is above " + std::to_string(kMaxCount));
            }
            value = static_cast<uint32_t>(sum);
            return at_ > from;
        };
        bool ok = number(min);
        if (ok && take(",")) {
            if (!number(max)) max = kUnbounded;
        } else {
            max = min;
        }
        ok = ok && take("}");
        if (!ok) {
            at_ = start;
            return false;
        }
        if (min > max) fail("the counts of a quantifier are out of order");
        return true;
    }

    Expr parse_atom() {
        switch (peek()) {
            case '(':
                return parse_group();
            case '[':
                return parse_class();
            case '.':
                ++at_;
                return one_of(kLineEnds.complement());
            case '^':
                ++at_;
                return assertion(Assertion::Start);
            case '$':
                ++at_;
                return assertion(Assertion::End);
            case '\\':
                return parse_escape();
            case '*':
            case '+':
            case '?':
                fail("there is nothing to repeat");
            default: {
                uint32_t c = 0;
                if (!next_code_point(text_.data(), text_.size(), at_, c)) fail("bytes that are not UTF-8");
                return one_of(CharSet::of(c));
            }
        }
    }

    Expr parse_group() {
        ++at_;
        if (take("?")) {
            if (take("=") || take("!") || take("<=") || take("<!")) fail("look-around is not supported");
            if (take(">")) fail("an atomic group is not supported");
            if (take("P<") || take("<")) {
                const size_t end = text_.find('>', at_);
                if (end == text_.npos) fail("a group's name is not followed by '>'");
                at_ = end + 1;
            } else if (!take(":")) {
                fail("flags and other extensions of groups are not supported");
            }
        }
        Expr inner = parse_alternatives();
        if (!take(")")) fail("'(' without ')'");
        return inner;
    }

    uint32_t parse_hex(size_t digits) {
        uint32_t value = 0;
        for (size_t i = 0; i < digits; ++i) {
            const int digit = hex_digit(peek());
            if (digit < 0) fail("expected " + std::to_string(digits) + " hexadecimal digits");
            value = value << 4 | static_cast<uint32_t>(digit);
            ++at_;
        }
        return value;
    }

    // Parses what follows "\u".
    uint32_t parse_unicode() {
        uint32_t c = 0;
        if (take("{")) {
            const size_t start = at_;
            while (hex_digit(peek()) >= 0 && c <= kLastCodePoint)
                c = c << 4 | static_cast<uint32_t>(hex_digit(text_[at_++]));
            if (at_ == start || !take("}") || c > kLastCodePoint) fail("\\u{..} needs a character's number");
        } else {
            c = parse_hex(4);
            if (c >= 0xd800 && c <= 0xdbff && take("\\u")) {
                const uint32_t low = parse_hex(4);
                if (low < 0xdc00 || low > 0xdfff) fail("half of a surrogate pair");
                c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
            }
        }
        if (c >= 0xd800 && c <= 0xdfff) fail("half of a surrogate pair");
        return c;
    }

    // Parses an escape sequence, from its backslash on: a character, or the set of \d and the like.
    CharSet parse_escaped_set() {
        ++at_;
        if (at_end()) fail("a backslash at the end");
        const char kind = text_[at_++];
        switch (kind) {
            case 'd':
                return kDigits;
            case 'D':
                return kDigits.complement();
            case 'w':
                return kWords;
            case 'W':
                return kWords.complement();
            case 's':
                return kSpaces;
            case 'S':
                return kSpaces.complement();
            case 't':
                return CharSet::of('\t');
            case 'n':
                return CharSet::of('\n');
            case 'r':
                return CharSet::of('\r');
            case 'f':
                return CharSet::of('\f');
            case 'v':
                return CharSet::of('\v');
            case 'x':
                return CharSet::of(parse_hex(2));
            case 'u':
                return CharSet::of(parse_unicode());
            case 'c': {
                const char letter = peek();
                if ((letter | 0x20) < 'a' || (letter | 0x20) > 'z') fail("\\c needs a letter");
                ++at_;
                return CharSet::of(static_cast<uint32_t>(letter & 31));
            }
            case 'p':
            case 'P': {
                const size_t end = text_.find('}', at_);
                if (!take("{") || end == text_.npos) fail("\\p needs a {name}");
                const std::string_view name = text_.substr(at_, end - at_);
                const std::optional<CharSet> set = category(name);
                if (!set) fail("\\p{" + gguf::printable(name) + "} is not supported");
                at_ = end + 1;
                return kind == 'p' ? *set : set->complement();
            }
            case '0':
                if (!is_digit(peek())) return CharSet::of(0);
                [[fallthrough]];
            default:
                if (is_digit(kind) || kind == 'k') fail("a back-reference is not supported");
                if ((kind | 0x20) >= 'a' && (kind | 0x20) <= 'z')
                    fail(std::string("unknown escape sequence \\") + kind);
                --at_;
                uint32_t c = 0;
                if (!next_code_point(text_.data(), text_.size(), at_, c)) fail("bytes that are not UTF-8");
                return CharSet::of(c);
        }
    }

    Expr parse_escape() {
        switch (peek(1)) {
            case 'b':
                at_ += 2;
                return assertion(Assertion::WordBoundary);
            case 'B':
                at_ += 2;
                return assertion(Assertion::NoWordBoundary);
            case 'A':
                at_ += 2;
                return assertion(Assertion::Start);
            case 'Z':
            case 'z':
                at_ += 2;
                return assertion(Assertion::End);
            default:
                return one_of(parse_escaped_set());
        }
    }

    Expr parse_class() {
        const size_t start = at_++;
        const bool negated = take("^");
        std::vector<CharRange> ranges;
        while (peek() != ']') {
            if (at_end()) {
                at_ = start;
                fail("'[' without ']'");
            }
            const CharSet first = parse_class_part();
            if (peek() == '-' && peek(1) != ']' && at_ + 1 < text_.size()) {
                ++at_;
                const CharSet last = parse_class_part();
                const bool range = first.size() == 1 && last.size() == 1;
                const uint32_t from = first.empty() ? 0 : first.ranges()[0].first;
                const uint32_t to = last.empty() ? 0 : last.ranges()[0].first;
                if (range && from > to) fail("a range that is out of order");
                if (range) {
                    ranges.push_back({from, to});
                    continue;
                }
                // Beside a class such as \d, the dash is literal.
                ranges.push_back({'-', '-'});
                for (const CharSet *set : {&first, &last})
                    ranges.insert(ranges.end(), set->ranges().begin(), set->ranges().end());
            } else {
                ranges.insert(ranges.end(), first.ranges().begin(), first.ranges().end());
            }
        }
        ++at_;
        const CharSet set(std::move(ranges));
        return one_of(negated ? set.complement() : set);
    }
    CharSet parse_class_part() {
        if (peek() == '\\') {
            if (peek(1) == 'b') {
                at_ += 2;
                return CharSet::of('\b');
            }
            return parse_escaped_set();
        }
        uint32_t c = 0;
        if (!next_code_point(text_.data(), text_.size(), at_, c)) fail("bytes that are not UTF-8");
        return CharSet::of(c);
    }

    std::string_view text_;
    size_t at_ = 0, depth_ = 0;
};

bool has_assertion(const Expression &e) {
    return e.kind == Kind::Assert ||
           std::any_of(e.parts.begin(), e.parts.end(), [](const Expr &part) { return has_assertion(*part); });
}

bool is_assertion(const Expr &e, Assertion kind) {
    return e->kind == Kind::Assert && e->assertion == kind;
}

// `e` without the anchors at its ends; at_start and at_end: whether there were any.
Expr strip_anchors(const Expr &e, bool &at_start, bool &at_end) {
    std::vector<Expr> parts{e};
    if (e->kind == Kind::Sequence) parts = e->parts;
    size_t begin = 0, end = parts.size();
    while (begin < end && is_assertion(parts[begin], Assertion::Start)) ++begin;
    while (end > begin && is_assertion(parts[end - 1], Assertion::End)) --end;
    at_start = begin > 0;
    at_end = end < parts.size();
    return sequence(
        {parts.begin() + static_cast<ptrdiff_t>(begin), parts.begin() + static_cast<ptrdiff_t>(end)});
}

}  // namespace

Expr parse_regex(std::string_view pattern) {
    if (pattern.size() > kMaxGrammarBytes) throw GrammarError("the pattern is larger than 4 MiB");
    return PatternParser(pattern).parse();
}

Expr whole_match(const Expr &regex) {
    bool at_start = false, at_end = false;
    const Expr inner = strip_anchors(regex, at_start, at_end);
    if (!has_assertion(*inner)) return inner;
    return words(std::make_shared<Dfa>(Dfa::of(regex)), Spelling::Plain);
}

Expr search_match(const Expr &regex) {
    if (regex->kind == Kind::Choice) {
        std::vector<Expr> alternatives;
        for (const Expr &part : regex->parts) alternatives.push_back(search_match(part));
        return choice(std::move(alternatives));
    }
    bool at_start = false, at_end = false;
    const Expr inner = strip_anchors(regex, at_start, at_end);
    if (has_assertion(*inner)) return words(std::make_shared<Dfa>(Dfa::of(regex, true)), Spelling::Plain);
    const Expr any = repeat(one_of(CharSet::all()), 0);
    return sequence({at_start ? empty() : any, inner, at_end ? empty() : any});
}

}  // namespace runnel::grammar
