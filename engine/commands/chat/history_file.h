// The lines typed in earlier chats, in a file to which concurrent chats append: line by line and under a lock, so
// that no chat loses the lines of another.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace runnel::commands {

// False with RUNNEL_NO_HISTORY=1 in the environment: nothing private is to be written to the disk.
bool keeps_history();

// $XDG_STATE_HOME/runnel/history, by default ~/.local/state/runnel/history; creates the folder if needed.
// Empty without both $XDG_STATE_HOME and $HOME, and with RUNNEL_NO_HISTORY=1 in the environment.
std::filesystem::path history_path();

// An entry as a line of the file (the format of libedit): blanks, control characters and backslashes are written as
// "\040". The reverse accepts any bytes.
std::string history_line(std::string_view entry);
std::string history_entry(std::string_view line);

class HistoryFile {
  public:
    // Mode 0600. If the path is empty, cannot be opened or is not a regular file, nothing is remembered; that is
    // not an error.
    explicit HistoryFile(std::filesystem::path path) : path_(std::move(path)) {}

    // The newest `most` entries, oldest first. A file with more than twice as many is rewritten with those.
    std::vector<std::string> load(size_t most) const;
    // Adds an entry.
    void append(std::string_view entry) const;

  private:
    std::filesystem::path path_;
};

}  // namespace runnel::commands
