#include "engine/grammar/schema.h"

#include <nlohmann/json.hpp>

#include "tests/engine/grammar/grammar_support.h"
#include "tests/support/data.h"
#include "tests/support/random.h"

using namespace runnel;
using namespace runnel::grammar;
using testing::grammar_error;
using testing::matches;

namespace {

Machine machine_for(const std::string &schema, SchemaOptions options = {}) {
    return Machine(compile(schema_grammar(std::string_view(schema), options)));
}

// Generates a random text byte by byte: it must always be possible to continue or to end.
void check_no_dead_end(Machine &machine, testing::Random &random) {
    StateId state = machine.start();
    std::string text;
    for (int i = 0; i < 80; ++i) {
        const std::vector<uint8_t> next = machine.next_bytes(state);
        CHECK_MESSAGE((!next.empty() || machine.accepts(state)), text);
        if (next.empty()) break;
        // Picks escapes and bytes of longer characters as often as the many plain characters.
        const bool rare = random.below(2) == 0;
        uint8_t byte = next[random.below(next.size())];
        for (const uint8_t other : next)
            if (rare && (other == '\\' || other >= 0xc0)) byte = other;
        text += static_cast<char>(byte);
        state = machine.step(state, byte);
    }
}

}  // namespace

TEST_CASE("JSON Schema: the recorded schemas accept and reject what an independent validator does") {
    // Written by scripts/record-schemas.
    size_t schemas = 0;
    for (const Json &entry : Json::parse(testing::read_file("tests/data/grammar/schemas.json"))) {
        const std::string schema = entry["schema"].dump();
        CAPTURE(schema);
        Machine machine = machine_for(schema);
        for (const std::string text : entry["accept"]) CHECK_MESSAGE(matches(machine, text), text);
        for (const std::string text : entry["reject"]) CHECK_MESSAGE(!matches(machine, text), text);
        ++schemas;
    }
    CHECK(schemas >= 300);
}

TEST_CASE("JSON Schema: unsupported keywords are refused by name, with their place") {
    const auto message = [](const std::string &schema) {
        return grammar_error([&] { schema_grammar(std::string_view(schema)); });
    };
    const std::pair<const char *, const char *> kCases[] = {
        {R"({"not": {"type": "string"}})", "the keyword not is not supported"},
        {R"({"if": {}, "then": {}})", "the keyword if is not supported"},
        {R"({"type": "array", "uniqueItems": true})", "the keyword uniqueItems is not supported"},
        {R"({"type": "array", "contains": {"type": "null"}})", "the keyword contains is not supported"},
        {R"({"dependentRequired": {"a": ["b"]}})", "the keyword dependentRequired is not supported"},
        {R"({"unevaluatedItems": false})", "the keyword unevaluatedItems is not supported"},
        {R"({"oneOf": [{"type": "integer"}, {"minimum": 2}]})", "the keyword oneOf is supported only"},
        {R"({"type": "strin"})", "there is no type strin"},
        {R"({"$ref": "#/nowhere"})", "points to nothing"},
        {R"({"$ref": "https://example.org/x"})", "points outside the schema"},
        {R"({"$ref": "#"})", "refers to itself"},
        {R"({"allOf": [{"$ref": "#"}]})", "refers to itself"},
        {R"#({"type": "string", "pattern": "a(?=b)"})#", "look-around is not supported"},
        {R"({"type": "string", "pattern": "(a)\\1"})", "a back-reference is not supported"},
        {R"({"minLength": -1})", "minLength must be a whole number"},
        {R"([1])", "a schema is an object, true or false"},
        {R"({"type": )", "line 1, column 9"},
        {R"(false)", "no text matches"},
    };
    for (const auto &[schema, part] : kCases) {
        const std::string what = grammar_error([&] { compile(schema_grammar(std::string_view(schema))); });
        CHECK_MESSAGE(what.find(part) != what.npos, schema << ": " << what);
    }
    const std::string nested = R"({"type":"object","properties":{"a/b":{"items":{"not":{}}}}})";
    CHECK_MESSAGE(message(nested).starts_with("schema #/properties/a~1b/items: "), message(nested));
    std::vector<std::string> notes;
    schema_grammar(std::string_view(R"({"type": "string", "format": "int32", "x-order": 3})"), {}, &notes);
    CHECK(notes.size() == 2);
}

TEST_CASE("JSON Schema: no text leads to a dead end, also inside a character") {
    constexpr const char *kSchemas[] = {
        R"({"type":"string","allOf":[{"pattern":"^a"},{"pattern":"b$"},{"maxLength":9}]})",
        R"({"allOf":[{"pattern":"[0-9]"},{"pattern":"[a-z]"}],"type":"string","minLength":3,"maxLength":12})",
        R"({"type":"string","format":"email","maxLength":16})",
        R"({"type":"string","format":"uri","maxLength":18})",
        R"({"type":"string","format":"hostname"})",
        R"({"type":"string","pattern":"\\Bx","maxLength":13,"minLength":2})",
        R"({"type":"string","pattern":"^(ab)*$","minLength":3,"maxLength":7})",
        R"({"type":"object","properties":{"a":{},"b":{}},"maxProperties":0})",
        R"({"type":"object","properties":{"a":{},"b":{}},"minProperties":2,"maxProperties":2})",
        R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}}})",
    };
    testing::Random random(5);
    for (const bool any_order : {false, true})
        for (const char *schema : kSchemas) {
            if (any_order && std::string_view(schema).find("Properties") != std::string_view::npos) continue;
            CAPTURE(schema);
            Machine machine =
                machine_for(schema, {.whitespace = Whitespace::Compact, .any_order = any_order});
            for (int round = 0; round < 20; ++round) check_no_dead_end(machine, random);
        }
    for (const Json &entry : Json::parse(testing::read_file("tests/data/grammar/schemas.json"))) {
        const std::string schema = entry["schema"].dump();
        CAPTURE(schema);
        Machine machine = machine_for(schema);
        check_no_dead_end(machine, random);
    }
}

