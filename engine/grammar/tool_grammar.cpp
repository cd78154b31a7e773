#include "engine/grammar/tool_grammar.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "engine/grammar/dfa.h"

namespace runnel::grammar {
namespace {

using text::Tool;
using text::ToolFormat;
using Body = ToolFormat::Body;

// Throws GrammarError for a type that excludes objects.
void check_type(const Json &schema) {
    const Json *type = text::find_member(schema, "type");
    if (type && *type != "object" && !(type->is_array() && std::ranges::find(*type, "object") != type->end()))
        throw GrammarError("its type excludes objects");
}

// The arguments' schema, restricted to objects. Throws GrammarError.
Json object_schema(const Tool &tool) {
    Json schema = tool.parameters.is_object() ? tool.parameters : Json::object();
    check_type(schema);
    check_type(text::resolved_parameters(tool));
    schema["type"] = "object";
    return schema;
}

std::string problem_of(const Tool &tool, const std::string &what) {
    return "the arguments of " + tool.name +
           " are not all constrained, because its schema cannot be used: " + what;
}

// Moves expressions from one grammar to another.
class Importer {
  public:
    Importer(Grammar &to, const Grammar &from) : offset_(static_cast<uint32_t>(to.rules.size())) {
        for (const Rule &rule : from.rules) to.add(rule.name);
        for (size_t i = 0; i < from.rules.size(); ++i)
            if (from.rules[i].body) to.rules[offset_ + i].body = moved(from.rules[i].body);
        root_ = offset_ + from.root;
    }
    Expr root() const { return rule(root_); }

  private:
    Expr moved(const Expr &expression) {
        if (!expression) return nullptr;
        if (const auto found = known_.find(expression.get()); found != known_.end()) return found->second;
        auto copy = std::make_shared<Expression>(*expression);
        if (copy->kind == Kind::Rule) copy->rule += offset_;
        for (Expr &part : copy->parts) part = moved(part);
        if (copy->properties) {
            auto list = std::make_shared<PropertyList>(*copy->properties);
            for (PropertyList::Property &property : list->properties)
                property.member = moved(property.member);
            list->extra = moved(list->extra);
            list->separator = moved(list->separator);
            copy->properties = std::move(list);
        }
        return known_.emplace(expression.get(), std::move(copy)).first->second;
    }

    uint32_t offset_, root_ = 0;
    std::map<const Expression *, Expr> known_;
};

// Any text without `mark` in it.
Expr text_without(std::string_view mark) {
    return words(std::make_shared<Dfa>(Dfa::of(literal(mark), true).complement()), Spelling::Plain);
}

class ToolCompiler {
  public:
    ToolCompiler(const ToolFormat &format, const MarkExpr &mark, const ToolGrammarOptions &options,
                 std::vector<std::string> *notes)
        : format_(format),
          mark_(mark),
          options_(options),
          notes_(notes),
          space_(whitespace(options.schema.whitespace)) {}

    Grammar compile(const text::ToolUse &tools) {
        grammar_.add("root");
        std::vector<Expr> calls;
        for (const Tool &tool : tools.tools)
            if (tools.only.empty() || tool.name == tools.only) calls.push_back(call(tool));
        const Expr one = rule(grammar_.add("call", choice(std::move(calls))));
        const uint32_t most = tools.parallel && format_.repeats ? kUnbounded : 1;
        grammar_.rules[0].body = answer(one, most);
        if (options_.may_be_text) {
            const Expr all = rule(grammar_.add("calls", grammar_.rules[0].body));
            const Expr text =
                sequence({mark_(std::string(format_.text_name) + "\n"), text_without(format_.before)});
            grammar_.rules[0].body =
                choice({all, sequence({text, optional(sequence({mark_(format_.before), all}))})});
        }
        return std::move(grammar_);
    }

