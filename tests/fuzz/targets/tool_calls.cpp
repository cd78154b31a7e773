// A byte that picks the format, one that says where to cut, then a model's answer.
#include <algorithm>

#include "engine/text/tool_calls/parse.h"
#include "tests/fuzz/targets.h"

namespace runnel::fuzz {

void tool_calls(Input input) {
    using namespace runnel::text;
    Bytes bytes(input);
    const auto formats = tool_formats();
    const ToolFormat &format = formats[bytes.byte() % formats.size()];
    const size_t cut = bytes.byte();
    const std::string_view text = text_of(bytes.rest());
    static const ToolUse tools = read_tools(parse_json(
        R"([{"name": "f", "parameters": {"properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}},
            {"name": "get_weather"}])"));

    const ParsedAnswer whole = parse_tool_calls(format, tools, text);
    require(whole.calls.size() <= kMaxToolCalls, "the calls are bounded");
    require(whole.content.size() <= text.size(), "content is part of the text");
    // (Marks of text are no content: "all" and a line end in Functionary 3.2.)
    const bool may_have_marks =
        !format.text_name.empty() && text.find(std::string(format.text_name) + "\n") != text.npos;
    require(!whole.calls.empty() || may_have_marks || whole.content == text,
            "a text without calls is content");
    for (const ToolCall &call : whole.calls) {
        require(tools.find(call.name) && !call.id.empty(), "a call is of a tool that is offered");
        require(parse_json(call.arguments).is_object(), "arguments are a JSON object");
    }
    ToolCallSplitter splitter(format, tools);
    std::string content = splitter.push(text.substr(0, cut));
    content += splitter.push(text.substr(std::min(cut, text.size())));
    const ParsedAnswer rest = splitter.flush();
    require(content + rest.content == whole.content && rest.calls == whole.calls, "cuts change nothing");
}

}  // namespace runnel::fuzz
