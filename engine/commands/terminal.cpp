#include "engine/commands/terminal.h"

#include <fcntl.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <string_view>

namespace runnel::commands {
namespace {

constexpr std::string_view kPasteOn = "\x1b[?2004h";
// Turns the marking of pastes off, wrapping and the cursor on, and colors off.
constexpr std::string_view kPlain = "\x1b[?7h\x1b[?25h\x1b[0m\x1b[?2004l";
constexpr std::array<int, 3> kEndings = {SIGTERM, SIGHUP, SIGQUIT};
constexpr std::array<int, 3> kChanges = {SIGTSTP, SIGCONT, SIGWINCH};

using Mode = TerminalModes::Mode;

// The data that the signal handlers use.
struct State {
    int in = -1, out = -1;
    std::atomic<Mode> mode = Mode::Original;
    bool has_settings = false;
    termios original{}, watch{}, edit{};
    std::array<int, 2> changes = {-1, -1};  // a pipe
    std::array<struct sigaction, kEndings.size()> endings{};
    std::array<struct sigaction, kChanges.size()> others{};
};

State &state() {
    static constinit State instance;  // signal handlers use it
    return instance;
}

void put(std::string_view bytes) {
    [[maybe_unused]] const ssize_t written = write(state().out, bytes.data(), bytes.size());
}

// Signal handlers also call this.
void apply(Mode mode) {
    const State &s = state();
    if (!s.has_settings) return;
    tcsetattr(s.in, TCSANOW, mode == Mode::Edit ? &s.edit : mode == Mode::Watch ? &s.watch : &s.original);
    if (mode != Mode::Original) put(kPasteOn);
}

void restore() {
    if (state().mode == Mode::Original) return;
    put(kPlain);
    apply(Mode::Original);
}

constexpr char kWindow = 'w', kContinued = 'c';

void tell(char what) {
    [[maybe_unused]] const ssize_t written = write(state().changes[1], &what, 1);
}

void restore_and_end(int number) {
    put(kPlain);
    apply(Mode::Original);
    signal(number, SIG_DFL);
    raise(number);
}

void handle(int number, void (*handler)(int), int flags, struct sigaction *before) {
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    sigaction(number, nullptr, before);
    if (before->sa_handler == SIG_DFL) sigaction(number, &action, nullptr);
}

constexpr int kStopFlags = SA_RESTART | SA_NODEFER | SA_RESETHAND;

// kStopFlags restores the signal's default action while this handler runs, so raise() stops the program.
void stop(int number) {
    const int error = errno;
    restore();
    raise(number);
    struct sigaction ignored {};
    handle(number, stop, kStopFlags, &ignored);
    if (state().mode != Mode::Original) apply(state().mode);
    tell(kContinued);
    errno = error;
}

void change(int number) {
    const int error = errno;
    if (number == SIGCONT && state().mode != Mode::Original)
        apply(state().mode);  // in mode Original, another program such as an editor uses the terminal
    tell(number == SIGCONT ? kContinued : kWindow);
    errno = error;
}

}  // namespace

TerminalModes::TerminalModes(int in, int out) {
    State &s = state();
    s.in = in;
    s.out = out;
    s.mode = Mode::Original;
    s.has_settings = tcgetattr(in, &s.original) == 0;
    s.watch = s.original;
    s.watch.c_iflag &= ~static_cast<tcflag_t>(ICRNL | INLCR | IGNCR | ISTRIP | IXON);
    s.watch.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    s.watch.c_lflag |= ISIG | NOFLSH;
    s.watch.c_cc[VMIN] = 1;
    s.watch.c_cc[VTIME] = 0;
    s.edit = s.watch;
    s.edit.c_lflag &= ~static_cast<tcflag_t>(ISIG | IEXTEN);
    if (pipe2(s.changes.data(), O_CLOEXEC | O_NONBLOCK) != 0) s.changes = {-1, -1};
    for (size_t i = 0; i < kEndings.size(); ++i) handle(kEndings[i], restore_and_end, 0, &s.endings[i]);
    handle(SIGTSTP, stop, kStopFlags, &s.others[0]);
    handle(SIGCONT, change, SA_RESTART, &s.others[1]);
    handle(SIGWINCH, change, SA_RESTART, &s.others[2]);
}

TerminalModes::~TerminalModes() {
    State &s = state();
    enter(Mode::Original);
    for (size_t i = 0; i < kEndings.size(); ++i) sigaction(kEndings[i], &s.endings[i], nullptr);
    for (size_t i = 0; i < kChanges.size(); ++i) sigaction(kChanges[i], &s.others[i], nullptr);
    for (int &fd : s.changes) {
        if (fd >= 0) close(fd);
        fd = -1;
    }
}

void TerminalModes::enter(Mode mode) {
    State &s = state();
    if (s.mode == mode) return;
    if (mode == Mode::Original) put(kPlain);
    s.mode = mode;
    apply(mode);
}

OriginalTerminal::OriginalTerminal() : before_(state().mode) {
    restore();
    state().mode = Mode::Original;
}

OriginalTerminal::~OriginalTerminal() {
    state().mode = before_;
    if (before_ != Mode::Original) apply(before_);
}

// Stops the other processes of the group first, while this one ignores the signal; raise() then stops this one.
void TerminalModes::suspend() {
    struct sigaction ignore {
    }, before{};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGTSTP, &ignore, &before);
    kill(0, SIGTSTP);
    sigaction(SIGTSTP, &before, nullptr);
    raise(SIGTSTP);
}

void restore_terminal() {
    restore();
}

int TerminalModes::changes() const {
    return state().changes[0];
}

TerminalModes::Changes TerminalModes::take_changes() {
    Changes all;
    for (char what; read(changes(), &what, 1) > 0;) (what == kWindow ? all.window : all.continued) = true;
    return all;
}

}  // namespace runnel::commands
