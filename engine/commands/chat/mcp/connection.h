// JSON-RPC 2.0 with a server, one message a line.
//
// Everything that the server writes is untrusted: a line has at most kLongestLine bytes, the log of stderr is bounded,
// and invalid UTF-8 becomes U+FFFD. All requests of the server are refused except "ping". The server's output is read
// only while a request of this process waits for its answer; at other times the server may block.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "engine/commands/chat/mcp/process.h"
#include "engine/commands/json.h"
#include "engine/decode/stop_request.h"
#include "gguf/base/timer.h"

namespace runnel::commands::mcp {

inline constexpr size_t kLongestLine = size_t{16} << 20, kLogBytes = size_t{64} << 10;
inline constexpr size_t kMostNoise =
    1000;  // lines on stdout that are no messages; some servers print a greeting

class ServerError : public std::runtime_error {
  public:
    enum class Kind {
        Refused,   // the server answered with an error
        TimedOut,  // no answer in time
        Stopped,   // by the user
        Broken,    // the server ended or breaks the protocol: the connection is over
    };
    ServerError(Kind k, const std::string &what) : std::runtime_error(what), kind(k) {}
    Kind kind;
};

class Connection {
  public:
    // Starts the server. Throws StartError.
    explicit Connection(const ServerConfig &config) : process_(config) {}

    // Queues a request, writes as much of it as the server takes now, and returns its number. Throws ServerError::Broken.
    int64_t send(const std::string &method, const Json &parameters);
    // The result of a request. After a ServerError, a later answer to this request is ignored. Before throwing TimedOut
    // or Stopped, tells the server that the request is canceled.
    Json wait(int64_t request, base::Clock::time_point until, const decode::StopRequest &stop);
    // The result of a request if it comes within `milliseconds`. Throws ServerError as wait().
    std::optional<Json> poll(int64_t request, int milliseconds);
    void notify(const std::string &method, const Json &parameters);

    // Whether the server said that its tools changed.
    bool tools_changed() const { return tools_changed_; }
    // The end of what the server wrote on stderr, with lines of its stdout that are not messages.
    const std::string &log();
    void close_input() { process_.close_input(); }
    ServerProcess &process() { return process_; }

  private:
    void queue(const Json &message);
    Json take_result(int64_t request);
    // Waits up to `milliseconds` for the pipes, then reads and writes once. Throws ServerError::Broken.
    void exchange(int milliseconds);
    void write_some();
    void read_messages();
    void read_errors();
    void take_line(std::string_view line);
    void take_message(const Json &message);
    void remember(std::string_view text);
    [[noreturn]] void broken(const std::string &why);

    ServerProcess process_;
    std::string out_;               // bytes to be written
    std::string in_;                // the beginning of a line
    size_t searched_ = 0;           // the first searched_ bytes of in_ have no line end
    std::map<int64_t, Json> sent_;  // by request: the message with its answer, or null while there is none
    int64_t last_ = 0;
    std::string log_, why_broken_;
    size_t noise_ = 0;
    bool tools_changed_ = false;
};

}  // namespace runnel::commands::mcp
