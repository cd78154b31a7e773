// Lines from the user: edited and remembered at a terminal, read as they are from a pipe.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace runnel::commands {

class LineSource {
  public:
    enum class Event { Line, Interrupt, End };  // Interrupt: Ctrl-C in the line
    virtual ~LineSource() = default;
    // The next line, without its line end.
    virtual Event read(const std::string &prompt, std::string &line) = 0;
    // Adds a line to the history, for this chat and later ones.
    virtual void remember(const std::string &) {}
    // The next line is here already: reading it does not wait.
    virtual bool has_line() const { return false; }
};

// libedit on standard input and output: emacs keys (or what ~/.editrc says), UTF-8, a history that stays.
// `history`: the file of a HistoryFile; empty for none.
std::unique_ptr<LineSource> make_terminal_lines(const std::filesystem::path &history);

// A descriptor without prompt or echo; `before`: text in front of what it gives. -1: that text alone.
std::unique_ptr<LineSource> make_plain_lines(int fd, std::string before = {});

// A message of the user: a line, or with """ at its beginning all text up to the next """.
LineSource::Event read_message(LineSource &lines, const std::string &prompt, std::string &message);

}  // namespace runnel::commands
