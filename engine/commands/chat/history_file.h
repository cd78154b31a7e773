// The lines typed in earlier chats, in a file to which concurrent chats append: line by line and under a lock, so
// that no chat loses the lines of another.
#pragma once

#include <histedit.h>

#include <filesystem>
#include <string>

namespace runnel::commands {

// $XDG_STATE_HOME/runnel/history, by default ~/.local/state/runnel/history; creates the folder if needed.
// Empty without both $XDG_STATE_HOME and $HOME, and with RUNNEL_NO_HISTORY=1 in the environment.
std::filesystem::path history_path();

class HistoryFile {
  public:
    // A file in libedit's format, mode 0600. If the path is empty, cannot be opened or is not a regular file,
    // nothing is remembered; that is not an error.
    explicit HistoryFile(std::filesystem::path path) : path_(std::move(path)) {}

    // Reads the newest `most` lines. A file with more than twice as many is rewritten with those.
    void load(History *history, int most) const;
    // Adds a line.
    void append(const std::string &line) const;

  private:
    std::filesystem::path path_;
};

}  // namespace runnel::commands
