#include "engine/commands/chat/mcp/config.h"

#include <doctest/doctest.h>

#include "engine/commands/io.h"

using namespace runnel::commands;
using namespace runnel::commands::mcp;

TEST_CASE("mcp config: command, arguments, environment and folder of each server are read") {
    const Config config = parse_config(R"({"other": 1, "mcpServers": {
        "files": {"command": "npx", "args": ["-y", "x"], "env": {"A": "1", "B": ""}, "cwd": "/tmp", "autoApprove": []},
        "off": {"command": "x", "disabled": true},
        "plain": {"type": "stdio", "command": "./run"}}})",
                                       "f.json");
    REQUIRE(config.servers.size() == 2);
    CHECK(config.notes.empty());
    CHECK(config.servers[0].name == "files");
    CHECK(config.servers[0].command == "npx");
    CHECK(config.servers[0].arguments == std::vector<std::string>{"-y", "x"});
    CHECK(config.servers[0].environment ==
          std::vector<std::pair<std::string, std::string>>{{"A", "1"}, {"B", ""}});
    CHECK(config.servers[0].folder == "/tmp");
    CHECK(config.servers[1].name == "plain");
    CHECK(config.servers[1].arguments.empty());
    CHECK(!config.servers[1].folder);
}

TEST_CASE("mcp config: servers with another transport are left out by name") {
    const Config config = parse_config(R"({"mcpServers": {"a": {"url": "http://x/sse"},
        "b": {"type": "http", "command": "x"}, "c\n": {"transport": "sse"}, "d": {"command": "x"}}})",
                                       "f.json");
    CHECK(config.servers.size() == 1);
    REQUIRE(config.notes.size() == 3);
    CHECK(config.notes[0] ==
          "MCP server 'a' is left out: its transport is 'url', and only servers over stdio are started");
    CHECK(config.notes[1].find("'b' is left out: its transport is 'http'") != std::string::npos);
    CHECK(config.notes[2].find("'c\\x0a'") != std::string::npos);
}

TEST_CASE("mcp config: errors name the file, the server and what is wrong") {
    const std::pair<const char *, const char *> cases[] = {
        {"[", "f.json is not JSON: "},
        {"{}", "f.json has no object \"mcpServers\""},
        {"[]", "f.json has no object \"mcpServers\""},
        {R"({"mcpServers": []})", "f.json has no object \"mcpServers\""},
        {R"({"mcpServers": {"a": 1}})", "f.json: server 'a': it is not an object"},
        {R"({"mcpServers": {"a": {}}})", "f.json: server 'a': it has no \"command\""},
        {R"({"mcpServers": {"a": {"command": ["x"]}}})", "server 'a': \"command\" is not a string"},
        {R"({"mcpServers": {"a": {"command": ""}}})", "server 'a': \"command\" is empty"},
        {R"({"mcpServers": {"a": {"command": "x\u0000y"}}})", "\"command\" contains a zero byte"},
        {R"({"mcpServers": {"a": {"command": "x", "args": "y"}}})", "\"args\" is not a list"},
        {R"({"mcpServers": {"a": {"command": "x", "args": [1]}}})", "an item of \"args\" is not a string"},
        {R"({"mcpServers": {"a": {"command": "x", "env": []}}})", "\"env\" is not an object"},
        {R"({"mcpServers": {"a": {"command": "x", "env": {"K": 1}}}})", "\"env\": 'K' is not a string"},
        {R"({"mcpServers": {"a": {"command": "x", "env": {"K=": "1"}}}})", "cannot be set: 'K='"},
        {R"({"mcpServers": {"a": {"command": "x", "cwd": 1}}})", "\"cwd\" is not a string"}};
    for (const auto &[text, message] : cases) {
        CAPTURE(text);
        std::string what;
        try {
            parse_config(text, "f.json");
        } catch (const InputError &error) {
            what = error.what();
        }
        CAPTURE(what);
        CHECK(what.find(message) != std::string::npos);
    }
    std::string many = R"({"mcpServers": {)";
    for (int i = 0; i < 65; ++i) many += (i ? ",\"" : "\"") + std::to_string(i) + R"(": {"command": "x"})";
    CHECK_THROWS_AS(parse_config(many + "}}", "f"), InputError);
    CHECK_THROWS_AS(read_config("/nowhere/mcp.json"), UsageError);
}
