// Checks that texts of the tool-call grammar parse as calls that the schemas allow.
#include "engine/grammar/tool_grammar.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "engine/grammar/machine.h"
#include "engine/text/tool_calls/parse.h"
#include "tests/support/random.h"

using namespace runnel;
using namespace runnel::grammar;
using testing::Random;
using text::ToolFormat;
using text::ToolUse;

namespace {

ToolUse some_tools() {
    return text::read_tools(text::parse_json(R"([
        {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "enum": ["Rome", "Oslo", "Lima"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 7},
            "exact": {"type": "boolean"},
            "hours": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 23}, "maxItems": 3}},
            "required": ["city", "days"]}}},
        {"type": "function", "function": {"name": "say", "parameters": {"type": "object", "properties": {
            "text": {"type": "string"}}, "required": ["text"]}}},
        {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}])"));
}

// A random text of the grammar: some random bytes, then the shortest way to an end.
std::string random_text(Machine &machine, Random &random) {
    std::string text;
    StateId state = machine.start();
    for (size_t left = 20 + random.below(200); left > 0; --left) {
        const std::vector<uint8_t> bytes = machine.next_bytes(state);
        if (bytes.empty() || (machine.accepts(state) && random.below(4) == 0)) break;
        text += static_cast<char>(bytes[random.below(bytes.size())]);
        state = machine.step(state, static_cast<uint8_t>(text.back()));
    }
    return text + machine.shortest_end(state).value_or("<no end>");
}

void check_arguments(const text::ToolCall &call) {
    const Json arguments = text::parse_json(call.arguments);
    CAPTURE(call.arguments);
    if (call.name == "now") CHECK(arguments.empty());
    if (call.name == "say") {
        CHECK(arguments.size() == 1);
        CHECK(arguments.at("text").is_string());
    }
    if (call.name != "get_weather") return;
    CHECK(std::set<std::string>{"Rome", "Oslo", "Lima"}.contains(arguments.at("city").get<std::string>()));
    CHECK(arguments.at("days").get<double>() >= 1);
    CHECK(arguments.at("days").get<double>() <= 7);
    if (arguments.contains("exact")) CHECK(arguments["exact"].is_boolean());
    if (arguments.contains("hours")) {
        CHECK(arguments["hours"].size() <= 3);
        for (const Json &hour : arguments["hours"]) CHECK(hour.get<double>() <= 23);
    }
}

Machine machine_of(const ToolFormat &format, const ToolUse &tools, const ToolGrammarOptions &options = {}) {
    return Machine(compile(tool_grammar(format, tools, literal, options)));
}

}  // namespace

TEST_CASE("tool grammar: every text is one or several calls that the schemas allow") {
    const ToolUse tools = some_tools();
    for (const ToolFormat &format : text::tool_formats()) {
        CAPTURE(format.name);
        Machine machine = machine_of(format, tools);
        std::set<std::string> names;
        for (uint64_t seed = 0; seed < 40; ++seed) {
            CAPTURE(seed);
            Random random(seed);
            const std::string text = random_text(machine, random);
            CAPTURE(text);
            const text::ParsedAnswer answer = text::parse_tool_calls(format, tools, text);
            CHECK(answer.note == "");
            CHECK(answer.content == "");
            CHECK(!answer.calls.empty());
            for (const text::ToolCall &call : answer.calls) {
                names.insert(call.name);
                check_arguments(call);
            }
        }
        CHECK(names.size() == 3);
    }
}

TEST_CASE("tool grammar: one required tool, one call, a mark that the prompt already contains") {
    ToolUse tools = some_tools();
    tools.choose("now");
    tools.parallel = false;
    for (const ToolFormat &format : text::tool_formats()) {
        CAPTURE(format.name);
        Random random(1);
        Machine machine = machine_of(format, tools);
        const std::string text = random_text(machine, random);
        CAPTURE(text);
        const auto calls = text::parse_tool_calls(format, tools, text).calls;
        REQUIRE(calls.size() == 1);
        CHECK(calls[0].name == "now");
        if (format.bare) continue;
        const std::string begun(format.triggers().front());
        Machine rest = machine_of(format, tools, {.begun = begun, .schema = {}});
        const auto again = text::parse_tool_calls(format, tools, begun + random_text(rest, random)).calls;
        REQUIRE(again.size() == 1);
        CHECK(again[0].name == "now");
    }
}

