// Reads messages and lines from the user: with editing and history at a terminal, unchanged from a pipe.
#pragma once

#include <filesystem>
#include <functional>
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
    // Shows `above`, asks, and reads a line. Text typed before the question does not answer it: that text is kept for
    // the next message.
    virtual Event ask(const std::string &above, const std::string &question, std::string &answer) {
        return (void)above, read(question, answer);
    }
    // The next message, which becomes part of the history: a line, or the text between a line that is """ and the
    // next such line.
    virtual Event read_message(const std::string &prompt, std::string &message);
    // Adds a message to the history, for this chat and later ones.
    virtual void remember(const std::string &) {}
    // True if reading the next line does not wait.
    virtual bool has_line() const { return false; }

    // What happened at the terminal while an answer is written.
    struct Watched {
        bool interrupted = false;  // Ctrl-C that came before the answer
        bool toggled = false;      // Ctrl-T, with `wants_toggle`
        bool resized = false;      // the window has another size
        bool redraw = false;       // the program was suspended, so others may have written to the terminal
    };
    // Call between the steps of an answer. Keys typed meanwhile are kept for the next line, which read() returns at
    // once if they contain Enter. With `wants_toggle`, Ctrl-T is reported and not kept.
    virtual Watched watch(bool wants_toggle) { return (void)wants_toggle, Watched(); }
    // Call after an interrupted answer or tool call: lines typed meanwhile become the beginning of the next line and are
    // not sent.
    virtual void hold_typed() {}
};

struct TerminalHooks {
    CompletionNames names = {};  // for Tab
    bool colors = false;
    // For Ctrl-T: shows or folds the reasoning from now on; returns the lines to show.
    std::function<std::string()> toggle_reasoning = {};
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
