// $VISUAL or $EDITOR for a text of a chat.
#pragma once

#include <optional>
#include <string>

namespace runnel::commands {

// Forks a process that starts the editors of this one from now on: a confined process can start none itself
// (sandbox/). It ends when this one does. Precondition: no other thread runs. Where it cannot be forked, editors
// are started directly.
void start_editor_helper();

// The text as it is after $VISUAL, $EDITOR or vi had it, without line ends at its end; nullopt when there is
// no such program, it failed, or the file could not be written or read (then stderr has its own words).
std::optional<std::string> edit_in_editor(const std::string &text);

}  // namespace runnel::commands
