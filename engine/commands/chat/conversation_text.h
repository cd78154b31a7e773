// Conversations as readable text.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "engine/commands/chat/chat_file.h"
#include "engine/commands/chat/conversation.h"

namespace runnel::commands {

// All messages of the tree, one per line of at most `columns`: its number, "*" if it is on the path to the
// head, and its beginning. `ascii`: no line-drawing characters.
std::string tree_text(const Conversation &conversation, size_t columns, bool ascii);

// The path to the head in Markdown.
std::string markdown(const Conversation &conversation);

// A line for each chat, numbered from 1 on; `open`: the path of the chat that is open.
std::string list_text(std::span<const SavedChat> chats, const std::filesystem::path &open, size_t columns);

// The text as one line of at most `columns`, without control characters.
std::string clipped(std::string_view text, size_t columns);

// The escape sequence (OSC 52) that puts a text on the terminal's clipboard. Terminals take texts of up to
// kLongestCopy bytes.
std::string clipboard_sequence(std::string_view text);
inline constexpr size_t kLongestCopy = 74'000;

}  // namespace runnel::commands
