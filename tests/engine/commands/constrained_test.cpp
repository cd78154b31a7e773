// Constrained answers and `runnel grammar`, run as programs. Needs $RUNNEL (default build/runnel).
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/engine/commands/program_support.h"
#include "tests/support/demo_model.h"
#include "tests/support/edited_model.h"

using namespace runnel::testing;
using json = nlohmann::ordered_json;

namespace {

const std::string kSchema =
    R"({"type":"object","properties":{"animal":{"enum":["cat","dog","horse"]},"age":{"type":"integer","minimum":0,"maximum":30},"names":{"type":"array","items":{"type":"string","maxLength":12},"maxItems":3}},"required":["animal","age","names"]})";

Result run_demo(std::vector<std::string> more) {
    std::vector<std::string> arguments{
        "run", demo_model().string(), "--raw", "Once there was", "-t", "1", "-s", "4"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return runnel_with(std::move(arguments));
}

void check_animal(const json &animal) {
    CHECK(animal["age"].get<int>() >= 0);
    CHECK(animal["age"].get<int>() <= 30);
    CHECK(animal["names"].size() <= 3);
    CHECK(animal.size() == 3);
}

std::vector<json> lines_of(const std::string &text) {
    std::vector<json> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
    return lines;
}

}  // namespace

TEST_CASE("grammar: every line gets a verdict, with the offset of the refused byte") {
    if (absent()) return;
    const Result r =
        runnel_with({"grammar", "--json-schema", R"({"type":"array","items":{"type":"integer"}})", "--check"},
                    "\"[1,2]\"\n\n\"[1,x]\"\n\"[1\"\n\"[ \\u0031 ]\"\n");
    CHECK(r.code == 0);
    CHECK(r.err == "");
    CHECK(r.out ==
          "{\"accepted\": true}\n{\"accepted\": false, \"at\": 3}\n{\"accepted\": false, \"at\": "
          "2}\n{\"accepted\": true}\n");
    CHECK(runnel_with({"grammar", "--choice", "yes", "--choice", "no", "--check"}, "\"no\"\n").out ==
          "{\"accepted\": true}\n");
    CHECK(runnel_with({"grammar", "--regex", "[0-9]{4}", "--check"}, "\"20245\"\n").out ==
          "{\"accepted\": false, \"at\": 4}\n");
    CHECK(runnel_with({"grammar", "--format", "json", "--check"}, "\"{\\\"a\\\": [null]}\"\n").out ==
          "{\"accepted\": true}\n");
}

TEST_CASE("grammar: --show prints what may come next") {
    if (absent()) return;
    const Result r = runnel_with({"grammar", "--json-schema", kSchema, "--show", "{\"animal\":\"c"});
    CHECK(r.code == 0);
    CHECK(r.out == "end: no\nforced: at\"\nnext: 0x0a 0x20 ,\n");
    CHECK(runnel_with({"grammar", "--regex", "[a-c0]x?", "--show", ""}).out == "end: no\nnext: 0 a-c\n");
    CHECK(runnel_with({"grammar", "--regex", "[a-c]x?", "--show", "a"}).out == "end: yes\nnext: x\n");
}

TEST_CASE(
    "grammar: an invalid constraint or input gives one line on stderr and exit code 5; wrong usage gives 2") {
    if (absent()) return;
    const auto code = [](std::vector<std::string> arguments, std::optional<std::string> input = "") {
        arguments.insert(arguments.begin(), "grammar");
        const Result r = runnel_with(std::move(arguments), std::move(input));
        check_message(r);
        return r.code;
    };
    CHECK(code({"--json-schema", R"({"if": {}})", "--check"}) == 5);
    CHECK(code({"--json-schema", "{", "--check"}) == 5);
    CHECK(code({"--grammar", "root ::= \"a\"{3,2}", "--check"}) == 5);
    CHECK(code({"--regex", "a(?=b)", "--check"}) == 5);
    CHECK(code({"--regex", "a", "--check"}, "not json\n") == 5);
    CHECK(code({"--regex", "a", "--show", "b"}) == 5);
    CHECK(code({"--grammar", "/nowhere/x.gbnf", "--check"}) == 2);
    CHECK(code({"--check"}) == 2);
    CHECK(code({"--regex", "a", "--choice", "b", "--check"}) == 2);
    CHECK(code({"--regex", "a"}) == 2);
}

TEST_CASE("run: a constrained answer is valid at any temperature, with drafts, samples and beams") {
    if (absent()) return;
    for (const char *temperature : {"0", "3"}) {
        const Result plain =
            run_demo({"--json-schema", kSchema, "--temp", temperature, "-n", "200", "--json"});
        CAPTURE(plain.err);
        REQUIRE(plain.code == 0);
        const json result = json::parse(plain.out);
        CAPTURE(plain.out);
        CHECK(result["complete"] == (result["finish_reason"] == "stop"));
        if (result["complete"] == true) check_animal(json::parse(result["text"].get<std::string>()));
        const Result drafts =
            run_demo({"--json-schema", kSchema, "--temp", temperature, "-n", "200", "--lookup"});
        CHECK(drafts.out == result["text"].get<std::string>());
        const Result verified = run_demo(
            {"--json-schema", kSchema, "--temp", temperature, "-n", "200", "--lookup", "--spec-verify"});
        CHECK(verified.code == 0);
    }
    const Result samples =
        run_demo({"--choice", "cat", "--choice", "dog", "--choice", "", "--samples", "4", "--temp", "2"});
    CHECK(samples.code == 0);
    std::istringstream texts(samples.out);
    for (std::string line; std::getline(texts, line);)
        CHECK((line == "cat" || line == "dog" || line == "" || line == "---"));
    const Result beams = run_demo(
        {"--choice", "a cat", "--choice", "a dog", "--choice", "no", "--beams", "3", "--json", "-n", "20"});
    CAPTURE(beams.out);
    REQUIRE(beams.code == 0);
    const json all_beams = json::parse(beams.out)["beams"];
    for (const json &beam : all_beams) {
        CHECK(beam["complete"] == true);
        const std::string text = beam["text"];
        CHECK((text == "a cat" || text == "a dog" || text == "no"));
    }
    const Result closed =
        run_demo({"--json-schema", kSchema, "--beams", "3", "--json", "-n", "30", "--close"});
    REQUIRE(closed.code == 0);
    const json closed_beams = json::parse(closed.out)["beams"];
    for (const json &beam : closed_beams) {
        CHECK(beam["complete"] == true);
        check_animal(json::parse(beam["text"].get<std::string>()));
    }
    CHECK(run_demo({"--regex", "[0-9]{3}(-[0-9]{2})+x", "--temp", "1.5", "-n", "80", "--ignore-eos"}).code ==
          0);
}

TEST_CASE("run: an answer that -n cuts is not complete; --close completes it") {
    if (absent()) return;
    const json cut = json::parse(run_demo({"--json-schema", kSchema, "-n", "5", "--json"}).out);
    CHECK(cut["finish_reason"] == "length");
    CHECK(cut["complete"] == false);
    const json closed = json::parse(run_demo({"--json-schema", kSchema, "-n", "5", "--json", "--close"}).out);
    CHECK(closed["finish_reason"] == "length");
    CHECK(closed["complete"] == true);
    CHECK(closed["text"].get<std::string>().starts_with(cut["text"].get<std::string>()));
    check_animal(json::parse(closed["text"].get<std::string>()));
    const json none = json::parse(run_demo({"--json-schema", kSchema, "-n", "0", "--json", "--close"}).out);
    CHECK(none["complete"] == true);
    check_animal(json::parse(none["text"].get<std::string>()));
    const Result bad = run_demo({"--grammar", "root ::= nothing"});
    CHECK(bad.code == 5);
    check_message(bad);
}

TEST_CASE("batch: each row has its own constraint, and the same text for any --parallel") {
    if (absent()) return;
    const std::string rows =
        R"({"id":1,"prompt":"A cat","response_format":{"type":"json_object"},"max_tokens":40})"
        "\n"
        R"({"id":2,"prompt":"A dog","response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"array","items":{"type":"boolean"},"maxItems":4}}},"max_tokens":60})"
        "\n"
        R"({"id":3,"prompt":"Say","guided_choice":["red","green"]})"
        "\n"
        R"({"id":4,"prompt":"Say","structured_outputs":{"regex":"[a-f]{4}"}})"
        "\n"
        R"({"id":5,"prompt":"Say","guided_json":{"not":{}}})"
        "\n"
        R"({"id":6,"prompt":"Say","response_format":{"type":"xml"}})"
        "\n"
        R"({"id":7,"prompt":"Say","guided_regex":"a","guided_choice":["b"]})"
        "\n"
        R"({"id":8,"prompt":"Say","max_tokens":3})"
        "\n";
    const std::vector<std::string> how{
        "batch", demo_model().string(), "--raw", "-t", "1", "-s", "3", "--temp", "1.5"};
    std::vector<std::string> alone = how;
    alone.insert(alone.end(), {"--parallel", "1"});
    const Result together = runnel_with(how, rows);
    const std::vector<json> lines = lines_of(together.out);
    REQUIRE(lines.size() == 8);
    CHECK(together.code == 5);
    CHECK(together.out == runnel_with(alone, rows).out);
    CHECK(lines[0]["text"].get<std::string>().starts_with("{"));
    CHECK(lines[0].contains("complete"));
    if (lines[1]["complete"] == true)
        for (const json &item : json::parse(lines[1]["text"].get<std::string>())) CHECK(item.is_boolean());
    CHECK((lines[2]["text"] == "red" || lines[2]["text"] == "green"));
    CHECK(lines[2]["complete"] == true);
    CHECK(lines[3]["text"].get<std::string>().size() == 4);
    for (const size_t bad : {4, 5, 6}) CHECK(lines[bad].contains("error"));
    CHECK(lines[4]["error"]["message"].get<std::string>().find("the keyword not is not supported") !=
          std::string::npos);
    CHECK(!lines[7].contains("complete"));
}

