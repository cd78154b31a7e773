// `runnel chat --mcp`, tested by running the program, with a model whose first answer must be a call. Needs $RUNNEL.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/engine/commands/program_support.h"
#include "tests/support/demo_model.h"
#include "tests/support/mcp_server.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
using Json = nlohmann::ordered_json;

namespace {

const std::string kTemplate =
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}{{ m.role }}: "
    "{{ m.content or '' }}{% for t in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ t.function.name "
    "}}\", "
    "\"arguments\": {{ t.function.arguments | tojson }}}\n</tool_call>{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}";

struct Chat {
    TemporaryDirectory directory;
    std::vector<std::string> more;  // options

    explicit Chat(const std::vector<std::string> &modes, std::vector<std::string> options)
        : more(std::move(options)) {
        Json servers = Json::object();
        for (const std::string &mode : modes) servers[mode] = mcp_entry(mode);
        servers["far"] = {{"url", "http://localhost"}};
        std::ofstream(directory / "mcp.json") << Json{{"mcpServers", servers}};
        std::ofstream(directory / "chat.jinja") << kTemplate;
    }
    Process process() const {
        Process p = runnel::testing::process({"chat", demo_model().string(), "-t", "1", "--device", "cpu",
                                              "-n", "200", "-s", "2", "--no-parallel-tool-calls",
                                              "--chat-template", (directory / "chat.jinja").string(), "--mcp",
                                              (directory / "mcp.json").string()});
        p.environment = {"XDG_STATE_HOME=" + directory.path().string(), "TERM=xterm", "LC_ALL=C"};
        p.arguments.insert(p.arguments.end(), more.begin(), more.end());
        return p;
    }
    Result run(const std::string &input) const {
        Process p = process();
        p.input = input;
        return execute(p);
    }
    std::string talk() const { return (directory / "talk.json").string(); }
    Json messages() const {
        std::ifstream in(talk());
        const Json saved = Json::parse(in, nullptr, false);
        return saved.is_object() ? saved["messages"] : Json::array();
    }
};

// The messages of a turn: question, call, result, and an answer that may be empty.
void check_turn(const Json &messages, const std::string &tool, const std::string &result) {
    CAPTURE(messages.dump(1));
    REQUIRE(messages.size() >= 3);
    CHECK(messages[0]["content"] == "Which?");
    const Json &call = messages[1]["tool_calls"][0];
    CHECK(call["function"]["name"] == tool);
    CHECK(messages[2]["role"] == "tool");
    CHECK(messages[2]["tool_call_id"] == call["id"]);
    CHECK(messages[2]["name"] == tool);
    CHECK(messages[2]["content"].get<std::string>().find(result) != std::string::npos);
}

// A value of this process, which the program inherits.
std::string own_status(const std::string &name) {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
        if (line.starts_with(name)) return line.substr(line.rfind('\t') + 1);
    return {};
}