TEST_CASE("tool grammar: an answer that begins with a name is calls, text, or text and then calls") {
    const ToolUse tools = some_tools();
    const ToolFormat &format = *text::find_tool_format("Functionary 3.2");
    Machine machine = machine_of(format, tools, {.begun = {}, .may_be_text = true, .schema = {}});
    const auto accepts = [&](const std::string &text) {
        const StateId end = machine.advance(machine.start(), text);
        return end != kDead && machine.accepts(end);
    };
    CHECK(accepts("all\nHello >> you."));
    CHECK(accepts("all\n"));
    CHECK(accepts("now\n{}"));
    CHECK(accepts("now\n{}>>>say\n{\"text\": \"}>>>\"}"));
    CHECK(accepts("all\nI look.\n>>>now\n{}\n>>>now\n{}"));
    CHECK(!accepts(">>>now\n{}"));
    CHECK(!accepts("Hello"));
    CHECK(!accepts("all\nI look.>>>"));
    CHECK(!accepts("all\nI look.>>>later\n{}"));
    CHECK(!accepts("now\n[]"));
    CHECK(!accepts("now\n{} and"));
    for (uint64_t seed = 0; seed < 40; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        const std::string text = random_text(machine, random);
        CAPTURE(text);
        const text::ParsedAnswer answer = text::parse_tool_calls(format, tools, text);
        CHECK(answer.note == "");
        CHECK(answer.calls.empty() == (text.starts_with("all\n") && text.find(">>>") == text.npos));
        for (const text::ToolCall &call : answer.calls) check_arguments(call);
    }
}

TEST_CASE("tool grammar: an unusable schema allows any object, and the other tools keep their schemas") {
    ToolUse tools = some_tools();
    tools.tools[2].parameters = text::parse_json(R"({"type": "object", "properties": {"a": {"if": {}}}})");
    std::vector<std::string> notes;
    const ToolFormat &format = *text::find_tool_format("Hermes");
    Machine machine(compile(tool_grammar(format, tools, literal, {}, &notes)));
    REQUIRE(notes.size() == 1);
    CHECK(notes[0].find(
              "the arguments of now are not all constrained, because its schema cannot be used: ") == 0);
    CHECK(notes[0].find("if") != std::string::npos);
    CHECK(tool_problems(format, tools) == notes);
    const auto accepts = [&](const std::string &text) {
        const StateId end = machine.advance(machine.start(), text);
        return end != kDead && machine.accepts(end);
    };
    const auto call = [](const std::string &name, const std::string &arguments) {
        return "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": " + arguments + "}\n</tool_call>";
    };
    CHECK(accepts(call("now", "{\"a\": [1, {\"b\": null}]}")));
    CHECK(!accepts(call("now", "[]")));
    CHECK(accepts(call("get_weather", "{\"city\": \"Oslo\", \"days\": 3}")));
    CHECK(!accepts(call("get_weather", "{\"city\": \"Oslo\", \"days\": 8}")));
    CHECK(!accepts(call("get_weather", "{\"city\": \"Paris\", \"days\": 3}")));
    CHECK(!accepts(call("other", "{}")));
    CHECK(accepts(call("now", "{}") + "\n" + call("say", "{\"text\": \"</tool_call>\"}")));
}

TEST_CASE("tool grammar: references in a schema lead to the definitions of its own tool") {
    const ToolUse tools = text::read_tools(text::parse_json(R"([{"name": "f", "parameters": {
        "$defs": {"n": {"enum": [1, 2]}}, "type": "object", "properties": {"a": {"$ref": "#/$defs/n"}},
        "required": ["a"]}}])"));
    for (const char *name : {"Hermes", "Qwen3-Coder", "LFM2"}) {
        CAPTURE(name);
        const ToolFormat &format = *text::find_tool_format(name);
        std::vector<std::string> notes;
        Machine machine(compile(tool_grammar(format, tools, literal, {}, &notes)));
        CHECK(notes.empty());
        Random random(3);
        for (const auto &call : text::parse_tool_calls(format, tools, random_text(machine, random)).calls) {
            const Json arguments = text::parse_json(call.arguments);
            CHECK((arguments["a"] == 1 || arguments["a"] == 2));
        }
    }
}

namespace {

ToolUse one_tool(const char *parameters) {
    ToolUse tools;
    tools.tools.push_back({"f", text::parse_json(parameters)});
    return tools;
}

// The parsed arguments of random calls; calls with numbers too large for a double are left out.
std::vector<Json> forced(const ToolFormat &format, const ToolUse &tools,
                         std::vector<std::string> *notes = nullptr, uint64_t calls = 30) {
    Machine machine(compile(tool_grammar(format, tools, literal, {}, notes)));
    std::vector<Json> arguments;
    for (uint64_t seed = 0; seed < calls; ++seed) {
        Random random(seed);
        const std::string text = random_text(machine, random);
        CAPTURE(text);
        const text::ParsedAnswer answer = text::parse_tool_calls(format, tools, text);
        for (const text::ToolCall &call : answer.calls) arguments.push_back(text::parse_json(call.arguments));
    }
    CHECK(arguments.size() >= calls / 6);
    return arguments;
}

}  // namespace

