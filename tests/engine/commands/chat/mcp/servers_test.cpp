// MCP servers that behave and misbehave: this program, started again (tests/support/mcp_server.h).
#include "engine/commands/chat/mcp/servers.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "engine/commands/chat/mcp/connection.h"
#include "tests/support/mcp_server.h"
#include "tests/support/temporary.h"

using namespace runnel::commands;
using namespace runnel::commands::mcp;
using namespace runnel::testing;
using namespace std::chrono_literals;
using runnel::decode::StopRequest;

namespace {

constexpr auto kLong = 120000ms, kShort = 300ms;  // kShort: for servers that never answer

ServerConfig config_of(const std::string &mode) {
    const auto entry = mcp_entry(mode);
    return {.name = mode,
            .command = entry["command"].get<std::string>(),
            .arguments = entry["args"].get<std::vector<std::string>>()};
}

// Ignores SIGPIPE, as the program does.
struct NoPipeSignal {
    sighandler_t before = signal(SIGPIPE, SIG_IGN);
    ~NoPipeSignal() { signal(SIGPIPE, before); }
};

// Messages go to a file.
struct Connected {
    NoPipeSignal no_signal;
    TemporaryDirectory directory;
    Descriptor file{open((directory / "messages").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600), true};
    Io io{.out = Output(file.get(), "test"), .err = Output(file.get(), "test")};
    Servers servers;

    explicit Connected(const Config &config, ServersOptions options = {.timeout = kLong})
        : servers(config, std::move(options)) {
        servers.connect(io, StopRequest());
    }
    explicit Connected(const std::string &mode, std::chrono::milliseconds timeout = kLong)
        : Connected(Config{{config_of(mode)}, {}}, {.timeout = timeout}) {}

    std::string messages() const {
        std::ifstream in(directory / "messages");
        return {std::istreambuf_iterator<char>(in), {}};
    }
    CallResult call(const std::string &name, const Json &arguments = Json::object()) {
        const Servers::Tool *tool = servers.find(name);
        REQUIRE(tool);
        return servers.call(*tool, arguments, StopRequest());
    }
    bool log_has(const std::string &server, const std::string &text) {
        for (int i = 0; i < 6000; ++i) {  // a server's last output may arrive after the call has ended
            if (servers.log(server)->find(text) != std::string::npos) return true;
            std::this_thread::sleep_for(10ms);
        }
        return false;
    }
};

void check_failed(const CallResult &result, const std::string &text) {
    CAPTURE(result.text);
    CHECK(result.kind == CallResult::Kind::Failed);
    CHECK(result.text.find(text) != std::string::npos);
}

}  // namespace

TEST_CASE("mcp: all pages of tools are listed, and calls give text") {
    Connected c("good");
    CHECK(c.messages() == "");
    CHECK(c.servers.tool_count() == 4);
    const Json definitions = c.servers.definitions();
    CHECK(definitions[0]["function"]["name"] == "good__echo");
    CHECK(definitions[0]["function"]["description"] == "It is echo");
    CHECK(definitions[0]["function"]["parameters"]["properties"]["text"]["type"] == "string");
    CHECK(definitions[3]["function"]["name"] == "good__self");
    const CallResult echo = c.call("good__echo", {{"text", "one"}});
    CHECK(echo.kind == CallResult::Kind::Done);
    CHECK(echo.text == "echo of {\"text\":\"one\"}");
    check_failed(c.call("good__fail"), "it failed");
    CHECK(c.call("good__picture").text ==
          "[image, image/png: not shown]\n[resource, file:///a: not shown]\ntea\xef\xbf\xbd[2Jm\n\xc3\xa9");
    CHECK(c.servers.find("echo") == nullptr);
    const std::string overview = c.servers.overview(100);
    CAPTURE(overview);
    CHECK(overview.find("good: 4 tools, toy 7 (its tools have changed") != std::string::npos);
    CHECK(overview.find("  good__echo  It is echo\n") != std::string::npos);
    CHECK(c.log_has("good", "begins\x1b[31m"));
    CHECK(!c.servers.log("other"));
}

TEST_CASE("mcp: a server inherits no descriptors and gets its environment and folder") {
    const Descriptor leak(open("/dev/null", O_RDONLY), true);  // not close-on-exec
    const TemporaryDirectory folder;
    ServerConfig config = config_of("old");
    config.environment = {{"RUNNEL_TEST_VALUE", "a value"}};
    config.folder = folder.path().string();
    Connected c(Config{{config}, {}});
    CHECK(c.messages() == "");
    const std::string self = c.call("old__self").text;
    CAPTURE(self);
    CHECK(self.starts_with("descriptors\n"));
    CHECK(self.find("\nleads its session\na value\n" + std::filesystem::canonical(folder.path()).string()) !=
          std::string::npos);
}

TEST_CASE("mcp: a server that does not start gives one message, and the others work") {
    ServerConfig missing{.name = "missing", .command = "no-such-command-anywhere"};
    ServerConfig folder = config_of("good");
    folder.name = "folder", folder.folder = "/nowhere/at/all";
    ServerConfig file{.name = "file", .command = "/etc/passwd"};
    Connected c(Config{{config_of("dies"), missing, folder, file, config_of("new"), config_of("nonsense"),
                        config_of("endless"), config_of("greets")},
                       {}});
    const std::string messages = c.messages();
    CAPTURE(messages);
    for (const char *line :
         {"runnel: MCP server 'dies': the server ended with exit code 3\n",
          "runnel: MCP server 'missing': command not found: no-such-command-anywhere\n",
          "runnel: MCP server 'folder': no folder /nowhere/at/all\n",
          "runnel: MCP server 'file': cannot start /etc/passwd: Permission denied\n",
          "runnel: MCP server 'new': it uses the protocol version '2099-01-01', but runnel supports "
          "2024-11-05 to "
          "2025-06-18\n",
          "runnel: MCP server 'nonsense': the server writes lines that are not JSON, as 'not a message'\n",
          "runnel: MCP server 'endless': the server wrote a line of more than 16 MiB\n"})
        CHECK(messages.find(line) != std::string::npos);
    CHECK(std::count(messages.begin(), messages.end(), '\n') == 7);
    CHECK(c.servers.tool_count() == 4);
    CHECK(c.call("greets__echo").text == "echo of {}");
    CHECK(c.log_has("greets", "Welcome!"));
}