TEST_CASE("run: banned texts never appear; drafts do not change the text") {
    if (absent()) return;
    for (const char *temperature : {"0", "1"}) {
        const std::vector<std::string> how{"--temp", temperature, "-n", "60"};
        const Result free = run_demo(how);
        REQUIRE(free.code == 0);
        // Words and letters that the answer contains without a ban; most of them span several tokens.
        std::vector<std::string> banned = how;
        const std::vector<std::string> texts{free.out.substr(1, 6), free.out.substr(20, 4), "the", "a "};
        for (const std::string &text : texts) banned.insert(banned.end(), {"--ban", text});
        const Result plain = run_demo(banned);
        CAPTURE(plain.err);
        REQUIRE(plain.code == 0);
        CHECK(!plain.out.empty());
        for (const std::string &text : texts) CHECK_MESSAGE(plain.out.find(text) == std::string::npos, text);
        banned.push_back("--lookup");
        CHECK(run_demo(banned).out == plain.out);
        banned.back() = "--draft-model=" + demo_draft().string();
        CHECK(run_demo(banned).out == plain.out);
    }
    const json samples = json::parse(
        run_demo({"--ban", "e", "--samples", "3", "--temp", "1.5", "-n", "30", "--json"}).out)["samples"];
    CHECK(samples.size() == 3);
    for (const json &sample : samples)
        CHECK(sample["text"].get<std::string>().find('e') == std::string::npos);
    // With a grammar as well: what the grammar allows, minus the banned texts.
    const Result choice = run_demo({"--choice", "cat", "--choice", "dog", "--ban", "at"});
    CHECK(choice.out == "dog");
    const Result none = run_demo({"--choice", "cat", "--ban", "at"});
    CHECK(none.code == 1);
    CHECK(none.err.find("banned") != std::string::npos);
    CHECK(run_demo({"--ban", ""}).code == 2);
}

