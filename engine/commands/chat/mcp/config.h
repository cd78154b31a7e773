// The file of --mcp, in the shape that Claude Desktop, Cursor and LM Studio use:
//   {"mcpServers": {"files": {"command": "npx", "args": ["-y", "some-server"],
//                             "env": {"KEY": "value"}, "cwd": "/home/me"}}}
// Other keys are ignored, except "disabled": true.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace runnel::commands::mcp {

inline constexpr size_t kMostServers = 64;

struct ServerConfig {
    std::string name, command;
    std::vector<std::string> arguments = {};
    std::vector<std::pair<std::string, std::string>> environment = {};  // in addition to that of this process
    std::optional<std::string> folder = {};                             // working directory
};

struct Config {
    std::vector<ServerConfig> servers;
    std::vector<std::string>
        notes;  // one for each server that is left out because its transport is not stdio
};

// Reads the text of a file; messages call it `name`. Throws InputError, which names the server.
Config parse_config(const std::string &text, const std::string &name);
// Throws also UsageError if the file cannot be opened.
Config read_config(const std::string &path);

}  // namespace runnel::commands::mcp
