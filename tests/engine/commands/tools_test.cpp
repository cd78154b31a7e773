// Tool calls, tested by running the program. Needs $RUNNEL (default build/runnel).
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/engine/commands/program_support.h"
#include "tests/support/demo_model.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
using json = nlohmann::ordered_json;

namespace {

const std::string kTools = R"([
    {"type": "function", "function": {"name": "pick", "description": "Picks.", "parameters": {"type": "object",
     "properties": {"animal": {"type": "string", "enum": ["cat", "dog"]},
                    "count": {"type": "integer", "minimum": 1, "maximum": 9}},
     "required": ["animal", "count"]}}},
    {"type": "function", "function": {"name": "stop", "description": "Stops.", "parameters": {"type": "object",
     "properties": {}}}}])";

std::string chat(const std::string &one_call) {
    return "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}"
           "{{ m.role }}: {{ m.content or '' }}{% for t in m.tool_calls or [] %}" +
           one_call + "{% endfor %}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";
}
const std::string kHermes = chat(
    "<tool_call>\n{\"name\": \"{{ t.function.name }}\", \"arguments\": {{ t.function.arguments | tojson }}}\n"
    "</tool_call>");
const std::string kParameters = chat(
    "<tool_call>\n<function={{ t.function.name }}>\n{% for k, v in t.function.arguments.items() %}"
    "<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}</function>\n</tool_call>");
const std::string kNamed = chat("[TOOL_CALLS]{{ t.function.name }}[ARGS]{{ t.function.arguments | tojson }}");
const std::string kLlama =
    chat("{\"name\": \"{{ t.function.name }}\", \"parameters\": {{ t.function.arguments | tojson }}}");

class Files {
  public:
    explicit Files(const std::string &chat_template, const std::string &tools = kTools) {
        write("chat.jinja", chat_template);
        write("tools.json", tools);
    }
    std::vector<std::string> arguments(const std::string &command, std::vector<std::string> more) const {
        std::vector<std::string> all{command,
                                     demo_model().string(),
                                     "-t",
                                     "1",
                                     "--chat-template",
                                     (directory_ / "chat.jinja").string(),
                                     "--tools",
                                     (directory_ / "tools.json").string()};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    Result run(std::vector<std::string> more) const {
        more.insert(more.begin(), "Which animal?");
        return runnel_with(arguments("run", std::move(more)));
    }

  private:
    void write(const char *name, const std::string &text) const {
        std::ofstream(directory_ / name, std::ios::binary) << text;
    }
    TemporaryDirectory directory_;
};

void check_pick(const json &call) {
    CHECK(call["type"] == "function");
    CHECK(call["id"].get<std::string>().size() == 9);
    CHECK(call["function"]["name"] == "pick");
    const json arguments = json::parse(call["function"]["arguments"].get<std::string>());
    CAPTURE(arguments.dump());
    CHECK((arguments.at("animal") == "cat" || arguments.at("animal") == "dog"));
    CHECK(arguments.at("count").get<double>() >= 1);
    CHECK(arguments.at("count").get<double>() <= 9);
    CHECK(arguments.size() == 2);
}

}  // namespace

TEST_CASE("tools: a required call of one tool is always valid, in every format") {
    if (absent()) return;
    for (const std::string &source : {kHermes, kParameters, kNamed, kLlama}) {
        CAPTURE(source);
        const Files files(source);
        const Result r = files.run({"--json", "--tool-choice", "pick", "--no-parallel-tool-calls", "-n",
                                    "400", "--temp", "1.5", "-s", "5"});
        CAPTURE(r.err);
        REQUIRE(r.code == 0);
        const json answer = json::parse(r.out);
        CAPTURE(r.out);
        CHECK(answer["finish_reason"] == "tool_calls");
        CHECK(answer["text"] == "");
        CHECK(answer["complete"] == true);
        REQUIRE(answer["tool_calls"].size() == 1);
        check_pick(answer["tool_calls"][0]);
    }
}

TEST_CASE("tools: in text output, a call becomes a note on stderr, and no mark is shown") {
    if (absent()) return;
    const Result r = Files(kHermes).run(
        {"--tool-choice", "stop", "--no-parallel-tool-calls", "-n", "400", "-s", "2", "--temp", "1"});
    CHECK(r.code == 0);
    CHECK(r.out == "");
    CAPTURE(r.err);
    CHECK(r.err.find("the model calls stop with {}") != std::string::npos);
}

