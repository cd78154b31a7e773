// The result of a call as text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "engine/commands/json.h"

namespace runnel::commands::mcp {

// A member that is a string; otherwise empty.
std::string text_member(const Json &object, std::string_view key);

// Text without control characters but newlines and tabs: "\r\n" becomes "\n", others U+FFFD, as does invalid UTF-8.
std::string plain_text(std::string_view text);
// At most `most` bytes, whole characters; if something is cut, a line that says how much.
std::string bounded(std::string text, size_t most);

// The text parts of the result of tools/call. Images, audio and resources are named: "[image, image/png: not shown]".
// If there are no parts, the structured content is used.
std::string result_text(const Json &result);

// The beginning of a result in a few lines for the terminal: printable, indented.
std::string shortened(const std::string &text, size_t columns);

}  // namespace runnel::commands::mcp
