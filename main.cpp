// The program: runs a command and turns errors into one line and an exit code.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <thread>

#include "engine/commands/cli/dispatch.h"
#include "engine/commands/io.h"
#include "engine/commands/terminal.h"
#include "engine/decode/error.h"
#include "engine/model/model.h"
#include "engine/text/tokenizer.h"
#include "gguf/file.h"
#include "gguf/no_address_space.h"
#include "gguf/output_file.h"
#include "gguf/printable.h"
#include "kernels/backend.h"
#include "kernels/process_group.h"

namespace {

namespace gguf = runnel::gguf;
namespace model = runnel::model;
namespace text = runnel::text;
namespace kernels = runnel::kernels;
namespace decode = runnel::decode;
using namespace runnel::commands;

constexpr std::string_view kOutOfMemory = "runnel: out of memory\n";

// Prints `what` as one line on stderr; if memory runs out, prints a shorter line. Of several processes that find the same error,
// the first one says it: mpirun ends the others while they wait.
int fail(int code, std::string_view what, Io &io) {
    constexpr std::chrono::seconds kUntilEnded{5};
    try {
        std::string who = "runnel: ";
        if (const int number = kernels::number_among_them(); number > 0) {
            std::this_thread::sleep_for(kUntilEnded);
            who += "process " + std::to_string(number) + ": ";
        }
        io.err.try_write(who + gguf::printable(what, 4096) + "\n");
    } catch (const std::bad_alloc &) {
        io.err.try_write(kOutOfMemory);
    }
    return code;
}

int guarded(const Arguments &arguments, Io &io) {
    try {
        return dispatch(arguments, io);
    } catch (const ClosedPipe &) {
        return exit_code::kDone;
    } catch (const kernels::LeaderEnded &end) {
        return end.failed ? exit_code::kFailed : exit_code::kDone;
    } catch (const Interrupted &) {
        return exit_code::kInterrupted;
    } catch (const UsageError &error) {
        return fail(exit_code::kUsage, error.what(), io);
    } catch (const gguf::OutputRefused &error) {
        return fail(exit_code::kUsage, error.what(), io);
    } catch (const InputError &error) {
        return fail(exit_code::kInput, error.what(), io);
    } catch (const gguf::FileError &error) {
        return fail(error.missing ? exit_code::kUsage : exit_code::kModelFile, error.what(), io);
    } catch (const model::ModelError &error) {
        return fail(exit_code::kModelFile, error.what(), io);
    } catch (const text::TokenizerError &error) {
        return fail(exit_code::kModelFile, error.what(), io);
    } catch (const kernels::BackendError &error) {
        if (error.kind == kernels::BackendError::Kind::Cancelled) return exit_code::kInterrupted;
        const bool memory = error.kind == kernels::BackendError::Kind::OutOfMemory;
        return fail(memory ? exit_code::kMemory : exit_code::kFailed, error.what(), io);
    } catch (const decode::DecodeError &error) {
        using Kind = decode::DecodeError::Kind;
        return fail(error.kind == Kind::OutOfMemory ? exit_code::kMemory
                    : error.kind == Kind::BadInput  ? exit_code::kInput
                                                    : exit_code::kFailed,
                    error.what(), io);
    } catch (const gguf::NoAddressSpace &error) {
        return fail(exit_code::kMemory, error.what(), io);
    } catch (const std::bad_alloc &) {
        io.err.try_write(kOutOfMemory);
        return exit_code::kMemory;
    } catch (const std::exception &error) {
        return fail(exit_code::kFailed, error.what(), io);
    }
}

// Weights are used in the mapped file. If the file is truncated meanwhile, or the disk fails, reading them
// raises SIGBUS. Any other SIGBUS is a bug and crashes as usual.
void on_bus_error(int, siginfo_t *info, void *) {
    if (info->si_code != BUS_ADRERR && info->si_code != BUS_OBJERR) {
        signal(SIGBUS, SIG_DFL);  // the instruction is executed again
        return;
    }
    restore_terminal();
    constexpr std::string_view kMessage =
        "runnel: the model file can no longer be read: it was truncated while in use, or its disk fails\n";
    [[maybe_unused]] const ssize_t written = write(2, kMessage.data(), kMessage.size());
    _exit(exit_code::kFailed);
}

// Out of memory where no handler can catch it: before main(), in a destructor, or while the
// exception itself is allocated.
std::atomic<bool> memory_ran_out{false};
void on_no_memory() {
    memory_ran_out = true;
    throw std::bad_alloc();
}
void on_terminate() {
    bool memory = memory_ran_out;
    if (const std::exception_ptr error = std::current_exception()) try {
            std::rethrow_exception(error);
        } catch (const std::bad_alloc &) {
            memory = true;
        } catch (...) {
            memory = false;
        }
    restore_terminal();
    if (!memory) abort();
    [[maybe_unused]] const ssize_t written = write(2, kOutOfMemory.data(), kOutOfMemory.size());
    _exit(exit_code::kMemory);
}
__attribute__((constructor(101))) void set_handlers_early() {
    std::set_new_handler(on_no_memory);
    std::set_terminate(on_terminate);
}

// If the caller closed a standard descriptor, a file opened later must not take its place. The replacement
// gives an error when it is used.
void hold_standard_descriptors() {
    for (const int fd : {0, 1, 2})
        if (fcntl(fd, F_GETFD) < 0) (void)!open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
}

// As early as possible, so that Ctrl-C means exit code 130 from the start.
__attribute__((constructor(101))) void set_signals() {
    // The handler outside of any InterruptScope. An ignored SIGINT stays ignored (background jobs).
    const auto before = signal(SIGINT, [](int) { _exit(exit_code::kInterrupted); });
    if (before == SIG_IGN) signal(SIGINT, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);  // a closed pipe becomes an error of write(), see ClosedPipe
    signal(SIGXFSZ, SIG_IGN);  // and so does a file that exceeds the shell's size limit
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &action, nullptr);
}

}  // namespace

int main(int argc, char **argv) {
    hold_standard_descriptors();
    Io io;
    io.err.begin_lines_after(io.out);
    const int code = guarded(Arguments(argv + std::min(argc, 1), argv + argc), io);
    kernels::leave_process_group();
    // All output is written; unmapping gigabytes and joining threads would only take
    // time.
    _exit(code);
}
