// An MCP server over stdio, for tests: `build/tests --mcp-server MODE`. All modes but "good" misbehave in one way.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace runnel::testing {

// Serves until stdin ends. Modes:
//   good       tools on two pages: echo, fail, picture, self (what the process is: descriptors, environment); sends
//              requests of its own before each result
//   old, new   the protocol versions 2024-11-05 and 2099-01-01
//   greets     first writes lines that are not messages, then behaves
//   nonsense   writes lines that are not messages, without end
//   endless    writes one line without end
//   silent     never answers
//   lists      creates the file $RUNNEL_TEST_VALUE when its tools are listed
//   late       answers once that file exists
//   slow       never answers a call
//   dies       exits with code 3 at once
//   dies-later exits with code 3 at the first call
//   large      results of a megabyte with control characters and invalid UTF-8
//   stubborn   ignores the end of stdin and SIGTERM
int mcp_server(const std::string &mode);

// The entry of a configuration file for a server in this mode.
inline nlohmann::ordered_json mcp_entry(const std::string &mode) {
    return {{"command", std::filesystem::read_symlink("/proc/self/exe").string()},
            {"args", {"--mcp-server", mode}}};
}

}  // namespace runnel::testing
