// Parses the tool calls in a model's answer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tool_calls/formats.h"
#include "engine/text/tool_calls/tools.h"

namespace runnel::text {

struct ParsedAnswer {
    std::string content;  // the text outside of calls, without white space next to calls
    std::vector<ToolCall> calls;
    std::string note;  // why text that looks like a call was kept as content; else empty
};

// Takes linear time and never throws, whatever the text. Calls that are malformed, incomplete or name a tool
// that is not in `tools` stay in the content; other calls next to them still count. For formats without ids,
// ids are made from the call and `salt`, so that the same call in another turn gets another id.
ParsedAnswer parse_tool_calls(const ToolFormat &format, const ToolUse &tools, std::string_view text,
                              uint64_t salt = 0);

// Separates content from calls while the text arrives.
class ToolCallSplitter {
  public:
    // `format` and `tools` must outlive it.
    ToolCallSplitter(const ToolFormat &format, const ToolUse &tools, uint64_t salt = 0)
        : format_(&format), tools_(&tools), salt_(salt) {}

    // Returns the content that is certain so far. From the first mark on, everything is held back.
    std::string push(std::string_view text);
    // At the end of the text: parses what was held back.
    ParsedAnswer flush();

  private:
    const ToolFormat *format_;
    const ToolUse *tools_;
    uint64_t salt_;
    std::string pending_;
    size_t blank_ = 0;    // bytes of white space at the start of pending_, in which no mark begins
    bool began_ = false;  // the beginning of the answer is behind
    bool shown_ = false;  // some content was returned
    bool holds_ = false;
};

}  // namespace runnel::text
