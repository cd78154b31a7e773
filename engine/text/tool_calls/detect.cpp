#include "engine/text/tool_calls/detect.h"

#include <algorithm>

#include "engine/text/tool_calls/parse.h"

namespace runnel::text {
namespace {

constexpr const char *kName = "probe_tool", *kId = "probe0000";

}  // namespace

Json probe_tools() {
    return Json::array({{{"type", "function"},
                         {"function",
                          {{"name", kName},
                           {"description", "?"},
                           {"parameters",
                            {{"type", "object"},
                             {"properties",
                              {{"place", {{"type", "string"}, {"description", "?"}}},
                               {"days", {{"type", "integer"}, {"description", "?"}}}}},
                             {"required", Json::array({"place", "days"})}}}}}}});
}

std::string probe_calls() {
    return calls_json({{kId, kName, R"({"place":"here","days":3})"}}).dump();
}

const ToolFormat *format_of_rendering(std::string_view before, std::string_view after,
                                      std::span<const std::string> ends) {
    const auto [end_before, begin] = std::mismatch(before.begin(), before.end(), after.begin(), after.end());
    std::string_view turn = after.substr(static_cast<size_t>(begin - after.begin()));
    // The texts may first differ inside a mark: go back to the start of its word.
    if (end_before != before.end()) {
        const size_t whole = after.substr(0, after.size() - turn.size()).find_last_of(" \n>]");
        turn = after.substr(whole == after.npos ? 0 : whole + 1);
    }
    for (const std::string &end : ends)
        if (!end.empty()) turn = turn.substr(0, turn.find(end));
    const ToolUse tools = read_tools(probe_tools());
    const Json arguments = {{"place", "here"}, {"days", 3}};
    for (const ToolFormat &format : tool_formats()) {
        const ParsedAnswer answer = parse_tool_calls(format, tools, turn);
        if (answer.calls.size() == 1 && answer.calls[0].name == kName &&
            parse_json(answer.calls[0].arguments) == arguments)
            return &format;
    }
    return nullptr;
}

const ToolFormat *format_of_source(std::string_view source) {
    const auto has = [&](std::string_view mark) {
        return all_words(mark, [&](std::string_view word) { return source.find(word) != source.npos; });
    };
    // gpt-oss: the template writes the recipient before the channel, the model after it.
    if (has("functions.") && has("<|channel|>commentary") && has("<|call|>"))
        return find_tool_format("harmony");
    for (const ToolFormat &format : tool_formats())
        if (!format.bare && format.text_name.empty() && has(format.open) && has(format.before) &&
            has(format.between) && has(format.parameter) && has(format.value) && has(format.after))
            return &format;
    return nullptr;
}

}  // namespace runnel::text
