#include "engine/commands/terminal.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <string_view>

namespace runnel::commands {
namespace {

constexpr std::string_view kPasteOn = "\x1b[?2004h", kPasteOff = "\x1b[?2004l", kColorOff = "\x1b[0m\n";
constexpr std::array<int, 3> kEndings = {SIGTERM, SIGHUP, SIGQUIT};

// The state that a signal handler needs.
struct Found {
    int in = -1, out = -1;
    bool has_settings = false;
    termios settings{};
    std::array<struct sigaction, kEndings.size()> actions{};
};

Found &found() {
    static Found instance;
    return instance;
}

void give_back_and_end(int number) {
    const Found &f = found();
    if (f.has_settings) tcsetattr(f.in, TCSANOW, &f.settings);
    [[maybe_unused]] const ssize_t written = write(f.out, kPasteOff.data(), kPasteOff.size());
    signal(number, SIG_DFL);
    raise(number);
}

void uncolor_and_end(int number) {
    [[maybe_unused]] const ssize_t written = write(found().out, kColorOff.data(), kColorOff.size());
    signal(number, SIG_DFL);
    raise(number);
}

// An ignored signal remains ignored.
void handle_endings(void (*handler)(int)) {
    Found &f = found();
    for (size_t i = 0; i < kEndings.size(); ++i) {
        struct sigaction action {};
        action.sa_handler = handler;
        sigaction(kEndings[i], nullptr, &f.actions[i]);
        if (f.actions[i].sa_handler == SIG_DFL) sigaction(kEndings[i], &action, nullptr);
    }
}

void leave_endings() {
    for (size_t i = 0; i < kEndings.size(); ++i) sigaction(kEndings[i], &found().actions[i], nullptr);
}

}  // namespace

RawTerminal::RawTerminal(int in, int out) {
    Found &f = found();
    f.in = in;
    f.out = out;
    f.has_settings = tcgetattr(in, &f.settings) == 0;
    handle_endings(give_back_and_end);
    [[maybe_unused]] const ssize_t written = write(out, kPasteOn.data(), kPasteOn.size());
}

RawTerminal::~RawTerminal() {
    const Found &f = found();
    [[maybe_unused]] const ssize_t written = write(f.out, kPasteOff.data(), kPasteOff.size());
    leave_endings();
}

ColorScope::ColorScope(int out) {
    found().out = out;
    handle_endings(uncolor_and_end);
}

ColorScope::~ColorScope() {
    leave_endings();
}

}  // namespace runnel::commands
