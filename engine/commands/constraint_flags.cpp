#include "engine/commands/constraint_flags.h"

namespace runnel::commands {
namespace {

using Kind = grammar::Source::Kind;

// Returns `given` itself if `is_text`, otherwise the content of the file that it names.
std::string text_or_file(const std::string &given, bool is_text, Io &io) {
    return is_text ? given : read_all(given, io.in);
}

bool looks_like_grammar(const std::string &given) {
    return given.find("::=") != given.npos;
}

bool looks_like_schema(const std::string &given) {
    const size_t at = given.find_first_not_of(" \t\r\n");
    return at != given.npos && (given[at] == '{' || given == "true" || given == "false");
}

}  // namespace

void add_constraint_options(OptionTable &table, ConstraintFlags &f) {
    using grammar::Whitespace;
    table
        .text("--grammar,--grammar-file", f.grammar,
              "only text that this grammar allows: GBNF, or a file with it")
        .takes("FILE|TEXT");
    table
        .text("--json-schema,-j,-jf,--json-schema-file", f.schema,
              "only JSON that this schema allows: the schema, or a file with it")
        .takes("FILE|TEXT");
    table.text("--regex", f.regex, "only text that matches this regular expression as a whole")
        .takes("REGEX");
    table.list("--choice", f.choices, "only one of these texts; repeatable");
    // ollama takes a schema here, too.
    table
        .add("--format", "WORD", "json: only JSON, of any shape; or a JSON schema",
             [&f](const std::string &text) {
                 if (text != "json" && text != "text" && !looks_like_schema(text))
                     throw ValueError("json, text or a JSON schema");
                 f.json = text == "json";
                 if (f.json || text == "text") return;
                 f.schema = text;
             })
        .by_default("text");
    table
        .choice(
            "--whitespace", f.whitespace,
            {{"bounded", Whitespace::Bounded}, {"compact", Whitespace::Compact}, {"any", Whitespace::Any}},
            "blanks in JSON: bounded (a blank, or newlines and up to 20 blanks), compact (none), any")
        .rare();
    table.flag("--any-order", f.any_order, "a schema's properties may come in any order").rare();
}

grammar::SchemaOptions json_style(const ConstraintFlags &f) {
    return {.whitespace = f.whitespace, .any_order = f.any_order};
}

bool check_constraint(const ConstraintFlags &f) {
    const int given = int{f.grammar.has_value()} + int{f.schema.has_value()} + int{f.regex.has_value()} +
                      int{!f.choices.empty()} + int{f.json};
    if (given > 1)
        throw UsageError("give one of --grammar, --json-schema, --regex, --choice and --format json");
    return given == 1;
}

std::optional<grammar::Source> constraint_of(const ConstraintFlags &f, Io &io) {
    if (!check_constraint(f)) return std::nullopt;
    grammar::Source source;
    source.options = json_style(f);
    if (f.grammar) {
        source.kind = Kind::Gbnf;
        source.text = text_or_file(*f.grammar, looks_like_grammar(*f.grammar), io);
    } else if (f.schema) {
        source.kind = Kind::Schema;
        source.text = text_or_file(*f.schema, looks_like_schema(*f.schema), io);
    } else if (f.regex) {
        source.kind = Kind::Regex;
        source.text = *f.regex;
    } else if (!f.choices.empty()) {
        source.kind = Kind::Choices;
        source.choices = f.choices;
    } else {
        source.kind = Kind::AnyJson;
    }
    return source;
}

}  // namespace runnel::commands
