// Progress as a line that grows: "[1]5.2,[2]5.3,".
#pragma once

#include <string_view>

#include "engine/commands/io.h"

namespace runnel::commands {

// A growing line on stderr. The destructor ends it, so that an error message starts on its own line.
class GrowingLine {
  public:
    explicit GrowingLine(Io &io) : io_(io) {}
    ~GrowingLine() { end(); }
    GrowingLine(const GrowingLine &) = delete;
    GrowingLine &operator=(const GrowingLine &) = delete;
    void show(std::string_view text) {
        io_.progress(text);
        open_ = true;
    }
    void end() {
        if (open_) io_.progress("\n");
        open_ = false;
    }

  private:
    Io &io_;
    bool open_ = false;
};

}  // namespace runnel::commands