  private:
    // The first mark of the answer, without the part that is already written.
    Expr first(std::string_view mark) const {
        if (options_.begun.empty() && !format_.text_name.empty())
            return empty();  // the prompt contains the mark
        if (options_.begun.empty()) return format_.bare ? optional(mark_(mark)) : mark_(mark);
        return mark_(mark.substr(std::min(mark.size(), options_.begun.size())));
    }
    Expr answer(const Expr &one, uint32_t most) const {
        const uint32_t more = most == kUnbounded ? kUnbounded : most - 1;
        if (format_.body == Body::List || format_.body == Body::Python) {
            const Expr next = sequence({literal(","), space_, one});
            return sequence({first(format_.before), literal("["), space_, one, repeat(next, 0, more),
                             literal("]"), format_.bare ? empty() : mark_(format_.after)});
        }
        const Expr lines = repeat(literal("\n"), 0, 2);
        const Expr next = sequence({lines, mark_(format_.before), one});
        if (format_.open.empty()) return sequence({first(format_.before), one, repeat(next, 0, more)});
        return sequence({first(format_.open), mark_(format_.before), one, repeat(next, 0, more), lines,
                         mark_(format_.close)});
    }

    // What follows `before` in a call.
    Expr call(const Tool &tool) {
        switch (format_.body) {
            case Body::Object:
                return sequence({object(tool), format_.bare ? empty() : mark_(format_.after)});
            case Body::List:
                return sequence({object(tool), space_});
            case Body::Named:
                return sequence({literal(tool.name), number(), id(), mark_(format_.between), arguments(tool),
                                 mark_(format_.after)});
            case Body::Parameters:
                return sequence(
                    {literal(tool.name), mark_(format_.between),
                     properties(tool, empty(), &ToolCompiler::parameter, &ToolCompiler::any_parameter),
                     mark_(format_.after)});
            case Body::Python:
                return sequence(
                    {literal(tool.name), literal("("),
                     properties(tool, sequence({literal(","), optional(literal(" "))}),
                                &ToolCompiler::python_argument, &ToolCompiler::any_python_argument),
                     literal(")")});
            case Body::Fields:
                break;
        }
        return sequence({literal(tool.name), literal("{"),
                         properties(tool, literal(","), &ToolCompiler::field, &ToolCompiler::any_named_field),
                         literal("}"), mark_(format_.after)});
    }

    Expr number() const {
        if (!format_.counted) return empty();
        return sequence({literal(":"), repeat(one_of(CharSet{{'0', '9'}}), 1, 3)});
    }
    Expr id_characters() const { return repeat(one_of(CharSet{{'0', '9'}, {'A', 'Z'}, {'a', 'z'}}), 9, 9); }
    Expr id() const {
        if (format_.id_mark.empty()) return empty();
        return optional(sequence({mark_(format_.id_mark), id_characters()}));
    }

    Expr object(const Tool &tool) {
        const auto key = [](std::string_view name) { return exact_string(name); };
        const Expr inner = arguments(tool);
        if (format_.name_key.empty()) return braces(member(key(tool.name), inner, space_), space_);
        const Expr name = member(key(format_.name_key), exact_string(tool.name), space_);
        const Expr rest = member(key(format_.arguments_key), inner, space_);
        std::vector<Expr> parts = {name, comma(space_), rest};
        if (format_.id_key == "id") {  // Mistral writes ids last
            const Expr member_of_id =
                member(key("id"), sequence({literal("\""), id_characters(), literal("\"")}), space_);
            parts.push_back(optional(sequence({comma(space_), member_of_id})));
        } else if (!format_.id_key.empty()) {
            const Expr count =
                sequence({literal("\""), repeat(one_of(CharSet{{'0', '9'}}), 1, 3), literal("\"")});
            parts.insert(parts.begin(),
                         sequence({member(key(format_.id_key), count, space_), comma(space_)}));
        }
        return braces(sequence(std::move(parts)), space_);
    }

    // The arguments as one JSON object.
    Expr arguments(const Tool &tool) {
        try {
            return Importer(grammar_, schema_grammar(object_schema(tool), options_.schema)).root();
        } catch (const GrammarError &error) {
            note(problem_of(tool, error.what()));
            return any_object();
        }
    }
    Expr any_object() { return Importer(grammar_, json_grammar(options_.schema.whitespace, true)).root(); }

