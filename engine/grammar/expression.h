// What all kinds of grammar become: rules made of expressions, a context-free language over characters.
//
//   Grammar grammar;
//   grammar.rules.push_back({"root", sequence({literal("a"), repeat(any_of(digits), 1, 3)})});
//   const Program program = compile(grammar);      // program.h
//
// Expressions are immutable values that may share parts. The makers below simplify trivial cases: whatever
// requires a part that can never match (Never) becomes Never.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/grammar/char_set.h"
#include "engine/grammar/error.h"

namespace runnel::grammar {

// How a character is written. Plain: as itself. Json: as in a JSON string, so as itself where JSON allows
// that, as its short escape, or as \uXXXX (two of them above U+FFFF).
enum class Spelling : uint8_t { Plain, Json };

enum class Kind : uint8_t {
    Never,
    Empty,
    Bytes,       // `text`
    Chars,       // one character of `chars`, written as `spelling` says
    Sequence,    // `parts`
    Choice,      // `parts`
    Repeat,      // parts[0], `min` to `max` times
    Rule,        // rules[`rule`]
    Token,       // one of the tokens `tokens`, or any other one if `negated`
    Words,       // a text of `min` to `max` characters that `dfa` (dfa.h) accepts, written as `spelling` says
    Properties,  // the properties of an object: see PropertyList
    Assert,      // matches no character: `assertion`; allowed only in expressions that become a Dfa
};

enum class Assertion : uint8_t { Start, End, WordBoundary, NoWordBoundary };

class Dfa;
struct Expression;
using Expr = std::shared_ptr<const Expression>;

// Some of the properties of an object, in order, with separators between them, `min` to `max` in number; then
// extras.
struct PropertyList {
    struct Property {
        Expr member;  // "name": value
        bool required;
    };
    std::vector<Property> properties;
    Expr extra;      // one further member, or null
    Expr separator;  // between two
    uint32_t min = 0, max = kUnbounded;
    bool any_order = false;
};

struct Expression {
    Kind kind = Kind::Never;
    Spelling spelling = Spelling::Plain;
    bool negated = false;
    Assertion assertion = Assertion::Start;
    uint32_t min = 0, max = 0;
    uint32_t rule = 0;
    std::string text;
    CharSet chars;
    std::vector<Expr> parts;
    std::vector<int32_t> tokens;
    std::shared_ptr<const Dfa> dfa;
    std::shared_ptr<const PropertyList> properties;
};

struct Rule {
    std::string name;
    Expr body;                    // null: not defined
    size_t line = 0, column = 0;  // of its definition; 0: unknown
};

struct Grammar {
    std::vector<Rule> rules;
    uint32_t root = 0;

    uint32_t add(std::string name, Expr body = nullptr) {
        if (rules.size() >= kMaxRules) throw GrammarError("more than 100,000 rules");
        rules.push_back({std::move(name), std::move(body)});
        return static_cast<uint32_t>(rules.size() - 1);
    }
};

Expr never();
Expr empty();
Expr literal(std::string_view bytes);
Expr one_of(CharSet chars, Spelling spelling = Spelling::Plain);
Expr sequence(std::vector<Expr> parts);
Expr choice(std::vector<Expr> parts);
Expr repeat(Expr part, uint32_t min, uint32_t max = kUnbounded);
inline Expr optional(Expr part) {
    return repeat(std::move(part), 0, 1);
}
Expr rule(uint32_t index);
Expr token(std::vector<int32_t> tokens, bool negated);
Expr words(std::shared_ptr<const Dfa> dfa, Spelling spelling, uint32_t min = 0, uint32_t max = kUnbounded);
Expr members(PropertyList list);
Expr assertion(Assertion kind);

// `part` in another spelling. It may hold Bytes (UTF-8) and Chars, but no Rule, Token or Properties.
Expr spelled(const Expr &part, Spelling spelling);

}  // namespace runnel::grammar
