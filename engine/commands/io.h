// Where commands write and read: file descriptors, written at once, with the errors that scripts rely on.
#pragma once

#include <signal.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "engine/decode/stop_request.h"

namespace runnel::commands {

// Arguments that make no sense together. Exit code 2, as for unknown flags.
class UsageError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A prompt, id list or base file that cannot be used. Exit code 5.
class InputError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The result cannot be written (a full disk). Exit code 1.
class OutputError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The reader of the result has gone (`| head -1`): the program ends quietly, exit code 0.
struct ClosedPipe {};

// SIGINT came while there was nothing yet to show for it: exit code 130.
struct Interrupted {};

namespace exit_code {
inline constexpr int kDone = 0, kFailed = 1, kUsage = 2, kModelFile = 3, kMemory = 4, kInput = 5;
inline constexpr int kInterrupted = 130;
}  // namespace exit_code

// A file descriptor, closed with it if it owns it.
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
    // The same for messages, whose loss is no reason to stop.
    void try_write(std::string_view bytes) noexcept;
    bool is_terminal() const { return terminal_; }

  private:
    int fd_;
    std::string name_;
    bool terminal_;
};

struct Io {
    Output out{1, "standard output"};
    Output err{2, "standard error"};
    int in = 0;
    bool quiet = false;      // -q: errors only
    bool overwrite = false;  // --overwrite: outputs may replace files that this program did not make

    // "runnel: text\n" on stderr, unless quiet; control characters made visible.
    void note(std::string_view text) noexcept;
    // Raw text on stderr, unless quiet.
    void progress(std::string_view text) noexcept;
};

// A file opened to be read; "-" is `in`, which stays open. Throws UsageError when it cannot be opened (exit
// code 2, as for a model that is not there), Interrupted when `stop` was asked for while a named pipe had no
// writer.
class InputFile {
  public:
    // May an output of the run replace it (gguf/read_files.h)?
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

// No text longer than this is taken: the tokenizers count in 32 bits.
inline constexpr size_t kLargestInput = (size_t{512} << 20) - 1;

// All of a file ("-": of `in`). Throws UsageError when it cannot be opened (exit code 2, as for a model that
// is not there), InputError when reading fails or it is 512 MiB or larger, Interrupted when the user asked
// `stop` for it. (A deadline does not cut a prompt: what is generated for half a question helps nobody.)
std::string read_all(const std::string &path, int in, const decode::StopRequest *stop = nullptr,
                     InputFile::Replaceable replaceable = InputFile::Replaceable::No);

// Is there something on `in` that was meant for us: a pipe or a file, not a terminal?
bool has_input(int in);

// Waits up to `seconds` for `in` to have something to read or to end. False when it has not.
bool input_ready(int in, double seconds);

// SIGINT requests a stop while this exists, then does again what it did before. With Repeated::Kills, a
// second SIGINT ends the program at once. Where SIGINT is ignored (a job that a script put in the background)
// it stays so. One at a time.
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