bool has(const std::string &text, const std::string &part) {
    return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("chat --mcp: an allowed call runs, its result is saved, and the model answers again") {
    if (absent()) return;
    const Chat chat({"good"}, {"--tool-choice", "good__echo", "--mcp-allow", "good__echo"});
    const Result r = chat.run("Which?\n/mcp\n/mcp good\n/save " + chat.talk() + "\n");
    CAPTURE(r.err);
    CHECK(r.code == 0);
    CHECK(has(r.err, "MCP server 'far' is left out: its transport is 'url'"));
    const Json messages = chat.messages();
    REQUIRE(messages.size() == 4);
    const std::string arguments = messages[1]["tool_calls"][0]["function"]["arguments"];
    check_turn(messages, "good__echo", "echo of ");
    const Json given = Json::parse(arguments);
    CHECK((given.empty() || given["text"] == "one" || given["text"] == "two"));
    CHECK(messages[3]["role"] == "assistant");
    CHECK(r.out == messages[3]["content"].get<std::string>() + "\n");
    CHECK(has(r.err, "good: echo " + arguments + "\n"));
    CHECK(has(r.err, "\n  good__echo (allowed)  It is echo\n"));
    CHECK(has(r.err, "\nbegins\xef\xbf\xbd[31m\n"));
}

TEST_CASE("chat --mcp: a turn ends after 25 calls, and every other call has a result") {
    if (absent()) return;
    // One answer of some 30 calls: with a required call and --ignore-eos, only -n ends them.
    const Chat chat({"good"}, {"--tool-choice", "good__self", "--mcp-allow", "good", "-n", "1800", "-c",
                               "4096", "--ignore-eos", "--whitespace", "compact"});
    std::string calls = kTemplate;
    const std::string begin = "<tool_call>", end = "</tool_call>";
    const size_t from = calls.find(begin), to = calls.find(end) + end.size();
    calls.replace(from, to - from,
                  "<function={{ t.function.name }}>{{ t.function.arguments | tojson }}</function>");
    std::ofstream(chat.directory / "chat.jinja") << calls;
    Process p = chat.process();
    std::erase(p.arguments, "--no-parallel-tool-calls");
    p.input = "Which?\n/save " + chat.talk() + "\n";
    const Result r = execute(p);
    CAPTURE(r.err);
    CHECK(r.code == 0);
    CHECK(has(r.err, "the turn ends after 25 tool calls"));
    size_t ran = 0, refused = 0;
    const Json messages = chat.messages();
    REQUIRE(messages.size() > 2);
    for (const Json &message : messages)
        if (message["role"] == "tool")
            ++(message["content"] == "error: too many calls in this turn" ? refused : ran);
    CHECK(ran == 25);
    CHECK(refused > 0);
    CHECK(messages.size() == 2 + ran + refused);  // no other answer
    CHECK(messages[1]["tool_calls"].size() == ran + refused);
}

TEST_CASE("chat --mcp: no server starts if an option or the model's file is wrong") {
    if (absent()) return;
    const Chat chat({}, {});
    const auto mark = chat.directory / "started";
    const Json entry = {{"command", "/bin/sh"}, {"args", {"-c", "touch '" + mark.string() + "'"}}};
    std::ofstream(chat.directory / "mcp.json") << Json{{"mcpServers", {{"marks", entry}}}};
    const std::vector<std::vector<std::string>> wrong = {
        {"--format", "json", "--regex", "a"}, {"--draft-min", "5", "--draft-max", "4"}, {"--sinks", "4"}};
    for (const std::vector<std::string> &options : wrong) {
        CAPTURE(options[0]);
        Process p = chat.process();
        p.arguments.insert(p.arguments.end(), options.begin(), options.end());
        const Result r = execute(p);
        CAPTURE(r.err);
        CHECK(r.code != 0);
        CHECK(!std::filesystem::exists(mark));
    }
    Process p = chat.process();
    std::ranges::replace(p.arguments, demo_model().string(), (chat.directory / "no.gguf").string());
    CHECK(execute(p).code != 0);
    CHECK(!std::filesystem::exists(mark));
    CHECK(chat.run("").code == 0);
    CHECK(std::filesystem::exists(mark));
}

TEST_CASE("chat --mcp: without a terminal, a tool that is not allowed does not run") {
    if (absent()) return;
    const Chat chat({"good"}, {"--tool-choice", "good__self"});
    const Result r = chat.run("Which?\n/save " + chat.talk() + "\n");
    CAPTURE(r.err);
    CHECK(r.code == 0);
    CHECK(has(r.err, "not run, because --mcp-allow does not name good__self: good: self {}\n"));
    check_turn(chat.messages(), "good__self", "error: the user does not allow this call");
}

TEST_CASE("chat --mcp: a server is not confined and inherits no descriptors") {
    if (absent()) return;
    const Chat chat({"old"}, {"--tool-choice", "old__self", "--mcp-allow", "old"});
    const Result r = chat.run("Which?\n/save " + chat.talk() + "\n");
    CAPTURE(r.err);
    CHECK(r.code == 0);
    const Json messages = chat.messages();
    REQUIRE(messages.size() > 2);
    const std::string result = messages[2]["content"];
    CAPTURE(result);
    CHECK(result.starts_with("descriptors\n"));
    CHECK(has(result, "\nNoNewPrivs:" + own_status("NoNewPrivs:") + "\n"));
    CHECK(has(result, "\nleads its session\n"));
}

TEST_CASE(
    "chat --mcp: a long result is cut; a server that dies or fails gives one message, and the chat goes on") {
    if (absent()) return;
    const Chat large({"large"}, {"--tool-choice", "large__echo", "--mcp-allow", "large"});
    const Result cut = large.run("Which?\n/save " + large.talk() + "\n");
    CAPTURE(cut.err);
    CHECK(cut.code == 0);
    check_turn(large.messages(), "large__echo", " more bytes]");
    CHECK(large.messages()[2]["content"].get<std::string>().size() < (size_t{64} << 10) + 100);

    const Chat dies({"dies", "dies-later"},
                    {"--tool-choice", "dies-later__echo", "--mcp-allow", "dies-later"});
    const Result r = dies.run("Which?\n/save " + dies.talk() + "\nAgain?\n");
    CAPTURE(r.err);
    CHECK(r.code == 0);
    CHECK(has(r.err, "runnel: MCP server 'dies': the server ended with exit code 3\n"));
    check_turn(dies.messages(), "dies-later__echo", "error: the server ended with exit code 4");
    CHECK(has(r.err, "the server is not running: the server ended with exit code 4"));
}

TEST_CASE("chat --mcp: at a terminal the user is asked before every call: no, yes, always") {
    if (absent()) return;
    Chat chat({"good"}, {"--tool-choice", "good__echo"});
    Process p = chat.process();
    p.terminal = true;
    p.columns = 120;
    const std::vector<std::string> typed = {"Which?\r", "\r",  "Which?\r", "y\r",
                                            "Which?\r", "a\r", "Which?\r", "/save " + chat.talk() + "\r",
                                            ""};
    size_t step = 0, after = 0;
    p.type = [&](const std::string &out, bool) -> std::string {
        const bool asks =
            out.size() > after && has(out.substr(after), "run good: echo? [y]es, [a]lways, [N]o ");
        const bool is_answer = step < typed.size() && (step == 1 || step == 3 || step == 5);
        if (step >= typed.size() || (is_answer ? !asks : !at_prompt(out, after))) return "";
        after = out.size();
        if (step + 1 == typed.size()) return ++step, "\x04";
        return typed[step++];
    };
    const Result r = execute(p);
    CAPTURE(r.out);
    CHECK(r.code == 0);
    CHECK(has(r.out, "good: echo\r\n  | {"));
    size_t ran = 0;
    for (size_t at = 0; (at = r.out.find("  echo of {", at)) != std::string::npos; ++at) ++ran;
    CHECK(ran == 3);
}

TEST_CASE("chat --mcp: what was typed before a question does not answer it, and becomes the next message") {
    if (absent()) return;
    for (const std::string term : {"xterm", "dumb"}) {
        CAPTURE(term);
        Chat chat({"good"}, {"--tool-choice", "good__echo"});
        Process p = chat.process();
        p.environment[1] = "TERM=" + term;
        p.terminal = true;
        p.columns = 120;
        const std::string enter = term == "dumb" ? "\n" : "\r";
        size_t step = 0, after = 0;
        p.type = [&](const std::string &out, bool) -> std::string {
            if (out.size() <= after) return "";
            const bool prompts = term == "dumb" ? out.ends_with(">>> ") : at_prompt(out, after);
            // The second question follows the message "y".
            const size_t from = step == 2 ? out.find(">>> y", after) : after;
            const bool asks = from != out.npos && has(out.substr(from), "[a]lways, [N]o ");
            const std::string typed[] = {"Which?" + enter + "y" + enter, enter, enter,
                                         "/save " + chat.talk() + enter, "\x04"};
            if (step >= 5 || (step == 1 || step == 2 ? !asks : !prompts)) return "";
            after = out.size();
            return typed[step++];
        };
        const Result r = execute(p);
        CAPTURE(r.out);
        CHECK(r.code == 0);
        CHECK(!has(r.out, "  echo of {"));
        // The context has room for the second turn only.
        const Json messages = chat.messages();
        REQUIRE(messages.size() >= 3);
        CHECK(messages[0]["content"] == "y");
        CHECK(messages[2]["content"] == "error: the user does not allow this call");
    }
}

TEST_CASE("chat --mcp: calls of an opened chat that ended before their results get an error") {
    if (absent()) return;
    const Chat chat({"good"}, {});
    const auto call = [](const char *id) {
        return Json{
            {"id", id}, {"type", "function"}, {"function", {{"name", "good__echo"}, {"arguments", "{}"}}}};
    };
    const Json assistant = {{"role", "assistant"}, {"content", ""}, {"tool_calls", {call("1"), call("2")}}};
    const Json done = {{"role", "tool"}, {"content", "one"}, {"tool_call_id", "1"}, {"name", "good__echo"}};
    std::ofstream(chat.directory / "old.json")
        << Json{{"messages", {{{"role", "user"}, {"content", "Which?"}}, assistant, done}}};
    const Result r =
        chat.run("/load " + (chat.directory / "old.json").string() + "\n/save " + chat.talk() + "\n");
    CAPTURE(r.err);
    CHECK(r.code == 0);
    const Json messages = chat.messages();
    REQUIRE(messages.size() == 4);
    CHECK(messages[2]["content"] == "one");
    CHECK(messages[3]["tool_call_id"] == "2");
    CHECK(messages[3]["content"] == "error: the chat ended before this call");
}

TEST_CASE("chat --mcp: after Ctrl-C at a question, what was typed before is text at the prompt") {
    if (absent()) return;
    Chat chat({"good"}, {"--tool-choice", "good__echo"});
    Process p = chat.process();
    p.terminal = true;
    p.columns = 120;
    size_t step = 0, after = 0;
    p.type = [&](const std::string &out, bool) -> std::string {
        const std::string late = out.substr(std::min(after, out.size()));
        const bool is_ready = step == 1   ? has(late, "[a]lways, [N]o ")
                              : step == 2 ? has(late, ">>> next")
                                          : at_prompt(out, after);
        if (step > 3 || !is_ready) return "";
        after = out.size();
        const std::string typed[] = {"Which?\rnext\r", "\x03", "\x15/save " + chat.talk() + "\r", "\x04"};
        return typed[step++];
    };
    const Result r = execute(p);
    CAPTURE(r.out);
    CHECK(r.code == 0);
    const Json messages = chat.messages();
    check_turn(messages, "good__echo", "error: the user stopped this call");
    CHECK(messages.size() == 3);
}

TEST_CASE("chat --mcp: Ctrl-C stops a call, and the chat asks for the next message") {
    if (absent()) return;
    Chat chat({"slow"}, {"--tool-choice", "slow__echo", "--mcp-allow", "slow"});
    Process p = chat.process();
    p.terminal = true;
    p.columns = 120;
    size_t step = 0, after = 0;
    p.type = [&](const std::string &out, bool) -> std::string {
        const bool calls = out.size() > after && has(out.substr(after), "slow: echo {");
        if (step > 3 || (step == 1 ? !calls : !at_prompt(out, after))) return "";
        after = out.size();
        const std::string typed[] = {"Which?\r", "\x03", "/save " + chat.talk() + "\r", "\x04"};
        return typed[step++];
    };
    const Result r = execute(p);
    CAPTURE(r.out);
    CHECK(r.code == 0);
    const Json messages = chat.messages();
    check_turn(messages, "slow__echo", "error: the user stopped this call");
    CHECK(messages.size() == 3);
}

TEST_CASE("chat --mcp: a bad file is an error before the model is read") {
    if (absent()) return;
    const TemporaryDirectory directory;
    std::ofstream(directory / "mcp.json") << "{}";
    const auto run = [&](const std::string &file) {
        return runnel_with({"chat", demo_model().string(), "--mcp", file}, "");
    };
    const Result bad = run((directory / "mcp.json").string());
    CHECK(bad.code == 5);
    check_message(bad);
    CHECK(has(bad.err, "mcp.json has no object \"mcpServers\""));
    CHECK(run("/nowhere/mcp.json").code == 2);
}
