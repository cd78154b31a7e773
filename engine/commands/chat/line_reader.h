// Reads lines from a descriptor as they come; between them, the caller can do other work.
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

    // Reads `before`, then `fd` (-1: only `before`); messages call it `name`. Lines longer than `longest`
    // bytes are cut there.
    LineReader(int fd, std::string name, size_t longest, std::string before = {});

    // The next line, without its line end ("\n" or "\r\n") and, at the very beginning, a byte order mark. The
    // last line need not have a line end. Waits at most `wait_milliseconds` for input. Throws InputError.
    State next(std::string &line, int wait_milliseconds);

    // True if next() has a whole line without waiting.
    bool has_line() const { return buffer_.find('\n', begin_ + searched_) != std::string::npos; }

    // About the line read last: its number, from 1 on; whether it was cut; whether it had a line end.
    int64_t number() const { return number_; }
    bool cut() const { return cut_; }
    bool ended() const { return ended_; }
    // Bytes read up to the end of that line.
    uint64_t offset() const { return offset_; }

  private:
    bool fill(int wait_milliseconds);
    bool take(std::string &line, size_t length, size_t end);

    int fd_;
    std::string name_;
    size_t longest_;
    std::string buffer_;
    size_t begin_ = 0,
           searched_ = 0;   // the next line begins at begin_; its first searched_ bytes have no line end
    uint64_t dropped_ = 0;  // bytes of a line that is too long
    bool at_end_, cut_ = false, ended_ = false;
    int64_t number_ = 0;
    uint64_t offset_ = 0;
};

}  // namespace runnel::commands
