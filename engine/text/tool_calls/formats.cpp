#include "engine/text/tool_calls/formats.h"

#include <algorithm>

namespace runnel::text {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";
using Body = ToolFormat::Body;

// ｜ is U+FF5C, ▁ is U+2581.
constexpr ToolFormat kFormats[] = {
    {.name = "Mistral (list)", .body = Body::List, .before = "[TOOL_CALLS]", .id_key = "id"},
    {.name = "Mistral",
     .body = Body::Named,
     .before = "[TOOL_CALLS]",
     .between = "[ARGS]",
     .id_mark = "[CALL_ID]"},
    {.name = "harmony",
     .body = Body::Named,
     .before = "<|channel|>commentary to=functions.",
     .between = " <|constrain|>json<|message|>",
     .after = "<|call|>",
     .repeats = false},
    {.name = "Kimi",
     .body = Body::Named,
     .before = "<|tool_call_begin|>functions.",
     .between = "<|tool_call_argument_begin|>",
     .after = "<|tool_call_end|>",
     .open = "<|tool_calls_section_begin|>",
     .close = "<|tool_calls_section_end|>",
     .counted = true},
    {.name = "Command",
     .body = Body::List,
     .before = "<|START_ACTION|>",
     .after = "<|END_ACTION|>",
     .name_key = "tool_name",
     .arguments_key = "parameters",
     .id_key = "tool_call_id"},
    {.name = "LFM2", .body = Body::Python, .before = "<|tool_call_start|>", .after = "<|tool_call_end|>"},
    {.name = "DeepSeek V3.2",
     .body = Body::Parameters,
     .before = "<｜DSML｜invoke name=\"",
     .between = "\">\n",
     .after = "</｜DSML｜invoke>\n",
     .open = "<｜DSML｜function_calls>\n",
     .close = "</｜DSML｜function_calls>",
     .parameter = "<｜DSML｜parameter name=\"",
     .value = "\" string=\"",
     .end_value = "</｜DSML｜parameter>\n",
     .typed = true},
    {.name = "DeepSeek V4",
     .body = Body::Parameters,
     .before = "<｜DSML｜invoke name=\"",
     .between = "\">\n",
     .after = "</｜DSML｜invoke>\n",
     .open = "<｜DSML｜tool_calls>\n",
     .close = "</｜DSML｜tool_calls>",
     .parameter = "<｜DSML｜parameter name=\"",
     .value = "\" string=\"",
     .end_value = "</｜DSML｜parameter>\n",
     .typed = true},
    {.name = "DeepSeek V3.1",
     .body = Body::Named,
     .before = "<｜tool▁call▁begin｜>",
     .between = "<｜tool▁sep｜>",
     .after = "<｜tool▁call▁end｜>",
     .open = "<｜tool▁calls▁begin｜>",
     .close = "<｜tool▁calls▁end｜>"},
    {.name = "DeepSeek",
     .body = Body::Named,
     .before = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
     .between = "\n```json\n",
     .after = "\n```<｜tool▁call▁end｜>",
     .open = "<｜tool▁calls▁begin｜>",
     .close = "<｜tool▁calls▁end｜>"},
    {.name = "Gemma 4", .body = Body::Fields, .before = "<|tool_call>call:", .after = "<tool_call|>"},
    {.name = "MiniMax",
     .body = Body::Parameters,
     .before = "<invoke name=\"",
     .between = "\">\n",
     .after = "</invoke>\n",
     .open = "<minimax:tool_call>\n",
     .close = "</minimax:tool_call>",
     .parameter = "<parameter name=\"",
     .value = "\">",
     .end_value = "</parameter>\n"},
    {.name = "Seed-OSS",
     .body = Body::Parameters,
     .before = "<seed:tool_call>\n<function=",
     .between = ">\n",
     .after = "</function>\n</seed:tool_call>",
     .parameter = "<parameter=",
     .value = ">",
     .end_value = "</parameter>\n"},
    {.name = "Qwen3-Coder",
     .body = Body::Parameters,
     .before = "<tool_call>\n<function=",
     .between = ">\n",
     .after = "</function>\n</tool_call>",
     .short_before = "<function=",
     .parameter = "<parameter=",
     .value = ">\n",
     .end_value = "\n</parameter>\n"},
    {.name = "GLM",
     .body = Body::Parameters,
     .before = "<tool_call>",
     .between = "\n",
     .after = "</tool_call>",
     .parameter = "<arg_key>",
     .value = "</arg_key>\n<arg_value>",
     .end_value = "</arg_value>\n"},
    {.name = "Hermes", .body = Body::Object, .before = "<tool_call>\n", .after = "\n</tool_call>"},
    {.name = "Granite 3", .body = Body::List, .before = "<|tool_call|>"},
    {.name = "Nemotron", .body = Body::List, .before = "<TOOLCALL>", .after = "</TOOLCALL>"},
    {.name = "Apertus",
     .body = Body::List,
     .before = "<|tools_prefix|>",
     .after = "<|tools_suffix|>",
     .name_key = ""},
    {.name = "Firefunction", .body = Body::List, .before = "functools"},
    {.name = "Command R+",
     .body = Body::List,
     .before = "Action:\n```json\n",
     .after = "```",
     .name_key = "tool_name",
     .arguments_key = "parameters"},
    {.name = "Functionary 3.1",
     .body = Body::Named,
     .before = "<function=",
     .between = ">",
     .after = "</function>"},
    {.name = "Functionary 3.2", .body = Body::Named, .before = ">>>", .between = "\n", .text_name = "all"},
    {.name = "Llama 4",
     .body = Body::Python,
     .before = "<|python_start|>",
     .after = "<|python_end|>",
     .bare = true},
    {.name = "Llama 3",
     .body = Body::Object,
     .before = "<|python_tag|>",
     .bare = true,
     .arguments_key = "parameters",
     .repeats = false},
};

}  // namespace

std::string_view trimmed(std::string_view text) {
    const size_t begin = text.find_first_not_of(kBlanks);
    return begin == text.npos ? std::string_view()
                              : text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

std::string_view first_word(std::string_view mark) {
    mark = trimmed(mark);
    return mark.substr(0, mark.find_first_of(kBlanks));
}

std::vector<std::string_view> ToolFormat::triggers() const {
    std::vector<std::string_view> marks;
    for (const std::string_view mark : {open.empty() ? before : open, short_before})
        if (!mark.empty()) marks.push_back(first_word(mark));
    return marks;
}

bool ToolFormat::is_mark(std::string_view piece) const {
    if (piece.empty()) return false;
    if (body == Body::Fields && piece == kFieldQuote) return true;
    const std::string_view marks[] = {before,       between, after,     open,  close,
                                      short_before, id_mark, parameter, value, end_value};
    return std::ranges::any_of(marks, [&](std::string_view mark) { return mark.find(piece) != mark.npos; });
}

std::span<const ToolFormat> tool_formats() {
    return kFormats;
}

const ToolFormat *find_tool_format(std::string_view name) {
    const auto found = std::ranges::find(kFormats, name, &ToolFormat::name);
    return found == std::end(kFormats) ? nullptr : &*found;
}

}  // namespace runnel::text
