// `runnel template`, and the template options of run and chat, tested by running the program.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "gguf/writer.h"
#include "tests/support/model_maker.h"
#include "tests/support/process.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
using json = nlohmann::ordered_json;

namespace {

bool absent() {
    if (program_under_test()) return false;
    FAIL("no program to test: set RUNNEL, or build build/runnel");
    return true;
}

Result runnel_with(std::vector<std::string> arguments, std::optional<std::string> input = {}) {
    Process process{};
    process.arguments = std::move(arguments);
    process.input = std::move(input);
    process.stdout_limit = static_cast<size_t>(-1);
    return execute(process);
}

void write_model(const std::filesystem::path &path, std::string_view chat_template,
                 std::string_view tool_use = {}) {
    static const TemporaryModel model{ModelShape{}};
    runnel::gguf::Writer writer;
    for (const auto &[key, value] : model.file.metadata()) writer.add(key, value);
    writer.add("tokenizer.chat_template", chat_template);
    if (!tool_use.empty()) writer.add("tokenizer.chat_template.tool_use", tool_use);
    for (const auto &t : model.file.tensors()) writer.add_tensor(t.name, t.type, std::span(t.shape, t.rank));
    writer.start(path);
    for (const auto &t : model.file.tensors()) writer.write({t.data, t.bytes});
    writer.finish();
}

}  // namespace

TEST_CASE("template: renders a file's template with JSON from stdin") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string path = (directory / "a.jinja").string();
    write_text(path,
               "{{ bos_token }}{% for m in messages %}{{ m.content }};{% endfor %}{{ strftime_now('%Y-%m-%d "
               "%H') }}\n");
    const std::string row = R"({"messages": [{"content": "ü"}, {"content": 1.0}]})";
    Result r = runnel_with({"template", path, "--at", "2025-06-01T12:30:00"}, row);
    CHECK(r.code == 0);
    CHECK(r.out == "ü;1.0;2025-06-01 12");
    CHECK(r.err == "");
    r = runnel_with({"template", path, "--at", "2025-06-01", "--jsonl"},
                    row + "\n\nnonsense\n{\"messages\": 1}\n" + row);
    CHECK(r.code == 0);
    CHECK(r.out.starts_with("\"ü;1.0;2025-06-01 00\"\n{\"error\":"));
    CHECK(std::count(r.out.begin(), r.out.end(), '\n') == 4);

    CHECK(runnel_with({"template", path, "--at", "yesterday"}, row).code == 2);
    CHECK(runnel_with({"template", path, "--at", "2025-02-31"}, row).code == 2);
    CHECK(runnel_with({"template", path}, "[]").code == 5);
    CHECK(runnel_with({"template", (directory / "none").string()}, row).code == 2);
    write_text(path, "{{ raise_exception('no') }}");
    r = runnel_with({"template", path}, "{}");
    CHECK(r.code == 5);
    CHECK(r.err.find("line 1, column 4: no in: {{ raise_exception('no') }}") != std::string::npos);
    CHECK(runnel_with({"template", path, "--jsonl"}, "{}").out == "{\"error\":\"no\"}\n");
}

TEST_CASE("template: a model's template is chosen by name or by its content") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string model = (directory / "m.gguf").string();
    write_model(model, "plain {{ bos_token }}", "tools {{ tools | length }}");
    CHECK(runnel_with({"template", model}, "{}").out == "plain <s>");
    CHECK(runnel_with({"template", model}, R"({"bos_token": "B"})").out == "plain B");
    CHECK(runnel_with({"template", model}, R"({"tools": [1, 2]})").out == "tools 2");
    CHECK(runnel_with({"template", model, "--template-name", "default"}, R"({"tools": [1, 2]})").out ==
          "plain <s>");
    CHECK(runnel_with({"template", model, "--template-name", "nope"}, "{}").code == 2);
}

TEST_CASE("run: template options reach the template") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string model = (directory / "m.gguf").string(), tools = (directory / "tools.json").string(),
                      other = (directory / "other.jinja").string();
    write_model(
        model,
        "{% if not enable_thinking %}{{ raise_exception('think: ' ~ tools | length ~ k) }}{% endif %}x");
    write_text(tools, R"([{"type": "function"}])");
    write_text(other, "{{ messages[0].content }} and more");
    const auto run = [&](std::vector<std::string> more) {
        std::vector<std::string> arguments = {"run", model, "hi", "-n", "1", "--json"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return runnel_with(arguments);
    };
    CHECK(run({"--template-var", "enable_thinking=true"}).code == 0);
    const Result refused =
        run({"--template-var", "enable_thinking=false", "--template-var", "k=z", "--tools", tools});
    CHECK(refused.code == 5);
    CHECK(refused.err.find("refuses this conversation") != std::string::npos);
    CHECK(refused.err.find("think: 1z") != std::string::npos);
    CHECK(run({"--template-var", "nonsense"}).code == 2);
    CHECK(run({"--tools", other}).code == 5);
    CHECK(run({"--raw", "--tools", tools}).code == 2);
    const Result given = run({"--chat-template", other});
    REQUIRE(given.code == 0);
    const auto ids = json::parse(runnel_with({"tokenize", model, "--ids", "hi and more"}).out);
    CHECK(json::parse(given.out)["prompt_tokens"].get<size_t>() == ids.size());
}

