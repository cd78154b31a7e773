// Reads messages and lines from the user: with editing and history at a terminal, unchanged from a pipe.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "engine/commands/chat/edit/complete.h"

namespace runnel::commands {

class LineSource {
  public:
    enum class Event { Line, Interrupt, End };  // Interrupt: Ctrl-C in the line
    virtual ~LineSource() = default;
    // The next line, without its line end.
    virtual Event read(const std::string &prompt, std::string &line) = 0;
    // The next message, which becomes part of the history: a line, or the text between a line that is """ and the
    // next such line.
    virtual Event read_message(const std::string &prompt, std::string &message);
    // Adds a message to the history, for this chat and later ones.
    virtual void remember(const std::string &) {}
    // True if reading the next line does not wait.
    virtual bool has_line() const { return false; }
};

struct TerminalHooks {
    CompletionNames names = {};  // for Tab
    bool colors = false;
};

// A line editor on standard input and output. `history`: the file of a HistoryFile; empty for none. If TERM
// is "dumb" or not set, lines are read without editing.
std::unique_ptr<LineSource> make_terminal_lines(const std::filesystem::path &history, TerminalHooks hooks);

// Lines of `before` and then of a descriptor, without prompt or echo. fd -1: of `before` only.
std::unique_ptr<LineSource> make_plain_lines(int fd, std::string before = {});

// Whether the terminal supports cursor movement: TERM is set and not "dumb".
bool terminal_moves();
// Whether to use colors, as --color says. With "auto": if terminal_moves() and NO_COLOR is not set.
bool terminal_colors(const std::string &option);

}  // namespace runnel::commands
