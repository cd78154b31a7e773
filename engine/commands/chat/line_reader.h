// Lines from a descriptor as they come: a reader that can go on with other work while there are none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace runnel::commands {

class LineReader {
  public:
    enum class State {
        Line,
        NotYet,  // nothing to read within the time, or a signal came
        End,
    };

    // Reads `fd`, called `name` in messages, behind `before`, which was read from it already; -1: only
    // `before`. Lines longer than `longest` bytes are cut there.
    LineReader(int fd, std::string name, size_t longest, std::string before = {});

    // The next line, without its line end ("\n" or "\r\n") and, at the very beginning, a byte order mark. The
    // last one need not have an end. Waits for input at most so many milliseconds. Throws InputError.
    State next(std::string &line, int wait_milliseconds);

    // A whole line is there without waiting.
    bool has_line() const { return buffer_.find('\n', begin_ + searched_) != std::string::npos; }

    // Of the line read last: its number, from 1 on; whether it was cut; whether it had a line end.
    int64_t number() const { return number_; }
    bool cut() const { return cut_; }
    bool ended() const { return ended_; }
    // Up to its end, in bytes.
    uint64_t offset() const { return offset_; }

  private:
    bool fill(int wait_milliseconds);
    bool take(std::string &line, size_t length, size_t end);

    int fd_;
    std::string name_;
    size_t longest_;
    std::string buffer_;
    size_t begin_ = 0, searched_ = 0;  // in buffer_: the next line, and how far it has no line end
    uint64_t dropped_ = 0;             // bytes of a line that is too long
    bool at_end_, cut_ = false, ended_ = false;
    int64_t number_ = 0;
    uint64_t offset_ = 0;
};

}  // namespace runnel::commands
