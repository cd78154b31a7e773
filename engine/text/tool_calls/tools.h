// The tools that a model may call, and the calls that it made.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/text/json.h"

namespace runnel::text {

// Bounds on untrusted input. A definition beyond them is shown to the model but cannot be called. An answer
// has at most kMaxToolCalls; what follows the last one is content.
inline constexpr size_t kMaxToolName = 128, kMaxTools = 1024, kMaxToolCalls = 1024;

struct Tool {
    std::string name;
    Json parameters;  // a JSON schema; null: any object
};

// The parameters' schema, or the part of it that its "$ref" names.
const Json &resolved_parameters(const Tool &tool);
// The schemas of the parameters by name; null: the tool declares none.
const Json *declared_properties(const Tool &tool);
// Whether a parameter between marks is written as plain text, not as JSON: its type is "string", or it has no
// type and its enum has only strings.
bool is_raw_text(const Json &schema);

// Letters, digits and _ - . / which every format can write and no format gives another meaning.
bool is_tool_name_character(char c);

struct ToolUse {
    enum class Choice {
        Auto,      // the model decides
        Required,  // at least one call, nothing else
        None,      // the model does not see the tools
    };
    Json definitions = Json::array();  // as the chat template sees them
    std::vector<Tool> tools;           // those that can be called, every name once
    Choice choice = Choice::Auto;
    std::string only;      // with Required: this tool. Empty: any
    bool parallel = true;  // more than one call in an answer

    const Tool *find(std::string_view name) const;
    // Chooses "auto", "required", "none" or the tool that another word names. Throws std::invalid_argument if no such
    // tool can be called.
    void choose(const std::string &word);
    // Chooses a tool, whose name may be one of those words. Throws std::invalid_argument if it cannot be called.
    void choose_tool(const std::string &name);
};

// Reads a list of definitions in OpenAI's shape, {"type": "function", "function": {"name", "description",
// "parameters"}}, or of inner objects alone, which are put into that shape. `notes`, if not null: receives
// which definitions cannot be called, and why. Precondition: `definitions` is a list.
ToolUse read_tools(Json definitions, std::vector<std::string> *notes = nullptr);

struct ToolCall {
    std::string id;
    std::string name;
    std::string arguments;  // the text of a JSON object

    bool operator==(const ToolCall &) const = default;
};
// OpenAI's list: [{"id", "type": "function", "function": {"name", "arguments": TEXT}}].
Json calls_json(const std::vector<ToolCall> &calls);

}  // namespace runnel::text