TEST_CASE("JSON Schema: integers, and numbers with bounds, have a last zero after the point") {
    struct Case {
        const char *schema;
        const char *begin;  // a number with a point
        size_t zeros;       // that may follow it
    };
    constexpr Case kCases[] = {
        {R"({"type":"integer"})", "6.", 17},
        {R"({"type":"integer","minimum":1,"maximum":9})", "6.", 17},
        {R"({"type":"number","minimum":1,"maximum":9})", "6.", 17},
        {R"({"type":"number","minimum":1,"maximum":9})", "6.25", 15},
        {R"({"type":"number","exclusiveMaximum":0})", "-1.", 17},
        {R"({"type":"number","minimum":1e-20})", "6.", 20},
        {R"({"type":"number","multipleOf":0.25})", "6.", 3},
        {R"({"type":"integer","multipleOf":3})", "6.", 1},
    };
    for (const auto &[schema, begin, zeros] : kCases) {
        CAPTURE(schema);
        CAPTURE(begin);
        Machine machine = machine_for(schema);
        CHECK(matches(machine, begin + std::string(zeros, '0')));
        CHECK(!matches(machine, begin + std::string(zeros + 1, '0')));
        const StateId last = machine.advance(machine.start(), begin + std::string(zeros, '0'));
        CHECK(machine.step(last, '0') == kDead);
    }
    // A bound with very many places is accepted, and then digits have no end.
    Machine smallest = machine_for(R"({"type":"number","minimum":1e-300})");
    CHECK(matches(smallest, "6." + std::string(400, '0')));
    CHECK(!matches(smallest, "0"));
}

TEST_CASE("JSON Schema: an object without properties has none, and the name \"\" is one of many") {
    Machine none = machine_for(R"({"type":"object","properties":{"a":{}},"maxProperties":0})");
    CHECK(matches(none, "{}"));
    CHECK(!matches(none, R"({"a":1})"));
    Machine machine = machine_for(
        R"({"type":"object","properties":{"":{"type":"null"}},"additionalProperties":{"type":"integer"}})");
    for (const char *text : {R"({"":null})", R"({"":null,"b":2})", R"({"b":2})"})
        CHECK_MESSAGE(matches(machine, text), text);
    for (const char *text : {R"({"":2})", R"({"b":null})"}) CHECK_MESSAGE(!matches(machine, text), text);
    Machine all = machine_for(R"({"properties":{"":{"type":"null"}},"type":"object"})");
    CHECK(!matches(all, R"({"b":null})"));
}

TEST_CASE("JSON Schema: formats have the limits of common parsers") {
    Machine date = machine_for(R"({"type":"string","format":"date"})");
    CHECK(!matches(date, "\"0000-01-01\""));
    CHECK(!matches(date, "\"0000-02-29\""));
    for (const char *text : {"\"0001-01-01\"", "\"0010-12-31\"", "\"0400-02-29\"", "\"2000-02-29\""})
        CHECK_MESSAGE(matches(date, text), text);
    Machine host = machine_for(R"({"type":"string","format":"hostname"})");
    std::string name = "a";
    for (int i = 0; i < 126; ++i) name += ".b";
    CHECK(matches(host, "\"" + name + "\""));
    CHECK(!matches(host, "\"" + name + ".b\""));
    CHECK(!matches(host, "\"" + name + "c\""));
}

TEST_CASE("JSON Schema: keys come in their order, or in any") {
    const std::string schema =
        R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"},"c":{"type":"null"}},"required":["a","b"]})";
    Machine declared = machine_for(schema), any = machine_for(schema, {.any_order = true});
    CHECK(matches(declared, R"({"a":1,"b":2})"));
    CHECK(!matches(declared, R"({"b":2,"a":1})"));
    for (const char *text : {R"({"a":1,"b":2})", R"({"b":2,"a":1})", R"({"c":null,"b":2,"a":1})"})
        CHECK(matches(any, text));
    for (const char *text :
         {R"({"a":1})", R"({"a":1,"b":2,"a":1})", R"({"c":null,"b":2})", R"({"a":1,"b":2,"d":1})"})
        CHECK(!matches(any, text));
}