TEST_CASE("chat: an answer that is only a call is saved with the message before it") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string saved = (directory / "saved.json").string();
    const Result r = runnel_with(Files(kHermes).arguments("chat", {"--tool-choice", "stop", "-n", "400",
                                                                   "--no-parallel-tool-calls", "-s", "2"}),
                                 "Which animal?\n/save " + saved + "\n");
    CAPTURE(r.err);
    CHECK(r.code == 0);
    CHECK(r.err.find("the model calls stop with {}") != std::string::npos);
    std::ifstream in(saved);
    const json messages = json::parse(in)["messages"];
    REQUIRE(messages.size() == 2);
    CHECK(messages[0]["content"] == "Which animal?");
    CHECK(messages[1]["tool_calls"][0]["function"]["name"] == "stop");
}

TEST_CASE("run and chat: a call after reasoning counts as an answer") {
    if (absent()) return;
    const Files files(kHermes +
                      "{% if add_generation_prompt %}<think>\n{% endif %}"
                      "{{ '</think>' if false }}");
    const std::vector<std::string> options = {"--tool-choice",
                                              "stop",
                                              "--no-parallel-tool-calls",
                                              "--thinking-budget",
                                              "3",
                                              "-n",
                                              "400",
                                              "-s",
                                              "2"};
    for (const Result &r : {files.run(options), runnel_with(files.arguments("chat", options), "Hi\n")}) {
        CAPTURE(r.err);
        CHECK(r.code == 0);
        CHECK(r.err.find("the model calls stop with {}") != std::string::npos);
        CHECK(r.err.find("there is no answer") == std::string::npos);
    }
}

TEST_CASE("tools: batch rows may have tools, calls and results") {
    if (absent()) return;
    json body = {{"messages", json::array({{{"role", "user"}, {"content", "?"}}})},
                 {"tool_choice", "required"},
                 {"parallel_tool_calls", false},
                 {"max_tokens", 400}};
    const json first = {{"custom_id", "a"}, {"url", "/v1/chat/completions"}, {"body", body}};
    body["messages"].push_back(
        {{"role", "assistant"},
         {"content", nullptr},
         {"tool_calls", json::array({{{"id", "abcdefgh1"},
                                      {"type", "function"},
                                      {"function", {{"name", "stop"}, {"arguments", "{}"}}}}})}});
    body["messages"].push_back({{"role", "tool"}, {"tool_call_id", "abcdefgh1"}, {"content", "done"}});
    body["tools"] = json::array({{{"name", "own"}, {"parameters", {{"properties", {{"a", {{"if", 1}}}}}}}}});
    body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "own"}}}};
    json plain = body;
    plain["id"] = 2;
    plain["tool_choice"] = "none";
    plain["max_tokens"] = 3;
    json unknown = plain;
    unknown["tool_choice"] = {{"function", {{"name", "nope"}}}};
    const Result r = runnel_with(Files(kNamed).arguments("batch", {"-s", "3", "--temp", "1"}),
                                 first.dump() + "\n" + plain.dump() + "\n" + unknown.dump() + "\n");
    CAPTURE(r.err);
    CHECK(r.code == 5);  // the last row
    std::vector<json> lines;
    std::istringstream stream(r.out);
    for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
    REQUIRE(lines.size() == 3);
    const json choice = lines[0]["response"]["body"]["choices"][0];
    CHECK(choice["finish_reason"] == "tool_calls");
    CHECK(choice["message"]["content"].is_null());
    CHECK(choice["message"]["tool_calls"].size() == 1);
    CHECK(!lines[1].contains("tool_calls"));
    CHECK(lines[1]["completion_tokens"].get<int>() <= 3);
    CHECK(lines[2]["error"]["message"].get<std::string>().find("tool_choice") != std::string::npos);
    CHECK(r.err.find("line 2: the arguments of own are not all constrained") != std::string::npos);
}

TEST_CASE("tools: impossible options are errors or notes") {
    if (absent()) return;
    const Files files(kHermes);
    CHECK(files.run({"--tool-choice", "nope"}).code == 2);
    CHECK(files.run({"--tool-choice", "required", "--format", "json", "-n", "1"}).code == 5);
    const Files none(chat(""));
    const Result r = none.run({"-n", "1"});
    CHECK(r.code == 0);
    CHECK(r.err.find("the chat template has no tool-call format that runnel knows") != std::string::npos);
    CHECK(none.run({"--tool-choice", "required", "-n", "1"}).code == 5);
    CHECK(runnel_with({"run", demo_model().string(), "--tool-choice", "auto", "x", "-n", "1"}).code == 2);
}

