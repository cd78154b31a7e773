// JSON that would overflow a stack or take minutes or gigabytes, for every command that reads JSON. Needs $RUNNEL.
#include <doctest/doctest.h>

#include <fstream>
#include <string>

#include "tests/engine/commands/program_support.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;

namespace {

std::string nested(size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
}

std::string many_keys() {
    std::string text = "{";
    for (int i = 0; i < 60'000; ++i) text += "\"key " + std::to_string(i) + "\":1,";
    return text + "\"messages\":[]}";
}

}  // namespace

TEST_CASE("hostile JSON: every command that reads JSON refuses too deep nesting with one line") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string deep = (directory / "deep.json").string(), jinja = (directory / "t.jinja").string();
    std::ofstream(deep) << nested(150'000);
    std::ofstream(jinja) << "{{ messages[-1].content if messages }}";
    const std::string model = tiny().path.string();
    const auto refused = [](const Result &r, int code) {
        CAPTURE(r.err);
        CHECK(r.code == code);
        CHECK(r.err.find("nested deeper than 200 levels") != std::string::npos);
        CHECK(r.err.find("json.exception") == std::string::npos);
        CHECK(std::count(r.err.begin(), r.err.end(), '\n') == 1);
    };
    const std::vector<std::string> run = {"run", model, "hi", "-n", "1", "--chat-template", jinja};
    auto tools = run;
    tools.insert(tools.end(), {"--tools", deep});
    refused(runnel_with(tools), 5);
    auto variable = run;
    variable.insert(variable.end(), {"--template-var", "x=" + nested(30'000)});
    refused(runnel_with(variable), 2);
    refused(runnel_with({"template", jinja}, "{\"messages\": " + nested(150'000) + "}"), 5);
    refused(runnel_with({"tokenize", model, "--jsonl"}, nested(150'000) + "\n"), 5);
    const Result rows =
        runnel_with({"template", jinja, "--jsonl"}, "{\"messages\": " + nested(150'000) + "}\n");
    CHECK(rows.code == 0);
    CHECK(rows.out.find("nested deeper") != std::string::npos);
    const Result batch =
        runnel_with({"batch", model, "-n", "1"}, nested(150'000) + "\n{\"prompt\": \"a\"}\n");
    CHECK(batch.code == 5);
    CHECK(batch.out.find("the line is not JSON: nested deeper than 200 levels") != std::string::npos);
    CHECK(std::count(batch.out.begin(), batch.out.end(), '\n') == 2);
    const Result chat = runnel_with({"chat", model, "-q", "-n", "1"}, "/load " + deep + "\n");
    CHECK(chat.err.find("nested deeper than 200 levels") != std::string::npos);
}

TEST_CASE("hostile JSON: a row of many keys, messages or empty lists is answered at once") {
    if (absent()) return;
    std::string lists = "{\"prompt\": \"a\", \"x\": [";
    for (int i = 0; i < 1'100'000; ++i) lists += "[],";
    // Messages that a template puts special tokens around: the tokenizer looks for those in each.
    std::string messages = "{\"messages\": [";
    for (int i = 0; i < 100'000; ++i) messages += "{\"role\":\"user\",\"content\":\"x\"},";
    messages += "{\"role\":\"user\",\"content\":\"y\"}]}";
    const Result r = runnel_with({"batch", "tests/models/demo-q8_0.gguf", "-n", "1"},
                                 many_keys() + "\n" + lists + "1]}\n{\"prompt\": }\n" + messages + "\n");
    CHECK(r.code == 5);
    CHECK(std::count(r.out.begin(), r.out.end(), '\n') == 4);
    CHECK(r.out.find("more than 1000000 values") != std::string::npos);
    CHECK(r.out.find("line 1, column 12: unexpected '}'") != std::string::npos);
}
