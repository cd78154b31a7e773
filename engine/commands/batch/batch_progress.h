// Shows how far `runnel batch` is, on one line of a terminal that is overwritten.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "engine/commands/io.h"

namespace runnel::commands {

struct BatchState {
    int64_t rows = 0;    // written
    int64_t errors = 0;  // rows with an error
    int64_t tokens = 0;  // generated
    double done = 0;     // share of the input that is answered, in [0, 1]; < 0: not known
    double before = 0;   // share that an earlier run has answered
    double seconds = 0;  // since the beginning
};

// "[#####-----]  50%  12 rows  210 tokens/s  1:20 left"; without bar and time where `done` is not known.
std::string progress_line(const BatchState &state);

// Shows the progress line on stderr if that is a terminal (and without -q), at most five times a second.
class BatchProgress {
  public:
    explicit BatchProgress(Io &io) : io_(io), shown_(io.err.is_terminal() && !io.quiet) {}
    ~BatchProgress();
    BatchProgress(const BatchProgress &) = delete;
    BatchProgress &operator=(const BatchProgress &) = delete;

    // Whether update() would show something.
    bool due() const;
    void update(const BatchState &state);

  private:
    Io &io_;
    bool shown_, drawn_ = false;
    std::chrono::steady_clock::time_point last_{};
};

}  // namespace runnel::commands
