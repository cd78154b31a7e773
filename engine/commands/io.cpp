#include "engine/commands/io.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>

#include "gguf/printable.h"
#include "gguf/read_files.h"

namespace runnel::commands {
namespace {

std::string reason() {
    return std::generic_category().message(errno);
}

// A signal handler can reach its target only through a global.
std::atomic<decode::StopRequest *> interrupt_target{nullptr};

std::atomic<bool> second_ends{false};

void on_interrupt(int) {
    decode::StopRequest *target = interrupt_target.load();
    if (!target || (second_ends.load() && target->reason() == decode::StopRequest::Reason::Interrupt))
        _exit(exit_code::kInterrupted);
    target->request(decode::StopRequest::Reason::Interrupt);
}

// -1 for an error other than EAGAIN, which occurs if another process made the descriptor non-blocking.
ssize_t write_some(int fd, std::string_view bytes) {
    for (;;) {
        const ssize_t written = ::write(fd, bytes.data(), bytes.size());
        if (written >= 0 || (errno != EINTR && errno != EAGAIN)) return written;
        if (errno == EAGAIN) {
            pollfd waiting{fd, POLLOUT, 0};
            poll(&waiting, 1, -1);
        }
    }
}

bool interrupted(const decode::StopRequest *stop) {
    return stop && stop->reason() == decode::StopRequest::Reason::Interrupt;
}

// -1 if it cannot be opened. Waits until a named pipe has a writer.
int open_to_read(const std::string &path, const decode::StopRequest *stop) {
    for (;;) {
        if (interrupted(stop)) throw Interrupted{};
        const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd >= 0 || errno != EINTR) return fd;
    }
}

}  // namespace

Descriptor::~Descriptor() {
    if (owned_ && fd_ >= 0) close(fd_);
}

Output::Output(int fd, std::string name) : fd_(fd), name_(std::move(name)), terminal_(isatty(fd) == 1) {}

void Output::begin_lines_after(Output &results) {
    struct stat a {};
    struct stat b {};
    const bool one_file =
        fstat(fd_, &a) == 0 && fstat(results.fd_, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
    if (one_file && !terminal_) results_ = &results;
}

void Output::begin_line() noexcept {
    if (results_ && std::exchange(results_->mid_line_, false)) write_some(fd_, "\n");
}

void Output::write(std::string_view bytes) {
    if (bytes.empty()) return;
    begin_line();
    mid_line_ = !bytes.ends_with('\n');
    while (!bytes.empty()) {
        const ssize_t written = write_some(fd_, bytes);
        if (written < 0 && errno == EPIPE) throw ClosedPipe{};
        if (written < 0) throw OutputError("cannot write to " + name_ + ": " + reason());
        bytes.remove_prefix(static_cast<size_t>(written));
    }
}

void Output::try_write(std::string_view bytes) noexcept {
    if (!bytes.empty()) begin_line();
    while (!bytes.empty()) {
        const ssize_t written = write_some(fd_, bytes);
        if (written <= 0) return;
        bytes.remove_prefix(static_cast<size_t>(written));
    }
}

void Io::note(std::string_view text) noexcept {
    if (!quiet) err.try_write("runnel: " + gguf::printable(text, 4096) + "\n");
}

void Io::progress(std::string_view text) noexcept {
    if (!quiet) err.try_write(text);
}

InputFile::InputFile(const std::string &path, int in, const decode::StopRequest *stop,
                     Replaceable replaceable)
    : name_(path == "-" ? "standard input" : gguf::printable(path, 4096)),
      fd_(path == "-" ? in : open_to_read(path, stop)),
      owned_(path != "-") {
    if (fd_ < 0) throw UsageError("cannot open " + name_ + ": " + reason());
    if (replaceable == Replaceable::No) gguf::note_read(fd_);
}

InputFile::~InputFile() {
    if (owned_) close(fd_);
}

std::string read_all(const std::string &path, int in, const decode::StopRequest *stop,
                     InputFile::Replaceable replaceable) {
    const InputFile file(path, in, stop, replaceable);
    const std::string &name = file.name();
    std::string text;
    size_t used = 0;
    for (;;) {
        if (interrupted(stop)) throw Interrupted{};
        text.resize(std::max<size_t>(1 << 16, used * 2));
        const ssize_t n = read(file.descriptor(), text.data() + used, text.size() - used);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EISDIR) throw UsageError("cannot read " + name + ": it is a directory");
        if (n < 0) throw InputError("cannot read " + name + ": " + reason());
        if (n == 0) break;
        used += static_cast<size_t>(n);
        if (used > kLargestInput) throw InputError(name + " has 512 MiB or more: split it");
    }
    text.resize(used);
    return text;
}

bool has_input(int in) {
    struct stat status {};
    if (fstat(in, &status) != 0) return false;
    return S_ISFIFO(status.st_mode) || S_ISREG(status.st_mode);
}

bool input_ready(int in, double seconds) {
    pollfd waiting{in, POLLIN, 0};
    return poll(&waiting, 1, static_cast<int>(seconds * 1000)) != 0;
}

InterruptScope::InterruptScope(decode::StopRequest &request, Repeated repeated) {
    second_ends.store(repeated == Repeated::Kills);
    interrupt_target.store(&request);
    struct sigaction action {};
    action.sa_handler = on_interrupt;  // no SA_RESTART: reads return
    sigaction(SIGINT, nullptr, &before_);
    if (before_.sa_handler != SIG_IGN) sigaction(SIGINT, &action, nullptr);
}

InterruptScope::~InterruptScope() {
    sigaction(SIGINT, &before_, nullptr);
    interrupt_target.store(nullptr);
}

}  // namespace runnel::commands
