#include "tests/support/mcp_server.h"

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>

namespace runnel::testing {
namespace {

using Json = nlohmann::ordered_json;

void write_all(const std::string &text) {
    for (size_t at = 0; at < text.size();) {
        const ssize_t written = write(STDOUT_FILENO, text.data() + at, text.size() - at);
        if (written <= 0) _exit(0);
        at += static_cast<size_t>(written);
    }
}

void send(const Json &message) {
    write_all(message.dump() + "\n");
}

Json text_result(const std::string &text) {
    return {{"content", Json::array({{{"type", "text"}, {"text", text}}})}, {"isError", false}};
}

// Descriptors above stderr, the confinement, the session and the environment of this process.
std::string self() {
    std::string text = "descriptors";
    if (DIR *folder = opendir("/proc/self/fd")) {
        while (const dirent *entry = readdir(folder)) {
            const int fd = std::atoi(entry->d_name);
            if (fd > 2 && fd != dirfd(folder)) text += " " + std::to_string(fd);
        }
        closedir(folder);
    }
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
        if (line.starts_with("NoNewPrivs:") || line.starts_with("Seccomp:"))
            text += "\n" + line.substr(0, line.find('\t')) + line.substr(line.rfind('\t') + 1);
    text += getsid(0) == getpid() ? "\nleads its session" : "\nis in another session";
    const char *value = std::getenv("RUNNEL_TEST_VALUE");
    char folder[4096];
    return text + "\n" + (value ? value : "no value") + "\n" + (getcwd(folder, sizeof folder) ? folder : "");
}

Json tool(const char *name, const Json &properties) {
    return {{"name", name},
            {"description", std::string("It is ") + name},
            {"inputSchema", {{"type", "object"}, {"properties", properties}, {"required", Json::array()}}}};
}

Json tools_page(const Json &parameters) {
    const Json text = {{"text", {{"type", "string"}, {"enum", {"one", "two"}}}}};
    if (!parameters.contains("cursor"))
        return {{"tools", {tool("echo", text), tool("fail", Json::object())}}, {"nextCursor", "second"}};
    return {{"tools", {tool("picture", Json::object()), tool("self", Json::object())}}};
}

Json called(const std::string &mode, const std::string &name, const Json &arguments) {
    if (mode == "large") return text_result(std::string(1 << 20, 'x') + "\x1b[31m\x07");
    if (name == "echo") return text_result("echo of " + arguments.dump());
    if (name == "fail") {
        Json result = text_result("it failed");
        result["isError"] = true;
        return result;
    }
    if (name == "picture")
        return {{"content",
                 {{{"type", "image"}, {"data", "AAAA"}, {"mimeType", "image/png"}},
                  {{"type", "resource"}, {"resource", {{"uri", "file:///a"}, {"text", "hidden"}}}},
                  {{"type", "text"}, {"text", "tea\x1b[2Jm\r\n\xc3\xa9"}}}}};
    return text_result(self());
}

// Reads one line; at the end of stdin, the server ends.
Json receive(const std::string &mode) {
    std::string line;
    if (std::getline(std::cin, line)) return Json::parse(line, nullptr, false);
    while (mode == "stubborn") pause();
    _exit(0);
}

// Asks the client: "ping" is answered, everything else is refused.
void ask_client(const std::string &mode) {
    send({{"jsonrpc", "2.0"}, {"id", "mine"}, {"method", "ping"}});
    send({{"jsonrpc", "2.0"}, {"id", 77}, {"method", "sampling/createMessage"}, {"params", Json::object()}});
    send({{"jsonrpc", "2.0"}, {"method", "notifications/tools/list_changed"}});
    const Json pong = receive(mode), refused = receive(mode);
    const bool is_right =
        pong["id"] == "mine" && pong["result"].is_object() && refused["error"]["code"] == -32601;
    if (!is_right) _exit(9);
}

}  // namespace

int mcp_server(const std::string &mode) {
    if (mode == "dies") return 3;
    if (mode == "stubborn") signal(SIGTERM, SIG_IGN);
    if (mode == "greets") write_all("Welcome!\n\n{\"half\": \n");
    while (mode == "nonsense") write_all("not a message\n");
    while (mode == "endless") write_all(std::string(1 << 16, ' '));
    for (;;) {
        const Json message = receive(mode);
        const std::string method = message.value("method", "");
        if (method == "notifications/cancelled")
            std::cerr << "cancelled " << message["params"]["requestId"] << std::endl;
        if (!message.contains("id") || mode == "silent") continue;
        Json answer = {{"jsonrpc", "2.0"}, {"id", message["id"]}};
        const Json parameters = message.value("params", Json::object());
        const char *file = std::getenv("RUNNEL_TEST_VALUE");
        if (mode == "lists" && method == "tools/list" && file) std::ofstream(file) << "x";
        while (mode == "late" && file && access(file, F_OK) != 0) usleep(1000);
        if (method == "initialize") {
            const std::string version = mode == "old"   ? "2024-11-05"
                                        : mode == "new" ? "2099-01-01"
                                                        : parameters["protocolVersion"].get<std::string>();
            std::cerr << "begins\x1b[31m" << std::endl;
            answer["result"] = {{"protocolVersion", version},
                                {"capabilities", {{"tools", {{"listChanged", true}}}}},
                                {"serverInfo", {{"name", "toy"}, {"version", "7"}}}};
        } else if (method == "tools/list") {
            answer["result"] = tools_page(parameters);
        } else if (method == "tools/call") {
            if (mode == "dies-later") return 4;
            if (mode == "slow") continue;
            if (mode == "good") ask_client(mode);
            answer["result"] = called(mode, parameters["name"].get<std::string>(), parameters["arguments"]);
        } else {
            answer["error"] = {{"code", -32601}, {"message", "no such method"}};
        }
        if (mode != "large") {
            send(answer);
            continue;
        }
        std::string line = answer.dump();  // one byte of the text is not UTF-8
        if (const size_t at = line.find("xx"); at != line.npos) line[at] = '\xff';
        write_all(line + "\n");
    }
}

}  // namespace runnel::testing