    // Each declared property in order, by `write`; if none are declared, any property, by `write_any`.
    Expr properties(const Tool &tool, const Expr &separator,
                    Expr (ToolCompiler::*write)(const Tool &, const std::string &, const Json &),
                    Expr (ToolCompiler::*write_any)()) {
        try {
            (void)object_schema(tool);
        } catch (const GrammarError &error) {
            note(problem_of(tool, error.what()));
        }
        const Json &all = text::resolved_parameters(tool);
        const Json *declared = text::declared_properties(tool);
        if (!declared) {
            const Json *more = text::find_member(all, "additionalProperties");
            if (more && *more == false) return empty();
            const Expr any = (this->*write_any)();
            return optional(sequence({any, repeat(sequence({separator, any}), 0)}));
        }
        const Json *required = text::find_member(all, "required");
        PropertyList list;
        list.separator = separator;
        for (const auto &[name, schema] : declared->items()) {
            const bool needed = required && required->is_array() &&
                                std::ranges::find(*required, Json(name)) != required->end();
            if (is_plain(name))
                list.properties.push_back({(this->*write)(tool, name, schema), needed});
            else
                note("calls of " + tool.name + " leave out " +
                     text::Json(name).dump(-1, ' ', true, text::Json::error_handler_t::replace) +
                     ", because the format " + std::string(format_.name) + " cannot write this name");
        }
        return list.properties.empty() ? empty() : members(std::move(list));
    }
    // A name beyond those that are declared.
    static Expr any_name() {
        return repeat(one_of(CharSet{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}), 1, 64);
    }
    // A name that no format can mistake for its own syntax.
    static bool is_plain(const std::string &name) {
        return !name.empty() && std::ranges::all_of(name, text::is_tool_name_character);
    }

    // One value, as JSON; references go to the whole schema's definitions.
    Expr value(const Tool &tool, const std::string &name, Json schema) {
        if (schema.is_object())
            for (const char *key : {"$defs", "definitions"})
                if (const Json *all = text::find_member(tool.parameters, key); all && !schema.contains(key))
                    schema[key] = *all;
        try {
            return Importer(grammar_, schema_grammar(schema, options_.schema)).root();
        } catch (const GrammarError &error) {
            note_argument(tool, name, error.what());
            return any_value();
        }
    }
    Expr any_value() {
        if (!any_value_) any_value_ = Importer(grammar_, json_grammar(options_.schema.whitespace)).root();
        return any_value_;
    }
    void note_argument(const Tool &tool, const std::string &name, const std::string &what) {
        note("the argument " + name + " of " + tool.name +
             " is any value, because its schema cannot be used: " + what);
    }

    // Raw text before `end`: one of the declared texts, or any.
    static Expr raw_string(const Json &schema, std::string_view end) {
        const Json *values = text::find_member(schema, "enum");
        if (!values || !values->is_array()) return text_without(end);
        std::vector<Expr> texts;
        for (const Json &one : *values)
            if (one.is_string() && one.get_ref<const std::string &>().find(end) == std::string::npos)
                texts.push_back(literal(one.get_ref<const std::string &>()));
        return texts.empty() ? text_without(end) : choice(std::move(texts));
    }

