// Input and output of commands: unbuffered file descriptors, with the error behavior that scripts rely on.
#pragma once

#include <signal.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "engine/decode/stop_request.h"
#include "gguf/base/interrupted.h"

namespace runnel::commands {

// Thrown for wrong or contradictory arguments. Exit code 2.
class UsageError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Thrown for an input that cannot be used: a prompt, a list of ids, a base file. Exit code 5.
class InputError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Thrown if the result cannot be written (a full disk). Exit code 1.
class OutputError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Thrown if the reader of the result has closed the pipe (`| head -1`): the program ends quietly with exit code 0.
struct ClosedPipe {};

// Thrown if SIGINT arrived before there was any result. Exit code 130.
using base::Interrupted;

namespace exit_code {
inline constexpr int kDone = 0, kFailed = 1, kUsage = 2, kModelFile = 3, kMemory = 4, kInput = 5;
inline constexpr int kInterrupted = 130;
}  // namespace exit_code

// A file descriptor; closes it if it owns it.
class Descriptor {
  public:
    Descriptor(int fd, bool owned) : fd_(fd), owned_(owned) {}
    Descriptor(Descriptor &&other) noexcept : fd_(std::exchange(other.fd_, -1)), owned_(other.owned_) {}
    ~Descriptor();
    Descriptor(const Descriptor &) = delete;
    Descriptor &operator=(const Descriptor &) = delete;
    int get() const { return fd_; }

  private:
    int fd_;
    bool owned_;
};

class Output {
  public:
    Output(int fd, std::string name);

    // Unbuffered. Throws ClosedPipe or OutputError.
    void write(std::string_view bytes);
    // As write(), for messages: errors are ignored.
    void try_write(std::string_view bytes) noexcept;
    bool is_terminal() const { return terminal_; }
    // What is written here begins on a line of its own if `results` writes to the same file or pipe (`2>&1`). `results`
    // must outlive this object. Terminals need nothing: there a result ends with a newline.
    void begin_lines_after(Output &results);

  private:
    void begin_line() noexcept;

    int fd_;
    std::string name_;
    bool terminal_;
    bool mid_line_ = false;
    Output *results_ = nullptr;
};

struct Io {
    Output out{1, "standard output"};
    Output err{2, "standard error"};
    int in = 0;
    bool quiet = false;      // -q: errors only
    bool overwrite = false;  // --overwrite: outputs may replace files of other programs

    // "runnel: text\n" on stderr, unless quiet; control characters made visible.
    void note(std::string_view text) noexcept;
    // Raw text on stderr, unless quiet.
    void progress(std::string_view text) noexcept;
};

// A file opened for reading; "-" is `in`, which stays open. Throws UsageError if it cannot be
// opened (exit code 2, as for a missing model), Interrupted if a stop was requested while it waited
// for a named pipe's writer.
class InputFile {
  public:
    // Whether an output of the run may replace it (gguf/read_files.h).
    enum class Replaceable { No, Yes };
    InputFile(const std::string &path, int in, const decode::StopRequest *stop = nullptr,
              Replaceable replaceable = Replaceable::No);
    ~InputFile();
    InputFile(const InputFile &) = delete;
    InputFile &operator=(const InputFile &) = delete;
    int descriptor() const { return fd_; }
    const std::string &name() const { return name_; }  // for messages

  private:
    std::string name_;
    int fd_;
    bool owned_;
};

// The longest accepted text: the tokenizers count in 32 bits.
inline constexpr size_t kLargestInput = (size_t{512} << 20) - 1;

// Reads all of a file ("-": of `in`). Throws UsageError if it cannot be opened (exit code 2, as for a missing
// model), InputError if reading fails or it is 512 MiB or larger, Interrupted if the user requested a stop.
// A deadline does not cut the text short.
std::string read_all(const std::string &path, int in, const decode::StopRequest *stop = nullptr,
                     InputFile::Replaceable replaceable = InputFile::Replaceable::No);

// True if `in` is a pipe or a file, not a terminal.
bool has_input(int in);

// Waits up to `seconds` until `in` has data or ends. False on timeout.
bool input_ready(int in, double seconds);

// While this exists, SIGINT requests a stop; then its previous handler is restored. With Repeated::Kills, a
// second SIGINT ends the program at once. If SIGINT is ignored (a background job of a script), it remains
// ignored. At most one may exist.
class InterruptScope {
  public:
    enum class Repeated { Kills, Ignored };
    explicit InterruptScope(decode::StopRequest &request, Repeated repeated = Repeated::Kills);
    ~InterruptScope();
    InterruptScope(const InterruptScope &) = delete;
    InterruptScope &operator=(const InterruptScope &) = delete;

  private:
    struct sigaction before_;
};

}  // namespace runnel::commands
