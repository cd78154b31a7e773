// A server as a child process, with pipes to its stdin, stdout and stderr.
//
// It has a session of its own: Ctrl-C at the terminal does not reach it, and it cannot use the terminal. It inherits the
// environment and no descriptor but the three. It must be started before the process enters its sandbox, which it
// would inherit.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "engine/commands/chat/mcp/config.h"
#include "engine/commands/io.h"

namespace runnel::commands::mcp {

class StartError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

class ServerProcess {
  public:
    // Throws StartError: "command not found: npx".
    explicit ServerProcess(const ServerConfig &config);
    // Ends it: closes its stdin, and sends SIGTERM and then SIGKILL to its process group if it does not end within
    // kPatience after each step. Reaps it.
    ~ServerProcess();
    ServerProcess(const ServerProcess &) = delete;
    ServerProcess &operator=(const ServerProcess &) = delete;

    static constexpr std::chrono::milliseconds kPatience{1000};
    // Ends all as the destructor does, but together: it takes no longer than for one.
    static void end(std::span<ServerProcess *const> all);

    // This process's ends of the pipes, non-blocking; -1: closed.
    int input() const { return number(input_); }
    int output() const { return number(output_); }
    int errors() const { return number(errors_); }
    void close_input() { input_.reset(); }
    void close_errors() { errors_.reset(); }

    pid_t process() const { return process_; }
    // How it ended: "exit code 1", "signal 9"; waits for that up to `time`. nullopt: it still runs.
    std::optional<std::string> ending(std::chrono::milliseconds time);

  private:
    static int number(const std::optional<Descriptor> &end) { return end ? end->get() : -1; }
    bool ended_within(std::chrono::milliseconds time) const;

    pid_t process_ = -1;
    std::optional<Descriptor> input_, output_, errors_;
    std::optional<std::string> ending_;  // set: reaped
};

}  // namespace runnel::commands::mcp
