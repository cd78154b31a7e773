#include "engine/commands/chat/mcp/config.h"

#include "engine/commands/io.h"
#include "engine/commands/json.h"
#include "gguf/printable.h"

namespace runnel::commands::mcp {
namespace {

class Reader {
  public:
    explicit Reader(std::string where) : where_(std::move(where)) {}

    std::string text(const Json &value, const std::string &what) const {
        if (!value.is_string()) fail(what + " is not a string");
        std::string text = value.get<std::string>();
        if (text.find('\0') != std::string::npos) fail(what + " contains a zero byte");
        return text;
    }
    [[noreturn]] void fail(const std::string &what) const { throw InputError(where_ + ": " + what); }

  private:
    std::string where_;  // names the file and the server in messages
};

// The transport of a server, if it is another one than stdio; otherwise empty.
std::string other_transport(const Json &json) {
    for (const char *key : {"type", "transport"})
        if (const Json *type = text::find_member(json, key); type && type->is_string() && *type != "stdio")
            return type->get<std::string>();
    for (const char *key : {"url", "serverUrl", "httpUrl"})
        if (text::find_member(json, key)) return key;
    return {};
}

ServerConfig server_of(const std::string &name, const Json &json, const Reader &reader) {
    ServerConfig server{.name = name, .command = {}};
    const Json *command = text::find_member(json, "command");
    if (!command) reader.fail("it has no \"command\"");
    server.command = reader.text(*command, "\"command\"");
    if (server.command.empty()) reader.fail("\"command\" is empty");
    if (const Json *arguments = text::find_member(json, "args")) {
        if (!arguments->is_array()) reader.fail("\"args\" is not a list");
        for (const Json &argument : *arguments)
            server.arguments.push_back(reader.text(argument, "an item of \"args\""));
    }
    if (const Json *environment = text::find_member(json, "env")) {
        if (!environment->is_object()) reader.fail("\"env\" is not an object");
        for (const auto &[key, value] : environment->items()) {
            if (key.empty() || key.find('=') != key.npos || key.find('\0') != key.npos)
                reader.fail("\"env\" has a name that cannot be set: " + gguf::quoted(key));
            server.environment.emplace_back(key, reader.text(value, "\"env\": " + gguf::quoted(key)));
        }
    }
    if (const Json *folder = text::find_member(json, "cwd")) server.folder = reader.text(*folder, "\"cwd\"");
    return server;
}

}  // namespace

Config parse_config(const std::string &text, const std::string &name) {
    Json json;
    try {
        json = parse_json(text);
    } catch (const JsonError &error) {
        throw InputError(name + " is not JSON: " + error.what());
    }
    const Json *servers = text::find_member(json, "mcpServers");
    if (!servers || !servers->is_object()) throw InputError(name + " has no object \"mcpServers\"");
    if (servers->size() > kMostServers)
        throw InputError(name + " has more than " + std::to_string(kMostServers) + " servers");
    Config config;
    for (const auto &[key, value] : servers->items()) {
        const std::string quoted = gguf::quoted(key);
        const Reader reader(name + ": server " + quoted);
        if (!value.is_object()) reader.fail("it is not an object");
        if (const Json *off = text::find_member(value, "disabled"); off && *off == true) continue;
        const std::string transport = other_transport(value);
        if (transport.empty())
            config.servers.push_back(server_of(key, value, reader));
        else
            config.notes.push_back("MCP server " + quoted + " is left out: its transport is " +
                                   gguf::quoted(transport) + ", and only servers over stdio are started");
    }
    return config;
}

Config read_config(const std::string &path) {
    return parse_config(read_all(path, -1), gguf::printable(path, 4096));
}

}  // namespace runnel::commands::mcp
