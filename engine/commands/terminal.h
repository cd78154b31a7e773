// What line editing changes about a terminal, and undoes whatever ends it; and text edited in another
// program.
#pragma once

#include <termios.h>

#include <optional>
#include <string>

namespace runnel::commands {

// While this exists the terminal marks what is pasted ("bracketed paste"), and a signal that ends the program
// (SIGTERM, SIGHUP, SIGQUIT) first gives the terminal back as it was found: an editor that dies in raw mode
// leaves a shell that shows nothing of what is typed. One at a time.
class RawTerminal {
  public:
    RawTerminal(int in, int out);
    ~RawTerminal();
    RawTerminal(const RawTerminal &) = delete;
    RawTerminal &operator=(const RawTerminal &) = delete;
};

// While this exists, a signal that ends the program first turns the terminal's colors off. One at a time, and
// not beside a RawTerminal.
class ColorScope {
  public:
    explicit ColorScope(int out);
    ~ColorScope();
    ColorScope(const ColorScope &) = delete;
    ColorScope &operator=(const ColorScope &) = delete;
};

}  // namespace runnel::commands
