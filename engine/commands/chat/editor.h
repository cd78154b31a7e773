// Edits a text of a chat with $VISUAL or $EDITOR.
#pragma once

#include <optional>
#include <string>

namespace runnel::commands {

// Forks a helper process that starts the editors from now on, because a confined process cannot (sandbox/). The
// helper ends with this process. Precondition: no other thread runs. If the fork fails, editors are started
// directly.
void start_editor_helper();

// The text as edited with $VISUAL, $EDITOR or vi, without trailing line ends; nullopt if there is no such
// program, it fails, or the file cannot be written or read. Writes no message of its own.
std::optional<std::string> edit_in_editor(const std::string &text);

}  // namespace runnel::commands
