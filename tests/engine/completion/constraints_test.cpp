#include "engine/completion/constraints.h"

#include <doctest/doctest.h>

#include "engine/text/tool_calls/formats.h"
#include "tests/engine/text/vocabulary_file.h"

using namespace runnel;
using completion::Constraints;
using grammar::Whitespace;
using text::TokenId;

TEST_CASE("constraints: forced calls write their JSON in the style of the request") {
    const auto loaded = testing::byte_pair_file({}, {"<|end|>"}).load();
    const text::Tokenizer &tokenizer = loaded.tokenizer;
    Constraints constraints(tokenizer, static_cast<int32_t>(tokenizer.size()),
                            [&](TokenId id) { return tokenizer.decode(id); });
    text::ToolUse tools = text::read_tools(text::parse_json(
        R"([{"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"},
            "b": {"type": "integer"}}}}])"));
    tools.choose("required");
    const text::ToolFormat &format = *text::find_tool_format("Functionary 3.1");
    const auto tokens = [&](const std::string &text) {
        return tokenizer.encode(text, {.add_special = false, .continues = true});
    };
    const TokenId blank = tokens(" ").at(0), second = tokens("b").at(0);
    // One object is used for all styles: a result cached for one style must not be used for another.
    for (const bool any_order : {false, true})
        for (const Whitespace whitespace : {Whitespace::Bounded, Whitespace::Compact, Whitespace::Any}) {
            auto constraint = constraints.make_calls(format, tools, {}, false,
                                                     {.whitespace = whitespace, .any_order = any_order});
            REQUIRE(constraint);
            constraint->begin(0);
            CHECK(constraint->allows(tokens("<function=f>{"), blank) == (whitespace != Whitespace::Compact));
            const std::vector<TokenId> behind_b = tokens("<function=f>{\"b\":1,\"");
            CHECK(constraint->allows(behind_b, tokens("a").at(0)) == any_order);
            CHECK(constraint->allows(tokens("<function=f>{\""), second));
        }
}

TEST_CASE(
    "constraints: where the prompt begins a call's mark, an answer is constrained from its first token") {
    const auto loaded = testing::byte_pair_file({}, {"<|end|>"}).load();
    const text::Tokenizer &tokenizer = loaded.tokenizer;
    Constraints constraints(tokenizer, static_cast<int32_t>(tokenizer.size()),
                            [&](TokenId id) { return tokenizer.decode(id); });
    text::ToolUse tools = text::read_tools(text::parse_json(R"([{"name": "f", "parameters": {}}])"));
    const text::ToolFormat &format = *text::find_tool_format("Functionary 3.2");
    const auto tokens = [&](const std::string &text) {
        return tokenizer.encode(text, {.add_special = false, .continues = true});
    };
    for (const bool required : {false, true}) {
        CAPTURE(required);
        if (required) tools.choose("required");
        auto constraint = constraints.make_calls(format, tools, {}, false, {});
        REQUIRE(constraint);
        constraint->begin(0);
        const auto allows = [&](const std::string &text) {
            const auto all = tokens(text);
            return constraint->allowed({}, all) == all.size();
        };
        CHECK(allows("f\n{"));
        CHECK(!allows("g\n{"));
        CHECK(allows("all\nHello >>") == !required);
        CHECK(allows("all\nHello >>>f\n{}>>>f") == !required);
        CHECK(!allows("all\nHello >>>g"));
        CHECK(!allows("Hello"));
    }
}