TEST_CASE("run and batch: --raw refuses the options of chat templates; a budget without reasoning is noted") {
    if (absent()) return;
    for (const std::vector<std::string> &options : {std::vector<std::string>{"--thinking-budget", "3"},
                                                    {"--tool-choice", "required"},
                                                    {"--no-parallel-tool-calls"}}) {
        CAPTURE(options[0]);
        std::vector<std::string> arguments{"run", demo_model().string(), "--raw", "x", "-n", "1"};
        arguments.insert(arguments.end(), options.begin(), options.end());
        const Result r = runnel_with(arguments);
        CHECK(r.code == 2);
        CHECK(r.err.find("--raw") != std::string::npos);
    }
    const std::string note = "the model does not reason: --thinking-budget has no effect";
    const Files files(kHermes);
    const std::vector<std::string> budget = {"--thinking-budget", "3", "-n", "1"};
    for (const Result &r : {files.run(budget), runnel_with(files.arguments("chat", budget), "Hi\n"),
                            runnel_with(files.arguments("batch", budget), "{\"prompt\": \"a\"}\n")}) {
        CHECK(r.code == 0);
        CHECK(r.err.find(note) != std::string::npos);
    }
    CHECK(files.run({"-n", "1"}).err.find(note) == std::string::npos);
}

TEST_CASE("run: completeness is reported for required calls only, with and without beams") {
    if (absent()) return;
    const Files files(kHermes);
    for (const char *several : {"--samples", "--beams"}) {
        CAPTURE(several);
        const auto answers = [&](const char *choice) {
            const Result r = files.run({"--json", several, "2", "-n", "4", "--tool-choice", choice});
            REQUIRE(r.code == 0);
            return json::parse(r.out);
        };
        const json free = answers("auto"), required = answers("stop");
        CHECK_FALSE(free.contains("complete"));
        CHECK(required.contains("complete"));
        for (const json &answer : free[several + 2]) CHECK_FALSE(answer.contains("complete"));
        for (const json &answer : required[several + 2]) CHECK(answer.contains("complete"));
    }
}

TEST_CASE("batch: a problem of tool definitions is noted once") {
    if (absent()) return;
    const auto notes = [&](bool same) {
        std::string rows;
        for (int i = 0; i < 40; ++i) {
            const std::string name = same ? "own" : "own" + std::to_string(i);
            const json tools = {{{"name", name}, {"parameters", {{"properties", {{"a", {{"if", 1}}}}}}}}};
            rows += json{{"messages", {{{"role", "user"}, {"content", "?"}}}},
                         {"tools", json::array({tools[0]})},
                         {"max_tokens", 1}}
                        .dump() +
                    "\n";
        }
        const Result r = runnel_with(Files(kHermes).arguments("batch", {"-s", "3"}), rows);
        CAPTURE(r.out);
        CHECK(r.code == 0);
        int count = 0;
        for (size_t at = 0; (at = r.err.find("are not all constrained", at)) != std::string::npos; ++at)
            ++count;
        return count;
    };
    CHECK(notes(true) == 1);
    CHECK(notes(false) == 16);
}

TEST_CASE("run, chat and batch: an argument whose name the format cannot write is noted once") {
    if (absent()) return;
    const std::string tools =
        R"([{"name": "own", "parameters": {"properties": {"a b": {"type": "integer"}, "c": {"type": "integer"}}}}])";
    const std::string note =
        "calls of own leave out \"a b\", because the format Qwen3-Coder cannot write this name";
    const Files files(kParameters, tools);
    const json row = {{"messages", json::array({{{"role", "user"}, {"content", "?"}}})},
                      {"tools", json::parse(tools)},
                      {"max_tokens", 1}};
    const std::string rows = row.dump() + "\n" + row.dump() + "\n";
    for (const Result &r :
         {files.run({"-n", "1"}), runnel_with(files.arguments("chat", {"-n", "1"}), "Hi\nHo\n"),
          runnel_with(Files(kParameters).arguments("batch", {}), rows)}) {
        CAPTURE(r.err);
        CHECK(r.code == 0);
        const size_t at = r.err.find(note);
        REQUIRE(at != std::string::npos);
        CHECK(r.err.find(note, at + 1) == std::string::npos);
    }
    CHECK(Files(kHermes, tools).run({"-n", "1"}).err.find("leave out") == std::string::npos);
}