TEST_CASE("run: reasoning is not written to stdout unless requested") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string model = (directory / "m.gguf").string();
    // The template begins the reasoning, and the model never ends it.
    write_model(model, "{{ messages[0].content }}{{ '</think>' if false }}<think>\n");
    const std::vector<std::string> base = {"run", model, "hi", "-n", "12", "-s", "5", "--ignore-eos"};
    const auto with = [&](std::vector<std::string> more) {
        std::vector<std::string> arguments = base;
        arguments.insert(arguments.end(), more.begin(), more.end());
        return runnel_with(arguments);
    };
    CHECK(with({}).out == "");
    const json result = json::parse(with({"--json"}).out);
    CHECK(result["text"] == "");
    CHECK(result["tokens"].size() == 12);
    const std::string reasoning = result["reasoning"];
    CHECK(reasoning != "");
    CHECK(with({"--show-thinking"}).out == "<think>\n" + reasoning + "\n");
    CHECK(with({"--show-thinking", "--hide-thinking"}).out == "");
    CHECK(with({}).err.find("there is no answer") != std::string::npos);
    CHECK(with({"--think", "on"}).out == "");
    const Result never = with({"--think", "off"});
    CHECK(never.code == 2);
    CHECK(never.err == "runnel: --think: the chat template cannot turn reasoning off\n");
    const std::string other = (directory / "switch.jinja").string();
    write_text(other,
               "{{ messages[0].content }}{% if enable_thinking %}<think>\n{% else %}</think>{% endif %}");
    CHECK(json::parse(with({"--chat-template", other, "--think", "--json"}).out).contains("reasoning"));
    CHECK(
        !json::parse(with({"--chat-template", other, "--think", "off", "--json"}).out).contains("reasoning"));
    CHECK(with({"--raw", "--think", "off"}).code == 2);
}

TEST_CASE("batch: templates, tools and reasoning work as in run") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string model = (directory / "m.gguf").string(), other = (directory / "other.jinja").string();
    // The template begins the reasoning, and the model never ends it.
    write_model(model, "{{ messages[0].content }}{{ k }}{{ '</think>' if false }}<think>\n");
    write_text(other, "{{ messages[0].content }} and more");
    const auto with = [&](std::string command, std::vector<std::string> more,
                          const std::optional<std::string> &input) {
        std::vector<std::string> arguments = {command, model, "-n", "12", "--ignore-eos"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return runnel_with(arguments, input);
    };
    const auto rows = [&](const std::vector<std::string> &more) {
        const Result result =
            with("batch", more,
                 "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"seed\": 5}\n"
                 "{\"custom_id\": \"c\", \"body\": {\"messages\": [{\"role\": \"user\", "
                 "\"content\": \"hi\"}], \"seed\": 5}}\n");
        REQUIRE(result.code == 0);
        const size_t end = result.out.find('\n');
        return std::pair(json::parse(result.out.substr(0, end)), json::parse(result.out.substr(end)));
    };
    for (const std::vector<std::string> &flags : {std::vector<std::string>{},
                                                  {"--template-var", "k=z"},
                                                  {"--chat-template", other},
                                                  {"--show-thinking"}}) {
        std::vector<std::string> run_flags = flags;
        run_flags.insert(run_flags.end(), {"-p", "hi", "-s", "5", "--json"});
        const json expected = json::parse(with("run", run_flags, "").out);
        const auto [row, body] = rows(flags);
        for (const char *key : {"text", "prompt_tokens", "completion_tokens", "finish_reason"})
            CHECK(row[key] == expected[key]);
        CHECK(row.value("reasoning", "") == expected.value("reasoning", ""));
        const json &message = body["response"]["body"]["choices"][0]["message"];
        CHECK(message["content"] == expected["text"]);
        CHECK(message.value("reasoning_content", "") == expected.value("reasoning", ""));
    }
    CHECK(with("batch", {"--raw", "--chat-template", other}, "").code == 2);
    CHECK(with("batch", {"--template-var", "nonsense"}, "").code == 2);
}
