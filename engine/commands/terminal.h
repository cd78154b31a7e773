// The modes of the terminal of a chat, restored however the program ends.
#pragma once

namespace runnel::commands {

// In every mode but Original, the terminal marks pasted text ("bracketed paste").
// While this exists, a signal that ends the program (SIGTERM, SIGHUP, SIGQUIT) first restores the terminal's original
// mode and ends colors: after a program that dies in raw mode, a shell does not echo. A stop (SIGTSTP) restores it
// until the program continues. At most one may exist.
class TerminalModes {
  public:
    enum class Mode {
        Original,
        Watch,  // keys can be read one by one, without echo; Ctrl-C and Ctrl-Z remain signals
        Edit,   // as Watch, but Ctrl-C and Ctrl-Z are keys
    };
    TerminalModes(int in, int out);
    ~TerminalModes();
    TerminalModes(const TerminalModes &) = delete;
    TerminalModes &operator=(const TerminalModes &) = delete;

    void enter(Mode mode);
    // Stops the process group, as Ctrl-Z does in other programs. Returns when it continues, or at once if it cannot be
    // stopped.
    void suspend();
    // A descriptor that becomes readable when the window's size changes or the program continues after a stop.
    int changes() const;
    // Empties that descriptor and says what happened since the last call.
    struct Changes {
        bool window = false;  // the window's size
        bool continued =
            false;  // the program continued after a stop: others may have written to the terminal
    };
    Changes take_changes();
};

// Restores the original mode before the program ends in an unusual way. Signal handlers may call it.
void restore_terminal();

// While this exists, the terminal has its original mode, for another program that uses it.
class OriginalTerminal {
  public:
    OriginalTerminal();
    ~OriginalTerminal();
    OriginalTerminal(const OriginalTerminal &) = delete;
    OriginalTerminal &operator=(const OriginalTerminal &) = delete;

  private:
    TerminalModes::Mode before_;
};

}  // namespace runnel::commands
