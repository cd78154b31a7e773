// The progress of a chat's answer at a terminal: the prefill of a long prompt, and a line of statistics at
// the end.
#pragma once

#include <string>

#include "engine/commands/io.h"
#include "engine/completion/event.h"
#include "gguf/base/timer.h"

namespace runnel::commands {

// "reading 1,448 tokens  61%  2 s left", of the tokens that were not cached; `seconds` since the beginning.
std::string reading_line(const completion::Prefill &state, double seconds);
// "214 tokens  23.4 tokens/s  context 1,204 of 4,096"
std::string answer_line(const completion::Done &done, int64_t context);

// Shows the prefill progress of a long prompt on stderr, if that is a terminal, once prefill has taken a
// second. Removes the line at the end.
class ReadingProgress {
  public:
    // Keeps `io`.
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
