// What a chat shows of an answer's progress at a terminal: the prefill of a long prompt, how long the model
// reasons, and a line of statistics at the end.
#pragma once

#include <string>

#include "engine/commands/io.h"
#include "engine/completion/event.h"
#include "gguf/base/timer.h"

namespace runnel::commands {

// "reading 1,448 tokens  61%  2 s left"; cached tokens do not count. `seconds`: since the prefill began.
std::string reading_line(const completion::Prefill &state, double seconds);
// "214 tokens  23.4 tokens/s  context 1,204 of 4,096"
std::string answer_line(const completion::Done &done, int64_t context);

// "thought for 11 s", "thought for 0.4 s", "thought for 1:20"
std::string thought_line(double seconds);

// The line in place of reasoning that is not shown: "thinking... 214 tokens", replaced by "thought for 11 s". A
// terminal that cannot move its cursor gets one line: "thinking... 214 tokens, 11 s".
class ThinkingLine {
  public:
    explicit ThinkingLine(bool colors) : colors_(colors) {}
    // The text to write next, without a line end.
    std::string update(size_t tokens);
    std::string end(size_t tokens, double seconds);
    // The text that removes the line.
    std::string clear() const;

  private:
    std::string dim(const std::string &text) const;

    bool colors_, began_ = false;
};

// Shows the prefill progress of a long prompt on stderr, if that is a terminal, once prefill has taken a
// second. Removes the line at the end.
class ReadingProgress {
  public:
    // Keeps a reference to `io`.
    explicit ReadingProgress(Io &io) : io_(io) {}
    ~ReadingProgress() { clear(); }
    ReadingProgress(const ReadingProgress &) = delete;
    ReadingProgress &operator=(const ReadingProgress &) = delete;

    void show(const completion::Prefill &state);

  private:
    void clear();

    Io &io_;
    const base::Clock::time_point start_ = base::Clock::now();
    bool drawn_ = false;
};

// Writes answer_line() to stderr, dim if `colors`, if standard input, output and error are all terminals.
void show_answer_line(const completion::Done &done, int64_t context, bool colors, Io &io);

}  // namespace runnel::commands
