// An MCP server: its startup, its tools, and calls of the tools. After a failure, problem() says why, and all calls fail.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "engine/commands/chat/mcp/connection.h"

namespace runnel::commands::mcp {

inline constexpr size_t kMostTools = 1024;                      // of one server
inline constexpr size_t kLongestDefinition = size_t{64} << 10;  // bytes of JSON

// A tool as its server defines it.
struct ToolDefinition {
    std::string name, description;
    Json schema;  // of the arguments; null: any object
};

// The outcome of a call; `text` is for the model and has passed plain_text().
struct CallResult {
    enum class Kind { Done, Failed, Stopped } kind;
    std::string text;
};

class Server {
  public:
    // Starts the process and sends "initialize" without waiting for the answer. If the process cannot be started,
    // problem() says why.
    explicit Server(ServerConfig config);

    // True until the server has started and listed its tools, or failed.
    bool begins() const { return !is_ready_ && problem_.empty(); }
    // Takes the next step of the startup if the server answers within `milliseconds`. Precondition: begins().
    void go_on(int milliseconds);
    // Ends the startup. Precondition: begins().
    void give_up(const std::string &why);

    const std::string &name() const { return config_.name; }
    const ServerConfig &config() const { return config_; }
    bool is_ready() const { return is_ready_; }
    const std::string &problem() const { return problem_; }  // empty: none so far
    const std::string &title() const { return title_; }      // the server's own name and version
    const std::vector<ToolDefinition> &tools() const { return tools_; }
    const std::vector<std::string> &notes() const { return notes_; }  // about tools that are left out
    bool tools_changed() const { return connection_ && connection_->tools_changed(); }
    std::string log() { return connection_ ? connection_->log() : std::string(); }
    ServerProcess *process() { return connection_ ? &connection_->process() : nullptr; }  // null: not started

    // `arguments`: a JSON object. Does not throw.
    CallResult call(const std::string &tool, const Json &arguments, std::chrono::milliseconds timeout,
                    const decode::StopRequest &stop);

  private:
    void take_beginning(const Json &result);
    void take_tools(const Json &result);
    void list_tools(const std::string &cursor);
    void add_tool(const Json &json);

    ServerConfig config_;
    std::unique_ptr<Connection> connection_;  // null: not started
    int64_t request_ = 0;                     // the startup's current request: "initialize" or "tools/list"
    size_t pages_ = 0;                        // number of "tools/list" requests so far
    bool is_ready_ = false;
    std::string problem_, title_;
    std::vector<ToolDefinition> tools_;
    std::vector<std::string> notes_;
};

}  // namespace runnel::commands::mcp
