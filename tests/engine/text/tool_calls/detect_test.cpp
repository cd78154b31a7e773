// Detection of the tool-call format that a chat template uses.
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/text/chat_prompt.h"
#include "engine/text/tool_calls/detect.h"
#include "engine/text/tool_calls/parse.h"
#include "tests/engine/text/vocabulary_file.h"
#include "tests/support/data.h"

using namespace runnel;
using namespace runnel::testing;
using text::ChatPrompt;
using text::Message;

namespace {

VocabularyFile with_template(const std::string &source, const std::vector<std::string> &control = {}) {
    std::vector<std::string> tokens = {"<|im_start|>", "<|im_end|>", "<|eot_id|>"};
    tokens.insert(tokens.end(), control.begin(), control.end());
    return byte_pair_file({}, tokens, "qwen2").string("tokenizer.chat_template", source);
}

std::string format_name(const VocabularyFile &file) {
    const auto loaded = file.load();
    text::ChatPromptOptions options;
    options.tools = text::probe_tools();
    const ChatPrompt prompt(loaded.file, loaded.tokenizer, options);
    return prompt.tool_format() ? std::string(prompt.tool_format()->name) : "";
}

// Renders a call and its result, and parses the call again.
std::vector<text::ToolCall> there_and_back(const VocabularyFile &file, const std::string &arguments) {
    const auto loaded = file.load();
    const ChatPrompt prompt(loaded.file, loaded.tokenizer);
    REQUIRE(prompt.tool_format());
    const text::Json tools = text::parse_json(
        R"([{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}}])");
    const std::vector<text::ToolCall> calls = {{"abcdefgh1", "f", arguments}};
    const std::vector<Message> messages = {
        {"user", "?"}, {.role = "assistant", .content = "", .tool_calls = text::calls_json(calls).dump()}};
    std::string all;
    for (const auto &segment : prompt.render(messages, false, &tools)) all += segment.text;
    const std::string_view answer = std::string_view(all).substr(all.rfind("ANSWER") + 6);
    return text::parse_tool_calls(*prompt.tool_format(), text::read_tools(tools), answer).calls;
}

std::string chat(const std::string &one_call) {
    return "{% for m in messages %}<|im_start|>{{ m.role }}ANSWER{{ m.content or '' }}"
           "{% for t in m.tool_calls or [] %}" +
           one_call +
           "{% endfor %}<|im_end|>{% endfor %}"
           "{% if add_generation_prompt %}<|im_start|>assistantANSWER{% endif %}";
}

const std::string kHermes = chat(
    "<tool_call>\n{\"name\": \"{{ t.function.name }}\", \"arguments\": {{ t.function.arguments | tojson }}}\n"
    "</tool_call>");
const std::string kText = chat("[TOOL_CALLS]{{ t.function.name }}[ARGS]{{ '' + t.function.arguments }}");
const std::string kParameters = chat(
    "<tool_call>\n<function={{ t.function.name }}>\n{% for k, v in t.function.arguments.items() %}"
    "<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>\n"
    "</tool_call>");

}  // namespace

TEST_CASE("tool format: found by what the template writes") {
    CHECK(format_name(with_template(kHermes)) == "Hermes");
    CHECK(format_name(with_template(kText)) == "Mistral");
    CHECK(format_name(with_template(kParameters)) == "Qwen3-Coder");
    CHECK(format_name(with_template(chat("{\"name\": \"{{ t.function.name }}\", \"parameters\": "
                                         "{{ t.function.arguments | tojson }}}"))) == "Llama 3");
    CHECK(format_name(with_template(
              chat("[{{ t.function.name }}({% for k, v in t.function.arguments.items() %}"
                   "{{ k }}={{ v | tojson }}{{ '' if loop.last else ', ' }}{% endfor %})]"))) == "Llama 4");
    CHECK(format_name(with_template(chat(""))) == "");
    CHECK(format_name(with_template("{{ messages[0].content }}")) == "");
    CHECK(format_name(with_template("{{ raise_exception('no tools') }}")) == "");
}

