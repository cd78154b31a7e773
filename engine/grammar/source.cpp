#include "engine/grammar/source.h"

#include "engine/grammar/regex.h"

namespace runnel::grammar {
namespace {

Grammar of_expression(const Expr &body) {
    Grammar grammar;
    grammar.add("root", body);
    return grammar;
}

Grammar grammar_of(const Source &source, const Tokenize &tokenize, std::vector<std::string> *notes) {
    switch (source.kind) {
        case Source::Kind::Gbnf:
            return parse_gbnf(source.text, tokenize);
        case Source::Kind::Schema:
            return schema_grammar(std::string_view(source.text), source.options, notes);
        case Source::Kind::Regex:
            return of_expression(whole_match(parse_regex(source.text)));
        case Source::Kind::Choices: {
            std::vector<Expr> texts;
            for (const std::string &text : source.choices) texts.push_back(literal(text));
            return of_expression(choice(std::move(texts)));
        }
        case Source::Kind::AnyJson:
        case Source::Kind::AnyObject:
            break;
    }
    return json_grammar(source.options.whitespace, source.kind == Source::Kind::AnyObject);
}

}  // namespace

Program compile(const Source &source, const Tokenize &tokenize, std::vector<std::string> *notes,
                bool behind_text) {
    Grammar grammar = grammar_of(source, tokenize, notes);
    if (behind_text) {
        const Expr root = rule(grammar.root);
        grammar.root = grammar.add("text", sequence({repeat(literal("\n"), 0, 4), root}));
    }
    return compile(std::move(grammar));
}

}  // namespace runnel::grammar
