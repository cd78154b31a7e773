#include "engine/grammar/json_text.h"

#include "engine/grammar/numbers.h"

namespace runnel::grammar {

Expr whitespace(Whitespace policy) {
    constexpr uint32_t kMostBlanks = 20;
    const Expr blanks = one_of(CharSet{{' ', ' '}, {'\t', '\t'}});
    switch (policy) {
        case Whitespace::Compact:
            return empty();
        case Whitespace::Any:
            return repeat(one_of(CharSet{{' ', ' '}, {'\t', '\n'}, {'\r', '\r'}}), 0);
        case Whitespace::Bounded:
            break;
    }
    return choice(
        {empty(), literal(" "), sequence({repeat(literal("\n"), 1, 2), repeat(blanks, 0, kMostBlanks)})});
}

Expr quoted_string(const Expr &characters) {
    return sequence({literal("\""), characters, literal("\"")});
}

Expr exact_string(std::string_view text) {
    std::vector<Expr> parts{literal("\"")};
    uint32_t c = 0;
    for (size_t at = 0; at < text.size();) {
        const size_t from = at;
        if (!next_code_point(text.data(), text.size(), at, c)) throw GrammarError("a string is not UTF-8");
        if (c == '"' || c == '\\')
            parts.push_back(literal(c == '"' ? "\\\"" : "\\\\"));
        else if (c >= 0x20 && c < 0x7f)
            parts.push_back(literal(text.substr(from, at - from)));
        else
            parts.push_back(one_of(CharSet::of(c), Spelling::Json));
    }
    parts.push_back(literal("\""));
    return sequence(std::move(parts));
}

Expr comma(const Expr &space) {
    return sequence({literal(","), space});
}

Expr member(const Expr &key, const Expr &value, const Expr &space) {
    return sequence({key, space, literal(":"), space, value, space});
}

Expr braces(const Expr &inside, const Expr &space) {
    return sequence({literal("{"), space, inside, literal("}")});
}

Expr brackets(const Expr &inside, const Expr &space) {
    return sequence({literal("["), space, inside, literal("]")});
}

namespace {

// 2 and 2.0 are equal: both match.
Expr exact_number(const std::string &spelled) {
    const Decimal value = Decimal::parse(spelled);
    if (!value.fraction.empty() || spelled.find('e') != spelled.npos) return literal(spelled);
    return sequence({literal((value.negative ? "-" : "") + (value.whole.empty() ? "0" : value.whole)),
                     optional(sequence({literal("."), repeat(literal("0"), 1)}))});
}

}  // namespace

Expr exact_value(const Json &value, const Expr &space) {
    if (value.is_string()) return exact_string(value.get_ref<const std::string &>());
    if (value.is_number()) return exact_number(value.dump());
    if (!value.is_structured()) return literal(value.dump());
    std::vector<Expr> parts;
    for (const auto &[key, part] : value.items()) {
        if (!parts.empty()) parts.push_back(comma(space));
        const Expr inner = exact_value(part, space);
        parts.push_back(value.is_object() ? member(exact_string(key), inner, space)
                                          : sequence({inner, space}));
    }
    const Expr inside = sequence(std::move(parts));
    return value.is_object() ? braces(inside, space) : brackets(inside, space);
}

uint32_t add_any_value(Grammar &grammar, const Expr &space, uint32_t *object_rule) {
    const uint32_t value = grammar.add("value"), object = grammar.add("object"), array = grammar.add("array");
    const uint32_t string = grammar.add("string");
    grammar.rules[string].body = quoted_string(repeat(one_of(CharSet::all(), Spelling::Json), 0));
    const Expr one_member = member(rule(string), rule(value), space);
    const Expr one_element = sequence({rule(value), space});
    const auto list = [&](const Expr &item) {
        return optional(sequence({item, repeat(sequence({comma(space), item}), 0)}));
    };
    grammar.rules[object].body = braces(list(one_member), space);
    grammar.rules[array].body = brackets(list(one_element), space);
    grammar.rules[value].body = choice({rule(object), rule(array), rule(string), number({}, false),
                                        literal("true"), literal("false"), literal("null")});
    if (object_rule) *object_rule = object;
    return value;
}

Json parse_json_text(std::string_view text, const char *what) {
    try {
        return text::parse_json(text, {.bytes = kMaxGrammarBytes, .depth = kMaxNesting});
    } catch (const text::JsonError &error) {
        throw GrammarError(std::string("the ") + what + " is not JSON: " + error.what());
    }
}

Grammar json_grammar(Whitespace policy, bool object) {
    Grammar grammar;
    const Expr space = whitespace(policy);
    grammar.add("root");
    uint32_t object_rule = 0;
    const uint32_t value = add_any_value(grammar, space, &object_rule);
    grammar.rules[0].body = sequence({rule(object ? object_rule : value), space});
    return grammar;
}

}  // namespace runnel::grammar
