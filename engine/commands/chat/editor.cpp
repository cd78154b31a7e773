#include "engine/commands/chat/editor.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "engine/commands/io.h"
#include "engine/commands/terminal.h"

namespace runnel::commands {
namespace {

bool write_all(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t n = write(fd, bytes.data(), bytes.size());
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
}

// A temporary file; the destructor removes it.
class ScratchFile {
  public:
    ScratchFile() {
        std::error_code error;
        const auto folder = std::filesystem::temp_directory_path(error);
        path_ = ((error ? std::filesystem::path("/tmp") : folder) / "runnel-XXXXXX.txt").string();
        fd_ = mkstemps(path_.data(), 4);
    }
    ~ScratchFile() {
        if (fd_ < 0) return;
        close(fd_);
        unlink(path_.c_str());
    }
    ScratchFile(const ScratchFile &) = delete;
    ScratchFile &operator=(const ScratchFile &) = delete;
    bool write(std::string_view text) const { return fd_ >= 0 && write_all(fd_, text); }
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

// A shell parses $EDITOR, which may have options. The path is an argument, never part of the command.
bool run_editor(const std::string &path) {
    const std::string command = std::string(editor()) + " \"$1\"";
    const pid_t child = fork();
    if (child < 0) return false;
    if (child == 0) {
        signal(SIGINT, SIG_DFL);
        signal(SIGQUIT, SIG_DFL);
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

// This process's ends of the pipes to the helper process that starts editors; -1: there is no helper.
struct Helper {
    int ask = -1, answer = -1;
};

Helper &helper() {
    static Helper instance;
    return instance;
}

bool read_byte(int fd, char &byte) {
    ssize_t n;
    do n = read(fd, &byte, 1);
    while (n < 0 && errno == EINTR);
    return n == 1;
}

// Reads paths that end with a zero byte, runs the editor for each and answers with a byte, until the chat ends.
[[noreturn]] void serve(int asked, int answers) {
    signal(SIGINT, SIG_IGN);  // Ctrl-C is meant for the chat or the editor
    signal(SIGQUIT, SIG_IGN);
    std::string path;
    for (char byte; read_byte(asked, byte);) {
        if (byte != 0) {
            path += byte;
            continue;
        }
        if (!write_all(answers, run_editor(path) ? "y" : "n")) break;
        path.clear();
    }
    _exit(0);
}

bool ask_helper(const std::string &path) {
    char answer = 'n';
    return write_all(helper().ask, {path.c_str(), path.size() + 1}) && read_byte(helper().answer, answer) &&
           answer == 'y';
}

}  // namespace

void start_editor_helper() {
    int asked[2], answers[2];
    if (pipe2(asked, O_CLOEXEC) != 0) return;
    if (pipe2(answers, O_CLOEXEC) != 0) {
        close(asked[0]), close(asked[1]);
        return;
    }
    const pid_t child = fork();
    if (child == 0) {
        close(asked[1]), close(answers[0]);
        serve(asked[0], answers[1]);
    }
    close(asked[0]), close(answers[1]);
    if (child > 0)
        helper() = {asked[1], answers[0]};
    else
        close(asked[1]), close(answers[0]);
}

std::optional<std::string> edit_in_editor(const std::string &text) {
    const ScratchFile file;
    const OriginalTerminal original;
    if (!file.write(text) || !(helper().ask < 0 ? run_editor(file.path()) : ask_helper(file.path())))
        return std::nullopt;
    try {
        std::string edited = read_all(file.path(), -1);
        while (edited.ends_with('\n')) edited.pop_back();
        return edited;
    } catch (const std::runtime_error &) {
        return std::nullopt;  // the editor removed it
    }
}

}  // namespace runnel::commands
