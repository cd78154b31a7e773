// Terminal modes for line editing and colors for answers, restored even if a signal ends the
// program.
#pragma once

#include <termios.h>

#include <optional>
#include <string>

namespace runnel::commands {

// While this exists, the terminal marks pasted text ("bracketed paste"), and a signal that ends the program
// (SIGTERM, SIGHUP, SIGQUIT) first restores the terminal's original mode: after a line editor that dies in
// raw mode, a shell does not echo. At most one may exist.
class RawTerminal {
  public:
    RawTerminal(int in, int out);
    ~RawTerminal();
    RawTerminal(const RawTerminal &) = delete;
    RawTerminal &operator=(const RawTerminal &) = delete;
};

// While this exists, a signal that ends the program first turns off the terminal's colors. At most one may
// exist, and not at the same time as a RawTerminal.
class ColorScope {
  public:
    explicit ColorScope(int out);
    ~ColorScope();
    ColorScope(const ColorScope &) = delete;
    ColorScope &operator=(const ColorScope &) = delete;
};

}  // namespace runnel::commands
