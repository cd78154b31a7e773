// All MCP servers of a chat, and their tools under the names that the model sees: SERVER__TOOL, in characters that
// every format of tool calls can write.
#pragma once

#include <chrono>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "engine/commands/chat/mcp/server.h"
#include "engine/commands/io.h"

namespace runnel::commands::mcp {

struct ServersOptions {
    // Names of tools that run without a question; the name of a server allows all its tools.
    std::vector<std::string> allowed = {};
    std::chrono::milliseconds timeout{60000};  // for a call, and for the start of all servers together
};

class Servers {
  public:
    struct Tool {
        std::string name;  // for the model
        Server *server;
        const ToolDefinition *definition;
    };

    // Starts the servers. Preconditions: this process is not confined yet, and the helper process for editors already
    // runs, because it must not inherit the servers' pipes.
    Servers(const Config &config, ServersOptions options);
    ~Servers();
    Servers(const Servers &) = delete;
    Servers &operator=(const Servers &) = delete;

    // Waits until all servers have started or failed. Reports failures and unknown names in ServersOptions::allowed to
    // `io`.
    void connect(Io &io, const decode::StopRequest &stop);

    // The tools in OpenAI's shape.
    Json definitions() const;
    const Tool *find(std::string_view name) const;  // null: there is none
    size_t tool_count() const { return tools_.size(); }

    bool is_allowed(const Tool &tool) const {
        return allowed_.count(tool.name) > 0 || granted_.count(tool.name) > 0;
    }
    // Allows the tool until forget_granted(), which another conversation calls.
    void allow(const Tool &tool) { granted_.insert(tool.name); }
    void forget_granted() { granted_.clear(); }
    CallResult call(const Tool &tool, const Json &arguments, const decode::StopRequest &stop) {
        return tool.server->call(tool.definition->name, arguments, options_.timeout, stop);
    }

    // The servers with their states and tools, as text for the user.
    std::string overview(size_t columns) const;
    // What a server wrote on stderr; nullopt: there is no such server.
    std::optional<std::string> log(std::string_view server);

  private:
    void add_tools(Server &server);
    void apply_allowed(Io &io);
    bool clashes(const Tool &tool) const;

    ServersOptions options_;
    std::deque<Server> servers_;
    std::vector<Tool> tools_;
    std::set<std::string, std::less<>> names_;
    // Tools allowed by the options, and by the user in this conversation.
    std::set<std::string, std::less<>> allowed_, granted_;
};

}  // namespace runnel::commands::mcp
