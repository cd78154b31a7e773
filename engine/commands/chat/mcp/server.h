// An MCP server: its beginning, its tools, and calls of them. After a failure, state() says why, and all calls fail.
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

// What a call gave; `text` is plain_text() for the model.
struct CallResult {
    enum class Kind { Done, Failed, Stopped } kind;
    std::string text;
};

class Server {
  public:
    // Starts the process and asks for its beginning, without waiting. A failure to start is a state.
    explicit Server(ServerConfig config);

    // True until the server has begun and listed its tools, or failed.
    bool begins() const { return !is_ready_ && problem_.empty(); }
    // Takes the next step of the beginning if its answer comes within `milliseconds`. Precondition: begins().
    void go_on(int milliseconds);
    // Ends a beginning.
    void give_up(const std::string &why);

    const std::string &name() const { return config_.name; }
    const ServerConfig &config() const { return config_; }
    bool is_ready() const { return is_ready_; }
    const std::string &problem() const { return problem_; }  // empty: none so far
    const std::string &title() const { return title_; }      // what it calls itself, with its version
    const std::vector<ToolDefinition> &tools() const { return tools_; }
    const std::vector<std::string> &notes() const { return notes_; }  // tools that are left out
    bool tools_changed() const { return connection_ && connection_->tools_changed(); }
    std::string log() { return connection_ ? connection_->log() : std::string(); }
    ServerProcess *process() { return connection_ ? &connection_->process() : nullptr; }  // null: not started

    // Arguments: an object. Does not throw.
    CallResult call(const std::string &tool, const Json &arguments, std::chrono::milliseconds timeout,
                    const decode::StopRequest &stop);

  private:
    void take_beginning(const Json &result);
    void take_tools(const Json &result);
    void list_tools(const std::string &cursor);
    void add_tool(const Json &json);

    ServerConfig config_;
    std::unique_ptr<Connection> connection_;  // null: not started
    int64_t request_ = 0;                     // of the beginning: "initialize" or "tools/list"
    size_t pages_ = 0;                        // of tools that were asked for
    bool is_ready_ = false;
    std::string problem_, title_;
    std::vector<ToolDefinition> tools_;
    std::vector<std::string> notes_;
};

}  // namespace runnel::commands::mcp
