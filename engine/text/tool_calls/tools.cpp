#include "engine/text/tool_calls/tools.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace runnel::text {
namespace {

constexpr const char *kSchemaKeys[] = {"parameters", "input_schema", "inputSchema"};

const char *schema_key(const Json &definition) {
    for (const char *key : kSchemaKeys)
        if (find_member(definition, key)) return key;
    return nullptr;
}

// Rewrites a definition as {"type": "function", "function": {..., "parameters"}}, for chat templates.
Json in_usual_shape(Json definition) {
    if (find_member(definition, "function")) return definition;
    const char *key = schema_key(definition);
    if (key && key != kSchemaKeys[0]) {
        Json parameters = std::move(definition[key]);
        definition.erase(key);
        definition[kSchemaKeys[0]] = std::move(parameters);
    }
    definition.erase("type");
    return {{"type", "function"}, {"function", std::move(definition)}};
}

// Fills `tool`, or returns why the definition cannot be called.
std::string read_tool(const Json &definition, Tool &tool) {
    const Json *function = find_member(definition, "function");
    const Json &inner = function ? *function : definition;
    const Json *name = find_member(inner, "name");
    if (!name || !name->is_string()) return "it has no \"name\"";
    tool.name = name->get<std::string>();
    if (tool.name.empty() || tool.name.size() > kMaxToolName ||
        !std::ranges::all_of(tool.name, is_tool_name_character))
        return "its name is not 1 to " + std::to_string(kMaxToolName) + " of a-z, A-Z, 0-9 and _ - . /";
    if (const char *key = schema_key(inner)) tool.parameters = inner[key];
    return {};
}

}  // namespace

const Json &resolved_parameters(const Tool &tool) {
    constexpr int kMostReferences = 32;
    const Json *schema = &tool.parameters;
    for (int i = 0; i < kMostReferences; ++i) {
        const Json *reference = find_member(*schema, "$ref");
        if (!reference || !reference->is_string() || find_member(*schema, "properties")) break;
        const auto &text = reference->get_ref<const std::string &>();
        if (!text.starts_with('#')) break;
        try {
            schema = &tool.parameters.at(Json::json_pointer(text.substr(1)));
        } catch (const Json::exception &) {  // schema_grammar() reports what is wrong
            break;
        }
    }
    return *schema;
}

const Json *declared_properties(const Tool &tool) {
    const Json *properties = find_member(resolved_parameters(tool), "properties");
    return properties && properties->is_object() ? properties : nullptr;
}

bool is_raw_text(const Json &schema) {
    if (const Json *type = find_member(schema, "type")) return *type == "string";
    const Json *values = find_member(schema, "enum");
    return values && values->is_array() && !values->empty() &&
           std::ranges::all_of(*values, [](const Json &value) { return value.is_string(); });
}

bool is_tool_name_character(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.' || c == '/';
}

const Tool *ToolUse::find(std::string_view name) const {
    const auto found = std::ranges::find(tools, name, &Tool::name);
    return found == tools.end() ? nullptr : &*found;
}

void ToolUse::choose(const std::string &word) {
    only.clear();
    if (word == "auto" || word == "none") {
        choice = word == "auto" ? Choice::Auto : Choice::None;
        return;
    }
    if (tools.empty()) throw std::invalid_argument("there is no tool that can be called");
    if (word != "required" && !find(word))
        throw std::invalid_argument("auto, required, none, or the name of a tool that can be called");
    choice = Choice::Required;
    if (word != "required") only = word;
}

void ToolUse::choose_tool(const std::string &name) {
    if (!find(name)) throw std::invalid_argument("there is no tool of this name that can be called");
    choice = Choice::Required;
    only = name;
}

ToolUse read_tools(Json definitions, std::vector<std::string> *notes) {
    ToolUse use;
    size_t number = 0;
    for (Json &definition : definitions) {
        ++number;
        Tool tool;
        std::string problem = read_tool(definition, tool);
        if (problem.empty() && use.find(tool.name)) problem = "another one has its name";
        if (problem.empty() && use.tools.size() >= kMaxTools)
            problem = "there are more than " + std::to_string(kMaxTools);
        if (problem.empty()) {
            use.tools.push_back(std::move(tool));
            definition = in_usual_shape(std::move(definition));
        } else if (notes && notes->size() < 8) {
            notes->push_back("tool " + std::to_string(number) + " cannot be called: " + problem);
        }
    }
    use.definitions = std::move(definitions);
    return use;
}

Json calls_json(const std::vector<ToolCall> &calls) {
    Json list = Json::array();
    for (const ToolCall &call : calls)
        list.push_back({{"id", call.id},
                        {"type", "function"},
                        {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    return list;
}

}  // namespace runnel::text