TEST_CASE("batch: a row's bans are added to the run's; --parallel does not change the text") {
    if (absent()) return;
    std::string rows;
    for (int i = 0; i < 6; ++i)
        rows += R"({"prompt":"Once there was","seed":)" + std::to_string(i) +
                (i % 2 ? R"(,"ban":["he","s"],"max_tokens":30})" : R"(,"max_tokens":30})") + "\n";
    const std::vector<std::string> how{"batch", demo_model().string(), "--raw", "-t", "1", "--ban", "nd"};
    std::vector<std::string> alone = how;
    alone.insert(alone.end(), {"--parallel", "1", "--lookup"});
    const Result together = runnel_with(how, rows);
    CHECK(together.code == 0);
    CHECK(together.out == runnel_with(alone, rows).out);
    const std::vector<json> lines = lines_of(together.out);
    REQUIRE(lines.size() == 6);
    for (size_t i = 0; i < lines.size(); ++i) {
        const std::string text = lines[i]["text"];
        CHECK(!lines[i].contains("complete"));
        CHECK(text.find("nd") == std::string::npos);
        if (i % 2) CHECK(text.find("he") == std::string::npos);
        if (i % 2) CHECK(text.find('s') == std::string::npos);
    }
    const Result bad = runnel_with(how, R"({"prompt":"x","ban":[1]})");
    CHECK(bad.code == 5);
}

