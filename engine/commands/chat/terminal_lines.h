// The line editor at a terminal: reads keys, applies them with edit/, and paints the result.
#pragma once

#include <deque>
#include <filesystem>
#include <optional>
#include <string>

#include "engine/commands/chat/edit/edit_screen.h"
#include "engine/commands/chat/edit/keys.h"
#include "engine/commands/chat/edit/line_edit.h"
#include "engine/commands/chat/history_file.h"
#include "engine/commands/chat/line_editor.h"
#include "engine/commands/io.h"
#include "engine/commands/terminal.h"
#include "gguf/base/timer.h"

namespace runnel::commands {

// The window size of the terminal `fd`; 80 columns and 24 rows if it is not known.
WindowSize window_size(int fd);

class TerminalLines final : public LineSource {
  public:
    TerminalLines(int in, int out, const std::filesystem::path &history, TerminalHooks hooks);

    Event read(const std::string &prompt, std::string &line) override;
    Event ask(const std::string &above, const std::string &question, std::string &answer) override;
    Event read_message(const std::string &prompt, std::string &message) override;
    void remember(const std::string &message) override;
    Watched watch(bool wants_toggle) override;
    void hold_typed() override;

  private:
    // The next key; nullopt when the window changed, or when the terminal is gone (ended_ is then true).
    std::optional<Key> next_key();
    // Reads bytes into keys_; false if there are none now.
    bool read_bytes();
    // Moves all keys typed so far to ahead_. False if Ctrl-C is one of them.
    bool take_typed();
    Event edit(LineEdit &edit);
    void paint(const LineEdit &edit);
    void finish(LineEdit &edit);
    void open_editor(LineEdit &edit);
    void complete_word(LineEdit &edit);
    void show_above(const std::string &text);
    void hint_how_to_leave();

    int in_;
    Output out_;
    TerminalHooks hooks_;
    HistoryFile history_file_;
    History history_;
    TerminalModes modes_;
    WindowSize size_;
    KeyDecoder keys_;
    std::deque<Key> ahead_;  // typed while an answer was written; before those of keys_
    base::Clock::time_point typed_ = base::Clock::now();  // when bytes came last
    EditScreen screen_;
    std::string above_;  // the lines above a question
    bool ended_ = false;
    int given_up_ = 0;  // consecutive times that Ctrl-C was typed in an empty line
};

}  // namespace runnel::commands