TEST_CASE("mcp: servers that never answer are given up in time, and calls are canceled") {
    Connected silent("silent", kShort);
    CHECK(silent.messages() == "runnel: MCP server 'silent': it did not start in time\n");
    Connected slow("slow", 20000ms);
    const Servers::Tool *tool = slow.servers.find("slow__echo");
    REQUIRE(tool);
    check_failed(tool->server->call("echo", Json::object(), kShort, StopRequest()), "no result within 0 s");
    CHECK(slow.log_has("slow", "cancelled 4"));
    StopRequest stop;
    std::thread user([&] {
        std::this_thread::sleep_for(100ms);
        stop.request(StopRequest::Reason::Interrupt);
    });
    CHECK(slow.servers.call(*tool, Json::object(), stop).kind == CallResult::Kind::Stopped);
    user.join();
    CHECK(slow.log_has("slow", "cancelled 5"));
}

TEST_CASE("mcp: an answer that arrived counts, even if the time limit has passed") {
    const NoPipeSignal no_signal;
    Connection connection(config_of("good"));
    const int64_t request = connection.send("initialize", {{"protocolVersion", "2025-06-18"}});
    pollfd answer{connection.process().output(), POLLIN, 0};
    REQUIRE(poll(&answer, 1, static_cast<int>(kLong.count())) == 1);
    const auto now = runnel::base::Clock::now();
    CHECK(connection.wait(request, now, StopRequest()).is_object());
    const int64_t other = connection.send("no/such/method", Json::object());
    CHECK_THROWS_AS(connection.wait(other, now - 1s, StopRequest()), ServerError);
}

TEST_CASE("mcp: a server that answers late takes no time from the others") {
    const TemporaryDirectory folder;
    const std::string other = (folder / "listed").string();
    ServerConfig late = config_of("late"), good = config_of("good");
    for (ServerConfig *config : {&late, &good}) config->environment = {{"RUNNEL_TEST_VALUE", other}};
    good.name = "lists", good.arguments.back() = "lists";
    Connected c(Config{{late, good}, {}});
    CHECK(c.messages() == "");
    CHECK(c.servers.tool_count() == 8);
}

TEST_CASE("mcp: after a server died in a call, its calls fail at once") {
    Connected c("dies-later");
    check_failed(c.call("dies-later__echo"), "the server ended with exit code 4");
    check_failed(c.call("dies-later__fail"), "the server is not running: the server ended with exit code 4");
    CHECK(c.servers.overview(100).find("dies-later: the server ended with exit code 4\n") !=
          std::string::npos);
}

TEST_CASE("mcp: results of any size and with any bytes become text") {
    Connected c("large");
    const CallResult result = c.call("large__echo");
    CHECK(result.kind == CallResult::Kind::Done);
    CHECK(result.text.size() > (size_t{1} << 20));
    CHECK(result.text.starts_with("\xef\xbf\xbdx"));
    CHECK(result.text.ends_with("x\xef\xbf\xbd[31m\xef\xbf\xbd"));
}

TEST_CASE("mcp: names fit every format of calls and are unique; a tool or a whole server can be allowed") {
    ServerConfig first = config_of("good"), second = config_of("good"), third = config_of("good");
    first.name = "my files", second.name = "my.files", third.name = std::string(80, 'n');
    Connected c(Config{{first, second, third}, {}},
                {.allowed = {"my_files__echo", third.name, "nothing"}, .timeout = kLong});
    CHECK(
        c.messages() ==
        "runnel: --mcp-allow 'my_files__echo' has no effect: several tools have this name; name the server\n"
        "runnel: --mcp-allow 'nothing': no server has a tool of this name\n");
    const auto allowed = [&](const std::string &name) {
        CAPTURE(name);
        const Servers::Tool *tool = c.servers.find(name);
        REQUIRE(tool);
        return c.servers.is_allowed(*tool);
    };
    CHECK(!allowed("my_files__echo"));
    CHECK(!allowed("my_files__fail"));
    CHECK(!allowed("my_files__echo_2"));
    CHECK(c.servers.find("my_files__echo_2")->server->name() == "my.files");
    CHECK(allowed(std::string(64, 'n')));
    CHECK(allowed(std::string(62, 'n') + "_4"));
    c.servers.allow(*c.servers.find("my_files__fail"));
    CHECK(allowed("my_files__fail"));
    c.servers.forget_granted();
    CHECK(!allowed("my_files__fail"));
    CHECK(allowed(std::string(64, 'n')));
}

TEST_CASE("mcp: a server that ignores the end of its input and SIGTERM is killed and reaped") {
    int pid = 0;
    {
        const ServerConfig config = config_of("stubborn");
        ServerProcess process(config);
        CHECK(!process.ending(0ms));
        pid = process.process();
        CHECK(kill(pid, 0) == 0);
    }
    CHECK(kill(pid, 0) == -1);
    CHECK(errno == ESRCH);
}