TEST_CASE("run and batch: infill uses the file's tokens; without them a suffix is refused") {
    if (absent()) return;
    const Result refused = run_demo({"--suffix", " of the house."});
    CHECK(refused.code == 5);
    check_message(refused);
    CHECK(refused.err.find("no tokens for infill") != std::string::npos);

    EditedModel edited;
    edited.set("tokenizer.ggml.fim_pre_token_id", uint32_t{300})
        .set("tokenizer.ggml.fim_suf_token_id", uint32_t{301})
        .set("tokenizer.ggml.fim_mid_token_id", uint32_t{302});
    const std::string model = edited.write().string();
    const auto answer = [&](std::vector<std::string> more) {
        std::vector<std::string> all{"run", model, "abc", "-t", "1", "-n", "8", "--temp", "0", "--json"};
        all.insert(all.end(), more.begin(), more.end());
        return runnel_with(all);
    };
    const json plain = json::parse(answer({"--raw"}).out),
               infill = json::parse(answer({"--suffix", "de"}).out);
    // Three infill tokens and "de"; BOS is counted once.
    CHECK(infill["prompt_tokens"].get<int>() > plain["prompt_tokens"].get<int>() + 3);
    const TemporaryDirectory folder;
    const std::string file = (folder / "suffix.txt").string();
    std::ofstream(file) << "de";
    CHECK(json::parse(answer({"--suffix", "@" + file}).out)["tokens"] == infill["tokens"]);
    CHECK(answer({"--suffix", "de", "--system", "x"}).code == 2);
    const Result batch = runnel_with({"batch", model, "-t", "1", "-n", "8", "--temp", "0"},
                                     R"({"prompt":"abc","suffix":"de"})"
                                     "\n"
                                     R"({"messages":[{"role":"user","content":"x"}],"suffix":"de"})"
                                     "\n");
    const std::vector<json> lines = lines_of(batch.out);
    REQUIRE(lines.size() == 2);
    CHECK(lines[0]["text"] == infill["text"]);
    CHECK(lines[0]["prompt_tokens"] == infill["prompt_tokens"]);
    CHECK(lines[1]["error"]["message"].get<std::string>().find("suffix") != std::string::npos);
}
