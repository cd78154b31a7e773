// Log-probabilities, samplers and the thinking budget, tested by running the program. Needs $RUNNEL (default build/runnel).
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/engine/commands/program_support.h"
#include "tests/support/demo_model.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
using json = nlohmann::ordered_json;

namespace {

Result run_demo(std::vector<std::string> more) {
    std::vector<std::string> arguments{"run", demo_model().string(), "Once there was", "-t", "1", "-s", "4",
                                       "-q"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return runnel_with(std::move(arguments));
}

json run_json(std::vector<std::string> more) {
    more.emplace_back("--json");
    const Result r = run_demo(std::move(more));
    CAPTURE(r.err);
    REQUIRE(r.code == 0);
    return json::parse(r.out);
}

std::vector<json> batch_demo(const std::string &rows, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments{"batch", demo_model().string(), "-t", "1", "-s", "4", "-q"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Result r = runnel_with(std::move(arguments), rows);
    CAPTURE(r.err);
    CHECK(r.code == 0);
    std::vector<json> lines;
    std::istringstream stream(r.out);
    for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
    return lines;
}

std::string joined(const json &content) {
    std::string bytes;
    for (const json &token : content)
        for (const json &byte : token["bytes"]) bytes += static_cast<char>(byte.get<int>());
    return bytes;
}

// The template begins the reasoning; the model does not end it by itself.
struct ThinkingTemplate {
    TemporaryDirectory directory;
    std::string path = (directory / "thinks.jinja").string();
    ThinkingTemplate() {
        std::ofstream(path) << "{{ messages[-1].content }}{{ '</think>' if false }}<think>\n";
    }
};

}  // namespace

TEST_CASE("run: --logprobs lists each token with its text, bytes and alternatives, with and without drafts") {
    if (absent()) return;
    for (const char *temperature : {"0", "1.5"}) {
        CAPTURE(temperature);
        const json plain = run_json(
            {"--raw", "-n", "30", "--temp", temperature, "--logprobs", "3", "--prompt-logprobs", "1"});
        const json content = plain["logprobs"]["content"];
        REQUIRE(content.size() == plain["tokens"].size());
        CHECK(joined(content) == plain["text"].get<std::string>());
        for (size_t i = 0; i < content.size(); ++i) {
            CHECK(content[i]["id"] == plain["tokens"][i]);
            CHECK(content[i]["logprob"].get<double>() <= 0);
            REQUIRE(content[i]["top_logprobs"].size() == 3);
            const json &best = content[i]["top_logprobs"][0];
            CHECK(best["logprob"].get<double>() >= content[i]["logprob"].get<double>());
            if (std::string(temperature) == "0") CHECK(best["id"] == content[i]["id"]);
        }
        REQUIRE(plain["prompt_logprobs"].size() == plain["prompt_tokens"].get<size_t>());
        CHECK(plain["prompt_logprobs"][0].is_null());
        CHECK(plain["prompt_logprobs"][1].begin().value()["rank"].get<int>() >= 1);
        const json drafted = run_json({"--raw", "-n", "30", "--temp", temperature, "--logprobs", "3",
                                       "--prompt-logprobs", "1", "--lookup"});
        CHECK(drafted["logprobs"] == plain["logprobs"]);
        CHECK(drafted["prompt_logprobs"] == plain["prompt_logprobs"]);
    }
    const json samples = run_json({"--raw", "-n", "5", "--logprobs", "0", "--samples", "2"});
    CHECK_FALSE(samples.contains("logprobs"));
    double sum = 0;
    for (const json &token : samples["samples"][1]["logprobs"]["content"])
        sum += token["logprob"].get<double>();
    CHECK(samples["samples"][1]["logprob"].get<double>() == doctest::Approx(sum));
}

TEST_CASE("run: log-probabilities of a constrained answer are the model's own, not those of the mask") {
    if (absent()) return;
    const json r = run_json({"--raw", "--choice", "zebra", "--logprobs", "0"});
    CHECK(r["text"] == "zebra");
    double sum = 0;
    for (const json &token : r["logprobs"]["content"]) sum += token["logprob"].get<double>();
    CHECK(sum < -5);
    const json scored = run_json({"--raw", "-n", "0", "--prompt-logprobs", "0"});
    CHECK(scored["text"] == "");
    CHECK(scored["prompt_logprobs"].size() == scored["prompt_tokens"].get<size_t>());
}

TEST_CASE("run: requesting log-probabilities where there are none is wrong usage") {
    if (absent()) return;
    for (const std::vector<std::string> &more : {std::vector<std::string>{"--logprobs", "2"},
                                                 {"--logprobs", "2", "--json", "--beams", "2"},
                                                 {"--logprobs", "-2", "--json"},
                                                 {"--prompt-logprobs", "x", "--json"}})
        CHECK(run_demo(more).code == 2);
}

TEST_CASE("batch: log-probabilities in the forms of OpenAI's chat and completions, equal to those of run") {
    if (absent()) return;
    const std::vector<json> rows = batch_demo(
        R"({"prompt": "Once there was", "temperature": 0, "max_tokens": 6, "logprobs": true, "top_logprobs": 2})"
        "\n"
        R"({"custom_id": "a", "body": {"prompt": "Once there was", "temperature": 0, "max_tokens": 6, "logprobs": 2, "prompt_logprobs": 0}})"
        "\n"
        R"({"custom_id": "b", "body": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "logprobs": true}})"
        "\n"
        R"({"prompt": "Once there was", "temperature": 0, "max_tokens": 6, "logprobs": false})"
        "\n",
        {"--logprobs", "1", "--raw"});
    REQUIRE(rows.size() == 4);
    const json alone = run_json({"--raw", "-n", "6", "--temp", "0", "--logprobs", "2"});
    CHECK(rows[0]["logprobs"] == alone["logprobs"]);
    const json &legacy = rows[1]["response"]["body"]["choices"][0];
    CHECK(legacy["prompt_logprobs"][0].is_null());
    const json &lists = legacy["logprobs"];
    REQUIRE(lists["tokens"].size() == 6);
    const json &content = alone["logprobs"]["content"];
    for (size_t i = 0; i < 6; ++i) {
        CHECK(lists["tokens"][i] == content[i]["token"]);
        CHECK(lists["token_logprobs"][i] == content[i]["logprob"]);
        CHECK(lists["top_logprobs"][i].contains(content[i]["token"].get<std::string>()));
        const std::string text = legacy["text"];
        CHECK(text.substr(lists["text_offset"][i].get<size_t>())
                  .starts_with(content[i]["token"].get<std::string>()));
    }
    const json &chat = rows[2]["response"]["body"]["choices"][0]["logprobs"]["content"];
    CHECK(chat.size() == 4);
    CHECK(chat[0]["top_logprobs"].empty());
    CHECK_FALSE(rows[3].contains("logprobs"));
}

TEST_CASE(
    "run and batch: samplers given as options or as fields lead to the same text, with and without drafts") {
    if (absent()) return;
    const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
        {{"--dry-multiplier", "2", "--dry-allowed-length", "1", "--temp", "0"},
         R"("dry_multiplier": 2, "dry_allowed_length": 1, "temperature": 0)"},
        {{"--xtc-probability", "0.7", "--xtc-threshold", "0.05"},
         R"("xtc_probability": 0.7, "xtc_threshold": 0.05)"},
        {{"--top-nsigma", "1.2", "--temp", "2"}, R"("top_n_sigma": 1.2, "temperature": 2)"},
        {{"--dynatemp-range", "0.7"}, R"("dynatemp_range": 0.7)"},
        {{"--mirostat", "2", "--mirostat-ent", "4"}, R"("mirostat": 2, "mirostat_tau": 4)"},
        {{"--adaptive-target", "0.3"}, R"("adaptive_target": 0.3)"},
        {{"--samplers", "temperature;top_p", "--temp", "1.5"},
         R"("samplers": ["temperature", "top_p"], "temperature": 1.5)"},
        {{"--sampling-seq", "tp", "--temp", "1.5"}, R"("samplers": "tp", "temperature": 1.5)"}};
    std::string rows;
    std::vector<std::string> texts;
    const std::string usual = run_demo({"--raw", "-n", "40"}).out;
    for (const auto &[options, fields] : cases) {
        CAPTURE(options[0]);
        std::vector<std::string> arguments = options;
        arguments.insert(arguments.end(), {"--raw", "-n", "40"});
        const Result plain = run_demo(arguments);
        REQUIRE(plain.code == 0);
        texts.push_back(plain.out);
        CHECK(plain.out != usual);
        arguments.insert(arguments.end(), {"-md", demo_draft().string(), "--draft-branches", "2"});
        CHECK(run_demo(arguments).out == plain.out);
        arguments.back() = "1";
        rows += R"({"prompt": "Once there was", "max_tokens": 40, "seed": 4, )" + fields + "}\n";
    }
    const std::vector<json> answers = batch_demo(rows, {"--raw"});
    REQUIRE(answers.size() == cases.size());
    for (size_t i = 0; i < cases.size(); ++i) {
        CAPTURE(cases[i].second);
        CHECK(answers[i]["text"] == texts[i]);
    }
    for (const std::vector<std::string> &wrong : {std::vector<std::string>{"--samplers", "top_j"},
                                                  {"--sampling-seq", "kk"},
                                                  {"--mirostat", "3"},
                                                  {"--xtc-probability", "2"},
                                                  {"--adaptive-decay", "1"}})
        CHECK(run_demo(wrong).code == 2);
}

TEST_CASE("run and batch: --thinking-budget ends the reasoning after the given number of tokens") {
    if (absent()) return;
    const ThinkingTemplate thinks;
    const std::vector<std::string> common = {"--chat-template", thinks.path, "-n", "40",
                                             "--temp",          "1",         "-s", "4"};
    const auto with = [&](std::vector<std::string> more) {
        more.insert(more.end(), common.begin(), common.end());
        return more;
    };
    const json free = run_json(with({}));
    CHECK(free["text"] == "");
    const json bound = run_json(with({"--thinking-budget", "6"}));
    REQUIRE(bound["tokens"].size() > 10);
    for (size_t i = 0; i < 6; ++i) CHECK(bound["tokens"][i] == free["tokens"][i]);
    CHECK(bound["text"] != "");
    CHECK(free["reasoning"].get<std::string>().starts_with(bound["reasoning"].get<std::string>()));
    CHECK(bound["reasoning"].get<std::string>().find("</think>") == std::string::npos);
    const json drafted = run_json(with({"--thinking-budget", "6", "-md", demo_draft().string()}));
    CHECK(drafted["tokens"] == bound["tokens"]);
    const json zero = run_json(with({"--thinking-budget", "0", "--choice", "yes"}));
    CHECK(zero["text"] == "yes");
    CHECK_FALSE(zero.contains("reasoning"));
    const std::vector<json> rows = batch_demo(
        R"({"messages": [{"role": "user", "content": "Once there was"}], "seed": 4, "thinking_budget": 6})"
        "\n"
        R"({"messages": [{"role": "user", "content": "Once there was"}], "seed": 4})"
        "\n",
        with({}));
    REQUIRE(rows.size() == 2);
    CHECK(rows[0]["text"] == bound["text"]);
    CHECK(rows[1]["text"] == "");
    // stderr reports an answer that did not begin.
    std::vector<std::string> arguments = with({"run", demo_model().string(), "Hi", "-t", "1"});
    const Result said = runnel_with(arguments);
    CHECK(said.code == 0);
    CHECK(said.err.find("there is no answer") != std::string::npos);
}
