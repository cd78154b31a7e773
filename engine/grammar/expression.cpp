#include "engine/grammar/expression.h"

#include <algorithm>

namespace runnel::grammar {
namespace {

Expr make(Expression expression) {
    return std::make_shared<const Expression>(std::move(expression));
}

Expr of_kind(Kind kind) {
    Expression e;
    e.kind = kind;
    return make(std::move(e));
}

}  // namespace

Expr never() {
    static const Expr shared = of_kind(Kind::Never);
    return shared;
}

Expr empty() {
    static const Expr shared = of_kind(Kind::Empty);
    return shared;
}

Expr literal(std::string_view bytes) {
    if (bytes.empty()) return empty();
    Expression e;
    e.kind = Kind::Bytes;
    e.text = bytes;
    return make(std::move(e));
}

Expr one_of(CharSet chars, Spelling spelling) {
    if (chars.empty()) return never();
    Expression e;
    e.kind = Kind::Chars;
    e.chars = std::move(chars);
    e.spelling = spelling;
    return make(std::move(e));
}

Expr sequence(std::vector<Expr> parts) {
    std::vector<Expr> flat;
    const auto add = [&](const Expr &part) {
        if (part->kind == Kind::Bytes && !flat.empty() && flat.back()->kind == Kind::Bytes)
            flat.back() = literal(flat.back()->text + part->text);
        else
            flat.push_back(part);
    };
    for (const Expr &part : parts) {
        if (part->kind == Kind::Never) return never();
        if (part->kind == Kind::Empty) continue;
        if (part->kind == Kind::Sequence)
            for (const Expr &inner : part->parts) add(inner);
        else
            add(part);
    }
    if (flat.empty()) return empty();
    if (flat.size() == 1) return flat[0];
    Expression e;
    e.kind = Kind::Sequence;
    e.parts = std::move(flat);
    return make(std::move(e));
}

Expr choice(std::vector<Expr> parts) {
    std::vector<Expr> flat;
    bool has_empty = false;
    for (const Expr &part : parts) {
        if (part->kind == Kind::Never) continue;
        if (part->kind == Kind::Empty && std::exchange(has_empty, true)) continue;
        if (part->kind == Kind::Choice)
            flat.insert(flat.end(), part->parts.begin(), part->parts.end());
        else
            flat.push_back(part);
    }
    if (flat.empty()) return never();
    if (flat.size() == 1) return flat[0];
    Expression e;
    e.kind = Kind::Choice;
    e.parts = std::move(flat);
    return make(std::move(e));
}

Expr repeat(Expr part, uint32_t min, uint32_t max) {
    if (min > max) return never();
    if (max == 0 || part->kind == Kind::Empty) return empty();
    if (part->kind == Kind::Never) return min == 0 ? empty() : never();
    if (min == 1 && max == 1) return part;
    Expression e;
    e.kind = Kind::Repeat;
    e.min = min;
    e.max = max;
    e.parts = {std::move(part)};
    return make(std::move(e));
}

Expr rule(uint32_t index) {
    Expression e;
    e.kind = Kind::Rule;
    e.rule = index;
    return make(std::move(e));
}

Expr token(std::vector<int32_t> tokens, bool negated) {
    if (tokens.empty() && !negated) return never();
    std::sort(tokens.begin(), tokens.end());
    Expression e;
    e.kind = Kind::Token;
    e.tokens = std::move(tokens);
    e.negated = negated;
    return make(std::move(e));
}

Expr words(std::shared_ptr<const Dfa> dfa, Spelling spelling, uint32_t min, uint32_t max) {
    Expression e;
    e.kind = Kind::Words;
    e.dfa = std::move(dfa);
    e.spelling = spelling;
    e.min = min;
    e.max = max;
    return make(std::move(e));
}

Expr members(PropertyList list) {
    Expression e;
    e.kind = Kind::Properties;
    e.properties = std::make_shared<const PropertyList>(std::move(list));
    return make(std::move(e));
}

Expr assertion(Assertion kind) {
    Expression e;
    e.kind = Kind::Assert;
    e.assertion = kind;
    return make(std::move(e));
}

Expr spelled(const Expr &part, Spelling spelling) {
    switch (part->kind) {
        case Kind::Bytes: {
            std::vector<Expr> chars;
            uint32_t c = 0;
            for (size_t at = 0; at < part->text.size();) {
                if (!next_code_point(part->text.data(), part->text.size(), at, c))
                    throw GrammarError("a string is not UTF-8");
                chars.push_back(one_of(CharSet::of(c), spelling));
            }
            return sequence(std::move(chars));
        }
        case Kind::Chars:
            return one_of(part->chars, spelling);
        case Kind::Sequence:
        case Kind::Choice: {
            std::vector<Expr> parts;
            for (const Expr &inner : part->parts) parts.push_back(spelled(inner, spelling));
            return part->kind == Kind::Sequence ? sequence(std::move(parts)) : choice(std::move(parts));
        }
        case Kind::Repeat:
            return repeat(spelled(part->parts[0], spelling), part->min, part->max);
        case Kind::Words:
            return words(part->dfa, spelling, part->min, part->max);
        default:
            return part;
    }
}

}  // namespace runnel::grammar
