#include "engine/commands/terminal.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "engine/commands/io.h"

namespace runnel::commands {
namespace {

constexpr std::string_view kPasteOn = "\x1b[?2004h", kPasteOff = "\x1b[?2004l", kColorOff = "\x1b[0m\n";
constexpr std::array<int, 3> kEndings = {SIGTERM, SIGHUP, SIGQUIT};

// What a handler needs: it has no other way to it.
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

// What is ignored stays so.
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

// A file of its own that is gone at the end.
class ScratchFile {
  public:
    ScratchFile() : path_((std::filesystem::temp_directory_path() / "runnel-XXXXXX.txt").string()) {
        fd_ = mkstemps(path_.data(), 4);
    }
    ~ScratchFile() {
        if (fd_ < 0) return;
        close(fd_);
        unlink(path_.c_str());
    }
    ScratchFile(const ScratchFile &) = delete;
    ScratchFile &operator=(const ScratchFile &) = delete;
    bool write(std::string_view text) const {
        while (fd_ >= 0 && !text.empty()) {
            const ssize_t n = ::write(fd_, text.data(), text.size());
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) return false;
            text.remove_prefix(static_cast<size_t>(n));
        }
        return fd_ >= 0;
    }
    const std::string &path() const { return path_; }

  private:
    std::string path_;
    int fd_ = -1;
};

const char *editor() {
    for (const char *name : {"VISUAL", "EDITOR"})
        if (const char *value = std::getenv(name); value && *value) return value;
    return "vi";
}

// $EDITOR may be a command with options, so a shell reads it; the file is an argument, never part of it.
bool run_editor(const std::string &path) {
    const std::string command = std::string(editor()) + " \"$1\"";
    const pid_t child = fork();
    if (child < 0) return false;
    if (child == 0) {
        signal(SIGINT, SIG_DFL);
        signal(SIGPIPE, SIG_DFL);
        signal(SIGXFSZ, SIG_DFL);
        execl("/bin/sh", "sh", "-c", command.c_str(), "sh", path.c_str(), static_cast<char *>(nullptr));
        _exit(127);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return false;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
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

std::optional<std::string> edit_in_editor(const std::string &text) {
    const ScratchFile file;
    if (!file.write(text) || !run_editor(file.path())) return std::nullopt;
    try {
        std::string edited = read_all(file.path(), -1);
        while (edited.ends_with('\n')) edited.pop_back();
        return edited;
    } catch (const std::runtime_error &) {
        return std::nullopt;  // the editor removed it
    }
}

}  // namespace runnel::commands
