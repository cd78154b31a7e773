// Detects the format of a chat template: renders a conversation with a call and reads the call back.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "engine/text/json.h"
#include "engine/text/tool_calls/formats.h"

namespace runnel::text {

// The call in that conversation, as OpenAI's list, and the definition of its tool.
std::string probe_calls();
Json probe_tools();

// The format of the call in `after`, a rendered conversation. `before` is the rendered prompt of the answer
// with the call. `ends`: texts of tokens that end an answer. Null if no format reads the call back.
const ToolFormat *format_of_rendering(std::string_view before, std::string_view after,
                                      std::span<const std::string> ends);
// The format whose marks all occur in a template's source. Null if there is none.
const ToolFormat *format_of_source(std::string_view source);

}  // namespace runnel::text
