// Which format a chat template uses: a conversation with a call is rendered, and read back.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "engine/text/json.h"
#include "engine/text/tool_calls/formats.h"

namespace runnel::text {

// The call of the conversation, as OpenAI's list, and the definition of its tool.
std::string probe_calls();
Json probe_tools();

// The format in which `after`, the conversation with the call, holds what `before`, the prompt for it, does not.
// `ends`: texts of tokens that end an answer. Null if no format reads the call back.
const ToolFormat *format_of_rendering(std::string_view before, std::string_view after,
                                      std::span<const std::string> ends);
// The format whose marks are all in the text of a template. Null if there is none.
const ToolFormat *format_of_source(std::string_view source);

}  // namespace runnel::text
