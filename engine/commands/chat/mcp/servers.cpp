#include "engine/commands/chat/mcp/servers.h"

#include <algorithm>
#include <utility>

#include "engine/commands/chat/conversation_text.h"
#include "engine/commands/chat/mcp/content.h"
#include "engine/text/tool_calls/tools.h"
#include "gguf/printable.h"

namespace runnel::commands::mcp {
namespace {

constexpr size_t kLongestName = 64;  // the limit of most services
constexpr int kTurn = 10;            // milliseconds to wait for one server before the next one has its turn

// Letters, digits, _ and -; everything else becomes "_".
std::string name_for_model(const std::string &server, const std::string &tool) {
    std::string name = server + "__" + tool;
    for (char &c : name)
        if (!text::is_tool_name_character(c) || c == '.' || c == '/') c = '_';
    name.resize(std::min(name.size(), kLongestName));
    return name;
}

// The command without its arguments, because some hold keys and passwords.
std::string command_line(const ServerConfig &config) {
    const size_t count = config.arguments.size();
    return config.command + " (" + std::to_string(count) + (count == 1 ? " argument)" : " arguments)");
}

}  // namespace

Servers::Servers(const Config &config, ServersOptions options) : options_(std::move(options)) {
    for (const ServerConfig &server : config.servers) servers_.emplace_back(server);
}

Servers::~Servers() {
    std::vector<ServerProcess *> processes;
    for (Server &server : servers_)
        if (ServerProcess *process = server.process()) processes.push_back(process);
    ServerProcess::end(processes);
}

void Servers::connect(Io &io, const decode::StopRequest &stop) {
    const base::Clock::time_point until = base::Clock::now() + options_.timeout;
    const auto begins = [](const Server &server) { return server.begins(); };
    while (std::ranges::any_of(servers_, begins) && !stop.requested() && base::Clock::now() < until)
        for (Server &server : servers_)
            if (server.begins()) server.go_on(kTurn);
    for (Server &server : servers_) {
        if (server.begins())
            server.give_up(stop.requested() ? "its start was interrupted" : "it did not start in time");
        const std::string name = "MCP server " + gguf::quoted(server.name()) + ": ";
        if (!server.is_ready())
            io.err.try_write("runnel: " + name + gguf::printable(server.problem(), 1024) + "\n");
        for (const std::string &note : server.notes()) io.note(name + note);
        add_tools(server);
    }
    apply_allowed(io);
}

void Servers::add_tools(Server &server) {
    for (const ToolDefinition &tool : server.tools()) {
        const std::string wanted = name_for_model(server.name(), tool.name);
        std::string name = wanted;
        for (size_t number = 2; !names_.insert(name).second; ++number) {
            const std::string ending = "_" + std::to_string(number);
            name = wanted.substr(0, kLongestName - ending.size()) + ending;
        }
        tools_.push_back({name, &server, &tool});
    }
}

void Servers::apply_allowed(Io &io) {
    for (const std::string &allowed : options_.allowed) {
        bool is_known = false;
        for (const Server &server : servers_) is_known |= server.name() == allowed;
        for (const Tool &tool : tools_) {
            const bool is_server = tool.server->name() == allowed;
            if (!is_server && tool.name != allowed) continue;
            is_known = true;
            if (is_server || !clashes(tool))
                allowed_.insert(tool.name);
            else
                io.note("--mcp-allow " + gguf::quoted(allowed) +
                        " has no effect: several tools have this name; name the server");
        }
        if (!is_known)
            io.note("--mcp-allow " + gguf::quoted(allowed) + ": no server has a tool of this name");
    }
}

// Whether other tools would have the same name. Which of them gets it without a number depends on the order of the
// servers, so a permission by name would be ambiguous.
bool Servers::clashes(const Tool &tool) const {
    const auto wanted = [](const Tool &t) { return name_for_model(t.server->name(), t.definition->name); };
    return std::ranges::count(tools_, wanted(tool), wanted) > 1;
}

Json Servers::definitions() const {
    Json list = Json::array();
    for (const Tool &tool : tools_) {
        Json function = {{"name", tool.name}, {"description", plain_text(tool.definition->description)}};
        if (!tool.definition->schema.is_null()) function["parameters"] = tool.definition->schema;
        list.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
    return list;
}

const Servers::Tool *Servers::find(std::string_view name) const {
    const auto found = std::ranges::find(tools_, name, &Tool::name);
    return found == tools_.end() ? nullptr : &*found;
}

std::string Servers::overview(size_t columns) const {
    std::string text;
    for (const Server &server : servers_) {
        std::string line = server.name() + ": ";
        if (server.is_ready())
            line +=
                std::to_string(server.tools().size()) + " tools, " + server.title() +
                (server.tools_changed() ? " (its tools have changed; restart the chat to use the new ones)"
                                        : "");
        else
            line += server.problem();
        text += clipped(line, columns) + "\n" + clipped("  " + command_line(server.config()), columns) + "\n";
        for (const Tool &tool : tools_)
            if (tool.server == &server)
                text += clipped("  " + tool.name + (is_allowed(tool) ? " (allowed)" : "") + "  " +
                                    tool.definition->description,
                                columns) +
                        "\n";
    }
    return text.empty() ? "no MCP servers\n" : text;
}

std::optional<std::string> Servers::log(std::string_view name) {
    for (Server &server : servers_)
        if (server.name() == name) return server.log();
    return std::nullopt;
}

}  // namespace runnel::commands::mcp