TEST_CASE("JSON Schema: whitespace is bounded, absent or free") {
    const std::string schema = R"({"type":"array","items":{"type":"null"}})";
    Machine bounded = machine_for(schema), compact = machine_for(schema, {.whitespace = Whitespace::Compact});
    Machine any = machine_for(schema, {.whitespace = Whitespace::Any});
    const std::string kTexts[] = {"[null,null]", "[ null ,\n\n\t\tnull\n]", "[  null]",
                                  "[\n" + std::string(21, ' ') + "]"};
    const bool kAllowed[][3] = {
        {true, true, true}, {true, false, true}, {false, false, true}, {false, false, true}};
    for (size_t i = 0; i < std::size(kTexts); ++i) {
        CAPTURE(kTexts[i]);
        CHECK(matches(bounded, kTexts[i]) == kAllowed[i][0]);
        CHECK(matches(compact, kTexts[i]) == kAllowed[i][1]);
        CHECK(matches(any, kTexts[i]) == kAllowed[i][2]);
    }
}

TEST_CASE("JSON Schema: strings are compared by their characters, in every spelling") {
    Machine machine = machine_for(R"({"type":"string","pattern":"^[aé😀/\n]{3}$"})");
    for (const char *text : {"\"aé😀\"", "\"\\u0061\\u00E9\\ud83d\\uDE00\"", "\"a/\\/\"", "\"\\n\\na\""})
        CHECK_MESSAGE(matches(machine, text), text);
    for (const char *text :
         {"\"aé\"", "\"aé\\ud83d\"", "\"aé\\ude00\\ud83d\"", "\"\n\na\"", "\"aaaa\"", "\"ab\\u00e9\""})
        CHECK_MESSAGE(!matches(machine, text), text);
}

TEST_CASE("JSON Schema: names that are not declared are additional, however they are spelled") {
    Machine machine = machine_for(
        R"({"type":"object","properties":{"name":{"type":"integer"}},"additionalProperties":{"type":"null"}})");
    for (const char *text :
         {R"({"name":1,"nam":null})", R"({"names":null})", R"({"":null})", R"({"n\"":null})"})
        CHECK_MESSAGE(matches(machine, text), text);
    for (const char *text :
         {R"({"name":null})", R"({"nam\u0065":null})", R"({"\u006eame":1})", "{\"n\\\":null}"})
        CHECK_MESSAGE(!matches(machine, text), text);
}

TEST_CASE("JSON Schema: large bounds take few states") {
    Machine machine = machine_for(
        R"({"type":"array","maxItems":10000,"items":{"type":"string","maxLength":1000000,"pattern":"^[a-z]*$"}})");
    CHECK(machine.program().nodes.size() < 300);
    std::string text = "[";
    for (int i = 0; i < 100; ++i) text += "\"abcdefghij\",";
    CHECK(matches(machine, text + "\"\"]"));
    CHECK(!matches(machine, text + "]"));
}

TEST_CASE("JSON Schema: hostile schemas end in an error or a grammar") {
    std::string deep, names = R"({"type":"object","properties":{)", choices = R"({"enum":[)";
    for (int i = 0; i < 5000; ++i) deep += R"({"items":)";
    for (int i = 0; i < 2000; ++i) names += (i ? "," : "") + ("\"key" + std::to_string(i) + "\":{}");
    for (int i = 0; i < 20000; ++i) choices += (i ? "," : "") + ("\"value" + std::to_string(i) + "\"");
    CHECK(grammar_error([&] { machine_for(deep); }).find("nested deeper") != std::string::npos);
    Machine optional_keys = machine_for(names + "}}");
    CHECK(matches(optional_keys, R"({"key3":1,"key1999":[]})"));
    CHECK(!matches(optional_keys, R"({"key3":1,"key3":[]})"));
    Machine many = machine_for(choices + "]}");
    CHECK(matches(many, "\"value19999\""));
    CHECK(!matches(many, "\"value20000\""));
    std::string combined = R"({"allOf":[)";
    for (int i = 0; i < 14; ++i)
        combined += (i ? "," : "") + std::string(R"({"anyOf":[{"minimum":1},{"maximum":2}]})");
    CHECK(grammar_error([&] { machine_for(combined + "]}"); }).find("too many combinations") !=
          std::string::npos);
    // Few states, each of which stands for many positions in the pattern.
    const char *slow = R"({"type":"string","maxLength":100,"pattern":"(.*(a?b?c?d?){0,200}){0,5}a.{13}$"})";
    CHECK(grammar_error([&] { machine_for(slow); }).find("takes too long") != std::string::npos);
}