TEST_CASE("tool grammar: a parameter that may be a string is parsed as its schema allows") {
    const ToolUse tools = one_tool(R"({"type": "object", "properties": {
        "unit": {"enum": ["C", "F"]}, "mixed": {"enum": ["C", 1, null]}, "name": {"type": ["string", "null"]},
        "day": {"type": "string", "enum": ["Mo", "Tu"]}}, "required": ["unit", "mixed", "name", "day"]})");
    for (const ToolFormat &format : text::tool_formats()) {
        if (format.body == ToolFormat::Body::Fields) continue;  // checks only plain types
        CAPTURE(format.name);
        for (const Json &arguments : forced(format, tools)) {
            CAPTURE(arguments.dump());
            CHECK((arguments["unit"] == "C" || arguments["unit"] == "F"));
            CHECK((arguments["mixed"] == "C" || arguments["mixed"] == 1 || arguments["mixed"].is_null()));
            CHECK((arguments["name"].is_string() || arguments["name"].is_null()));
            CHECK((arguments["day"] == "Mo" || arguments["day"] == "Tu"));
        }
    }
}

TEST_CASE("tool grammar: arguments are an object, whatever the type of the schema says") {
    const ToolFormat &format = *text::find_tool_format("Hermes");
    for (const char *schema :
         {R"({"type": "string"})", R"({"type": ["object", "null"]})", R"({"type": ["array"]})",
          R"({"type": ["object", "string"], "properties": {"a": {"type": "null"}}})"}) {
        CAPTURE(schema);
        std::vector<std::string> notes;
        for (const Json &arguments : forced(format, one_tool(schema), &notes)) CHECK(arguments.is_object());
        const bool has_object = std::string(schema).find("object") != std::string::npos;
        CHECK(notes.size() == (has_object ? 0 : 1));
        CHECK(tool_problems(format, one_tool(schema)).size() == notes.size());
    }
}

TEST_CASE("tool grammar: parameters without declared properties, and those behind a reference") {
    for (const ToolFormat &format : text::tool_formats()) {
        CAPTURE(format.name);
        const bool by_name = format.body == ToolFormat::Body::Parameters ||
                             format.body == ToolFormat::Body::Python ||
                             format.body == ToolFormat::Body::Fields;
        for (const char *schema : {"null", "{}", R"({"type": "object"})"}) {
            CAPTURE(schema);
            bool some = false;
            // (Few calls: any value may be long.)
            for (const Json &arguments : forced(format, one_tool(schema), nullptr, 10))
                some |= !arguments.empty();
            if (by_name) CHECK(some);
        }
        for (const char *schema : {R"({"type": "object", "properties": {}})",
                                   R"({"type": "object", "additionalProperties": false})"})
            for (const Json &arguments : forced(format, one_tool(schema))) CHECK(arguments.empty());
        const ToolUse tools =
            one_tool(R"({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b~1c"}, "b/c":
            {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]},
            "n": {"type": "integer"}}})");
        for (const Json &arguments : forced(format, tools)) {
            CHECK(arguments.size() == 1);
            // Fields are checked only by plain types.
            if (format.body != ToolFormat::Body::Fields) CHECK(arguments["n"].is_number());
        }
    }
}

TEST_CASE("tool grammar: a property that the format cannot write is noted") {
    const ToolUse tools = one_tool(R"({"type": "object", "properties": {"my param": {"type": "integer"},
        "n": {"type": "integer"}}, "required": ["my param"]})");
    for (const char *name : {"Qwen3-Coder", "LFM2", "Gemma 4"}) {
        CAPTURE(name);
        std::vector<std::string> notes;
        (void)forced(*text::find_tool_format(name), tools, &notes);
        REQUIRE(notes.size() == 1);
        CHECK(notes[0] == "calls of f leave out \"my param\", because the format " + std::string(name) +
                              " cannot write this name");
    }
}

TEST_CASE("tool grammar: an unusable part of a schema leaves only that argument unconstrained") {
    const ToolUse tools = one_tool(R"({"type": "object", "properties": {"a": {"if": {}},
        "n": {"type": "integer"}}, "required": ["n"]})");
    std::vector<std::string> notes;
    for (const Json &arguments : forced(*text::find_tool_format("LFM2"), tools, &notes))
        CHECK(arguments["n"].is_number());
    REQUIRE(notes.size() == 1);
    CHECK(notes[0].find("the argument a of f is any value, because its schema cannot be used: ") == 0);
}

TEST_CASE("tool grammar: bounds on items beyond 32 bits have no effect") {
    const ToolUse tools = one_tool(R"({"type": "object", "properties": {"n": {"type": "array",
        "items": {"type": "integer"}, "minItems": 1, "maxItems": 4294967296}}, "required": ["n"]})");
    for (const Json &arguments : forced(*text::find_tool_format("Gemma 4"), tools))
        CHECK(!arguments["n"].empty());
    const ToolUse many = one_tool(R"({"type": "object", "properties": {"n": {"type": "array",
        "items": {"type": "integer"}, "minItems": 4294967297}}, "required": ["n"]})");
    const ToolFormat &format = *text::find_tool_format("Gemma 4");
    std::vector<std::string> notes;
    (void)tool_grammar(format, many, literal, {}, &notes);
    CHECK(notes.size() == 1);
}
