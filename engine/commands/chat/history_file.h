// The lines of earlier chats in a file that any number of chats add to: under a lock, a line at a time, so that
// none takes the lines of another away.
#pragma once

#include <histedit.h>

#include <filesystem>
#include <string>

namespace runnel::commands {

// $XDG_STATE_HOME/runnel/history, by default ~/.local/state/runnel/history; its folder is made if need be.
// Empty when there is no such place, and with RUNNEL_NO_HISTORY=1 in the environment.
std::filesystem::path history_path();

class HistoryFile {
  public:
    // In libedit's format, for its owner alone. What is no regular file, or cannot be opened, is left alone:
    // then nothing is remembered, and that is no reason to stop. Empty: the same.
    explicit HistoryFile(std::filesystem::path path) : path_(std::move(path)) {}

    // Reads the newest `most` lines. A file of more than twice as many is written anew with those.
    void load(History *history, int most) const;
    // Adds a line.
    void append(const std::string &line) const;

  private:
    std::filesystem::path path_;
};

}  // namespace runnel::commands
