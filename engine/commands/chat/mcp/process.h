// A server as a child process, with pipes to its stdin, stdout and stderr.
//
// The server runs in its own session: Ctrl-C at the terminal does not reach it, and it cannot use the terminal. It
// inherits the environment, but no descriptors except these three pipes. Start it before this process enters the
// sandbox, because the server would inherit that as well.
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
    // Ends the server: closes its stdin, sends SIGTERM to its process group if it still runs after kPatience, and SIGKILL
    // after kPatience more. Reaps the process.
    ~ServerProcess();
    ServerProcess(const ServerProcess &) = delete;
    ServerProcess &operator=(const ServerProcess &) = delete;

    static constexpr std::chrono::milliseconds kPatience{1000};
    // Ends all servers as the destructor does, but at the same time, so that it takes no longer than for one.
    static void end(std::span<ServerProcess *const> all);

    // This process's ends of the pipes, non-blocking; -1: closed.
    int input() const { return number(input_); }
    int output() const { return number(output_); }
    int errors() const { return number(errors_); }
    void close_input() { input_.reset(); }
    void close_errors() { errors_.reset(); }

    pid_t process() const { return process_; }
    // Waits up to `time` for the server's end and says how it ended: "exit code 1", "signal 9". nullopt: it still runs.
    std::optional<std::string> ending(std::chrono::milliseconds time);

  private:
    static int number(const std::optional<Descriptor> &end) { return end ? end->get() : -1; }
    bool ended_within(std::chrono::milliseconds time) const;

    pid_t process_ = -1;
    std::optional<Descriptor> input_, output_, errors_;
    std::optional<std::string> ending_;  // set once the process is reaped
};

}  // namespace runnel::commands::mcp