TEST_CASE("tool format: Functionary's, whose prompt contains the first mark") {
    const std::string source =
        "{# tools #}{% for m in messages %}<|im_start|>{{ m.role }}ANSWER"
        "{% if m.content %}{{ '>>>all\n' + m.content }}{% endif %}{% for t in m.tool_calls or [] %}"
        "{{ '>>>' + t.function.name + '\n' + t.function.arguments }}{% endfor %}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistantANSWER>>>{% endif %}";
    CHECK(format_name(with_template(source)) == "Functionary 3.2");
    const auto calls = there_and_back(with_template(source), R"({"city":"Rom\"e"})");
    REQUIRE(calls.size() == 1);
    CHECK(calls[0].arguments == R"({"city":"Rom\"e"})");
    // Its mark alone, in a template's text or among the tokens, does not show the format.
    CHECK(format_name(with_template(chat("") + "{{ tools }} >>> x", {">>>"})) == "");
}

TEST_CASE("tool format: found by marks in the template or the vocabulary if the template writes no call") {
    CHECK(format_name(with_template(chat("") + "{# <tool_call> and </tool_call>, tools #}")) == "Hermes");
    CHECK(format_name(with_template(chat("") + "{{ tools }}", {"<|tool_call_start|>"})) == "LFM2");
    CHECK(format_name(with_template(chat(""), {"<|tool_call_start|>"})) == "");
}

TEST_CASE("tool format: calls in a conversation are read back, with arguments as objects or as text") {
    for (const std::string &source : {kHermes, kText, kParameters}) {
        CAPTURE(source);
        for (const std::string arguments : {"{}", R"({"city":"Rom\"e","n":[1,{"a":null}]})"}) {
            const auto calls = there_and_back(with_template(source), arguments);
            REQUIRE(calls.size() == 1);
            CHECK(calls[0].arguments == arguments);
        }
    }
}

TEST_CASE("tool format: detected in the published templates") {
    if (!has_shared_data("chat/templates")) {
        MESSAGE("../shared/data is not there: skipped");
        return;
    }
    const std::pair<std::string, std::string> cases[] = {
        {"ByteDance-Seed-OSS-36B-Instruct", "Seed-OSS"},
        {"HuggingFaceTB-SmolLM3-3B", "Hermes"},
        {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "Hermes"},
        {"Qwen-Qwen2.5-7B-Instruct", "Hermes"},
        {"Qwen-Qwen3-8B", "Hermes"},
        {"Qwen-Qwen3-Coder-30B-A3B-Instruct", "Qwen3-Coder"},
        {"deepseek-ai-DeepSeek-R1", "DeepSeek"},
        {"deepseek-ai-DeepSeek-V3", "DeepSeek"},
        {"deepseek-ai-DeepSeek-V3.1", "DeepSeek V3.1"},
        {"ibm-granite-granite-3.3-2b-instruct", "Granite 3"},
        {"meta-llama-Llama-3.1-8B-Instruct", "Llama 3"},
        {"meta-llama-Llama-3.2-3B-Instruct", "Llama 3"},
        {"mistralai-Mistral-7B-Instruct-v0.3", "Mistral (list)"},
        {"mistralai-Mistral-Small-3.2-24B-Instruct-2506", "Mistral"},
        {"moonshotai-Kimi-K2-Instruct", "Kimi"},
        {"openai-gpt-oss-20b", "harmony"},
        {"zai-org-GLM-4.5", "GLM"},
        {"google-gemma-3-4b-it", ""},
        {"microsoft-phi-4", ""},
        {"TinyLlama-TinyLlama-1.1B-Chat-v1.0", ""},
    };
    for (const auto &[name, format] : cases) {
        CAPTURE(name);
        const std::string source = read_file(shared_data() / "chat/templates" / (name + ".jinja"));
        CHECK(format_name(with_template(source)) == format);
    }
}