    Expr parameter(const Tool &tool, const std::string &name, const Json &schema) {
        const bool raw = text::is_raw_text(schema);
        const Expr type = format_.typed ? literal(raw ? "true\">" : "false\">") : empty();
        const Expr inner =
            raw ? raw_string(schema, text::first_word(format_.end_value)) : value(tool, name, schema);
        return sequence({mark_(format_.parameter), literal(name), mark_(format_.value), type, inner,
                         mark_(format_.end_value)});
    }
    Expr any_parameter() {
        const std::string_view end = text::first_word(format_.end_value);
        const Expr inner = !format_.typed ? text_without(end)
                                          : choice({sequence({literal("true\">"), text_without(end)}),
                                                    sequence({literal("false\">"), any_value()})});
        return sequence(
            {mark_(format_.parameter), any_name(), mark_(format_.value), inner, mark_(format_.end_value)});
    }
    Expr python_argument(const Tool &tool, const std::string &name, const Json &schema) {
        const Json *type = text::find_member(schema, "type");
        const bool truth = type && *type == "boolean";
        const Expr inner =
            truth ? choice({literal("True"), literal("False"), literal("true"), literal("false")})
                  : value(tool, name, schema);
        return sequence({literal(name + "="), inner});
    }
    Expr any_python_argument() { return sequence({any_name(), literal("="), any_value()}); }
    Expr field(const Tool &tool, const std::string &name, const Json &schema) {
        return sequence({literal(name + ":"), field_value(tool, name, schema)});
    }
    Expr any_named_field() { return sequence({any_name(), literal(":"), any_field()}); }
    // The elements of a list with a declared type are checked; objects in it may hold anything.
    Expr field_value(const Tool &tool, const std::string &name, const Json &schema) {
        const Json *type = text::find_member(schema, "type"), *items = text::find_member(schema, "items");
        if (text::is_raw_text(schema)) return quoted(raw_string(schema, text::kFieldQuote));
        if (type && (*type == "integer" || *type == "number" || *type == "boolean"))
            return value(tool, name, schema);
        if (!type || *type != "array" || !items || text::find_member(*items, "items")) return any_field();
        const auto count = [&](const char *key, uint32_t otherwise) {
            const Json *number = text::find_member(schema, key);
            if (!number || !number->is_number_unsigned()) return otherwise;
            return static_cast<uint32_t>(std::min<uint64_t>(number->get<uint64_t>(), kUnbounded));
        };
        const uint32_t least = count("minItems", 0), most = count("maxItems", kUnbounded);
        if (most == 0) return literal("[]");
        if (least > most || least > kMaxCount) {
            note_argument(tool, name, least > most ? "minItems is above maxItems" : "minItems is too large");
            return any_field();
        }
        const Expr item = field_value(tool, name, *items);
        const Expr all = sequence({item, repeat(sequence({literal(","), item}), least > 0 ? least - 1 : 0,
                                                most == kUnbounded ? kUnbounded : most - 1)});
        return sequence({literal("["), least == 0 ? optional(all) : all, literal("]")});
    }
    Expr quoted(const Expr &inner) const {
        return sequence({mark_(text::kFieldQuote), inner, mark_(text::kFieldQuote)});
    }
    Expr any_field() {
        if (any_field_) return rule(*any_field_);
        any_field_ = grammar_.add("field");
        const Expr any = rule(*any_field_);
        const auto list = [](const Expr &item) {
            return optional(sequence({item, repeat(sequence({literal(","), item}), 0)}));
        };
        const Json scalar = {{"type", {"number", "boolean", "null"}}};
        const Expr json =
            Importer(grammar_, schema_grammar(scalar, {.whitespace = Whitespace::Compact})).root();
        grammar_.rules[*any_field_].body = choice(
            {quoted(text_without(text::kFieldQuote)), json, sequence({literal("["), list(any), literal("]")}),
             sequence({literal("{"), list(sequence({any_name(), literal(":"), any})), literal("}")})});
        return any;
    }

    void note(std::string text) {
        if (notes_) notes_->push_back(std::move(text));
    }

    const ToolFormat &format_;
    const MarkExpr &mark_;
    const ToolGrammarOptions &options_;
    std::vector<std::string> *notes_;
    const Expr space_;
    Grammar grammar_;
    std::optional<uint32_t> any_field_;
    Expr any_value_;
};

}  // namespace

Grammar tool_grammar(const ToolFormat &format, const text::ToolUse &tools, const MarkExpr &mark,
                     const ToolGrammarOptions &options, std::vector<std::string> *notes) {
    return ToolCompiler(format, mark, options, notes).compile(tools);
}

std::vector<std::string> tool_problems(const ToolFormat &format, const text::ToolUse &tools,
                                       const SchemaOptions &options) {
    text::ToolUse all;
    all.tools = tools.tools;
    std::vector<std::string> problems;
    try {
        if (!all.tools.empty())
            (void)tool_grammar(format, all, literal, {.begun = {}, .schema = options}, &problems);
    } catch (const GrammarError &) {  // the request that needs the grammar reports it
    }
    return problems;
}

}  // namespace runnel::grammar
