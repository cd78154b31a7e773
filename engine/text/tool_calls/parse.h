// Tool calls out of what a model wrote.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tool_calls/formats.h"
#include "engine/text/tool_calls/tools.h"

namespace runnel::text {

struct ParsedAnswer {
    std::string content;  // what is no call; without whitespace before and behind calls
    std::vector<ToolCall> calls;
    std::string note;  // what looked like a call and is content: why; empty if nothing did
};

// Never throws for what the text holds; linear in it. A call of a tool that is not in `tools`, one that is cut off
// and one that cannot be read are content; the calls beside them are calls. `salt` goes into the ids of formats that have none: the same call in
// another turn gets another id.
ParsedAnswer parse_tool_calls(const ToolFormat &format, const ToolUse &tools, std::string_view text,
                              uint64_t salt = 0);

// Separates content from calls while the text arrives.
class ToolCallSplitter {
  public:
    // `format` and `tools` must outlive it.
    ToolCallSplitter(const ToolFormat &format, const ToolUse &tools, uint64_t salt = 0)
        : format_(&format), tools_(&tools), salt_(salt) {}

    // The content that is certain now. From the first mark on everything is held back.
    std::string push(std::string_view text);
    // At the end of the text: what was held back.
    ParsedAnswer flush();

  private:
    const ToolFormat *format_;
    const ToolUse *tools_;
    uint64_t salt_;
    std::string pending_;
    size_t blank_ = 0;  // pending_ begins with this much whitespace, and no mark begins in it
    bool began_ = false, holds_ = false;
};

}  // namespace runnel::text
