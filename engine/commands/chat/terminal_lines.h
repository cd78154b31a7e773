// The line editor at a terminal: reads keys, applies them with edit/, and paints the result.
#pragma once

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

namespace runnel::commands {

// The window size of the terminal `fd`; 80 columns and 24 rows if it is not known.
WindowSize window_size(int fd);

class TerminalLines final : public LineSource {
  public:
    TerminalLines(int in, int out, const std::filesystem::path &history, TerminalHooks hooks);

    Event read(const std::string &prompt, std::string &line) override;
    Event read_message(const std::string &prompt, std::string &message) override;
    void remember(const std::string &message) override;

  private:
    // The next key; nullopt when the window changed, or when the terminal is gone (ended_ is then true).
    std::optional<Key> next_key();
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
    EditScreen screen_;
    bool ended_ = false;
    int given_up_ = 0;  // empty lines in a row
};

}  // namespace runnel::commands
