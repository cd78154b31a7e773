#include "tests/support/process.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string_view>

namespace runnel::testing {
namespace {

struct Pipe {
    int read = -1, write = -1;
    Pipe() {
        int fds[2];
        if (pipe2(fds, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
        read = fds[0], write = fds[1];
    }
    ~Pipe() { close_read(), close_write(); }
    Pipe(const Pipe &) = delete;
    Pipe &operator=(const Pipe &) = delete;
    void close_read() {
        if (read >= 0) close(read);
        read = -1;
    }
    void close_write() {
        if (write >= 0) close(write);
        write = -1;
    }
};

[[noreturn]] void become(const Process &process, const std::string &program) {
    signal(SIGPIPE, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    std::vector<char *> argv{const_cast<char *>(program.c_str())};
    for (const std::string &a : process.arguments) argv.push_back(const_cast<char *>(a.c_str()));
    argv.push_back(nullptr);
    setenv("RUNNEL_CONFIG", "", 1);            // ignores the settings of the user who runs the tests
    setenv("XDG_CACHE_HOME", "/dev/null", 1);  // no prompts are kept, unless a test names a folder
    for (const std::string &e : process.environment) putenv(const_cast<char *>(e.c_str()));
    execv(program.c_str(), argv.data());
    _exit(127);
}

void show(std::string_view text) {
    if (write(STDOUT_FILENO, text.data(), text.size()) < 0) _exit(126);
}

// The shell of Process::job_control. The window's size may change while the job is stopped.
[[noreturn]] void become_shell(const Process &process, const std::string &program) {
    signal(SIGTTOU, SIG_IGN);
    termios mode{};
    tcgetattr(STDIN_FILENO, &mode);
    const int job = fork();
    if (job < 0) _exit(126);
    if (job == 0) {
        setpgid(0, 0);
        tcsetpgrp(STDIN_FILENO, getpid());
        signal(SIGTTOU, SIG_DFL);
        become(process, program);
    }
    setpgid(job, job);
    for (int status = 0;;) {
        if (waitpid(job, &status, WUNTRACED) != job) _exit(126);
        if (!WIFSTOPPED(status)) _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
        tcsetpgrp(STDIN_FILENO, getpgrp());
        termios now{};
        tcgetattr(STDIN_FILENO, &now);
        show(now.c_lflag == mode.c_lflag && now.c_iflag == mode.c_iflag ? "\n[stopped]\n"
                                                                        : "\n[stopped in raw mode]\n");
        char byte;
        if (read(STDIN_FILENO, &byte, 1) != 1) _exit(126);
        tcsetpgrp(STDIN_FILENO, job);
        kill(-job, SIGWINCH);  // the kernel has sent it to the foreground only
        kill(-job, SIGCONT);
    }
}

bool read_some(int fd, std::string &into, size_t most = 65536) {
    char bytes[65536];
    const ssize_t n = read(fd, bytes, std::min(most, sizeof bytes));
    if (n <= 0) return false;
    into.append(bytes, static_cast<size_t>(n));
    return true;
}

int wait_for(int pid, bool killed) {
    int status = 0;
    waitpid(pid, &status, 0);
    if (killed) return 124;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

using Clock = std::chrono::steady_clock;
constexpr auto kHangs = std::chrono::minutes(5);

int milliseconds_to(Clock::time_point end) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    return static_cast<int>(std::max<int64_t>(left, 0));
}

// True if keys are read one by one, as line editors do.
bool reads_keys(int terminal) {
    termios settings{};
    return tcgetattr(terminal, &settings) == 0 && !(settings.c_lflag & ICANON);
}

winsize window(int columns, int rows) {
    winsize size{};
    size.ws_col = static_cast<unsigned short>(columns);
    size.ws_row = static_cast<unsigned short>(rows);
    return size;
}

// Types while it reads what is shown: a terminal holds only some kilobytes.
void type(int master, const std::string &typed, std::string &shown) {
    for (size_t at = 0; at < typed.size();) {
        pollfd waiting{master, POLLIN | POLLOUT, 0};
        if (poll(&waiting, 1, -1) < 0 || (waiting.revents & (POLLHUP | POLLERR))) return;
        if ((waiting.revents & POLLIN) && !read_some(master, shown)) return;
        if (!(waiting.revents & POLLOUT)) continue;
        const ssize_t n = write(master, typed.data() + at, std::min<size_t>(typed.size() - at, 1024));
        if (n <= 0) return;
        at += static_cast<size_t>(n);
    }
}

Result execute_in_terminal(const Process &process, const std::string &program, Clock::time_point end) {
    constexpr int kTick = 10;  // milliseconds: there is no event for a change of the terminal's settings
    int master = -1;
    const winsize size = window(process.columns, process.rows);
    const int pid = forkpty(&master, nullptr, nullptr, &size);
    if (pid < 0) throw std::runtime_error("forkpty");
    if (pid == 0 && process.job_control) become_shell(process, program);
    if (pid == 0) become(process, program);
    if (process.input && write(master, process.input->data(), process.input->size()) < 0)
        throw std::runtime_error("typing");
    Result result{};
    bool killed = false;
    for (;;) {
        pollfd waiting{master, POLLIN, 0};
        const int left = milliseconds_to(end);
        const int ready = poll(&waiting, 1, process.type ? std::min(left, kTick) : left);
        if (ready < 0 || left == 0) {
            kill(pid, SIGKILL);
            killed = true;
            break;
        }
        if (ready > 0) {
            if (!read_some(master, result.out)) break;
            if (process.watch) process.watch(result.out, pid);
        }
        if (process.resize) {
            if (const auto changed = process.resize(result.out)) {
                const winsize now = window(changed->first, changed->second);
                ioctl(master, TIOCSWINSZ, &now);
            }
        }
        if (process.type) type(master, process.type(result.out, reads_keys(master)), result.out);
    }
    result.code = wait_for(pid, killed);
    close(master);
    return result;
}

}  // namespace

std::optional<std::string> program_under_test() {
    const char *name = std::getenv("RUNNEL");
    const std::string path = name && *name ? name : "build/runnel";
    return std::filesystem::exists(path) ? std::optional(path) : std::nullopt;
}

Result execute(const Process &process) {
    const std::string program = program_under_test().value();
    const auto end = Clock::now() + kHangs;
    if (process.terminal) return execute_in_terminal(process, program, end);
    Pipe in, out, err;
    const int pid = fork();
    if (pid < 0) throw std::runtime_error("fork");
    if (pid == 0) {
        dup2(process.input ? in.read : open("/dev/null", O_RDONLY), 0);
        dup2(process.stdout_to.empty() ? out.write : open(process.stdout_to.c_str(), O_WRONLY), 1);
        dup2(err.write, 2);
        become(process, program);
    }
    if (process.started) process.started(pid);
    in.close_read(), out.close_write(), err.close_write();
    signal(SIGPIPE, SIG_IGN);
    fcntl(in.write, F_SETFL, O_NONBLOCK);
    Result result{};
    bool killed = false;
    size_t written = 0;
    while (out.read >= 0 || err.read >= 0) {
        const bool fed = !process.input || written == process.input->size();
        if (in.write >= 0 && fed && process.input_ends) in.close_write();
        pollfd waiting[3] = {{out.read, POLLIN, 0}, {err.read, POLLIN, 0}, {fed ? -1 : in.write, POLLOUT, 0}};
        if (poll(waiting, 3, milliseconds_to(end)) <= 0) {
            kill(pid, SIGKILL);
            killed = true;
            break;
        }
        if (waiting[2].revents) {
            const ssize_t n =
                write(in.write, process.input->data() + written, process.input->size() - written);
            if (n < 0 && errno != EAGAIN) in.close_write();
            if (n > 0) written += static_cast<size_t>(n);
        }
        if (waiting[0].revents) {
            if (!read_some(out.read, result.out, process.stdout_limit - result.out.size())) out.close_read();
            if (process.watch) process.watch(result.out, pid);
            if (result.out.size() >= process.stdout_limit) out.close_read();
        }
        if (waiting[1].revents && !read_some(err.read, result.err)) err.close_read();
    }
    result.code = wait_for(pid, killed);
    return result;
}

}  // namespace runnel::testing
