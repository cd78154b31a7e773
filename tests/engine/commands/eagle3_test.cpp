// --draft-model with an EAGLE-3 head, from outside.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/engine/commands/program_support.h"
#include "tests/support/data.h"
#include "tests/support/eagle_pair.h"
#include "tests/support/process.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
using nlohmann::json;

namespace {

Result run_program(std::vector<std::string> arguments, const std::string &input = "") {
    Process process;
    process.arguments = std::move(arguments);
    process.input = input;
    return execute(process);
}

Result run_model(const std::filesystem::path &model, const std::vector<std::string> &more) {
    std::vector<std::string> all = {"run", model.string(), "--raw",  "-p", "a b c d", "--ignore-eos",
                                    "-n",  "60",           "--seed", "3",  "--json"};
    all.insert(all.end(), more.begin(), more.end());
    return run_program(std::move(all));
}

bool holds(const std::string &text, const std::string &part) {
    INFO(text);
    return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE(
    "--draft-model with an EAGLE-3 head: the text is the same with and without, and the counts are shown") {
    if (absent()) return;
    for (const std::string arch : {"llama", "qwen35", "ruled"}) {
        CAPTURE(arch);
        EaglePair pair = arch == "ruled" ? EaglePair::ruled(kEagleVocab) : EaglePair({.rows = 150}, arch);
        (void)pair.file();
        for (const char *temperature : {"0", "0.9"}) {
            const auto with = [&](std::vector<std::string> more) {
                more.insert(more.end(), {"--temp", temperature});
                return run_model(pair.target_path(), more);
            };
            const std::string head = pair.head_path().string();
            const Result off = with({}), on = with({"--draft-model", head, "--draft-min", "1"}),
                         foreign = with({"-md", head, "--spec-type", "draft-eagle3", "--mtp", "auto"});
            CHECK(answer_of(on) == answer_of(off));
            CHECK(answer_of(foreign) == answer_of(off));
            CHECK_FALSE(json::parse(off.out).contains("speculation"));
            for (const Result *result : {&on, &foreign})
                CHECK(json::parse(result->out).at("speculation").at("sources") == "eagle3");
            CHECK(with({"-md", head, "--spec-verify"}).code == 0);
            CHECK(answer_of(with({"-md", head, "-b", "3"})) == answer_of(off));
            CHECK(answer_of(with({"-md", head, "--lookup"})) == answer_of(off));
            const Result stats = with({"-md", head, "--stats"});
            CHECK(answer_of(stats) == answer_of(off));
            CHECK(holds(stats.err, "tokens (eagle3), "));
        }
    }
}

TEST_CASE("--draft-model with an EAGLE-3 head: batch and chat give the same texts") {
    if (absent()) return;
    EaglePair pair({}, "qwen35");
    (void)pair.file();
    const std::string head = pair.head_path().string(), model = pair.target_path().string();
    const auto text = [&](std::vector<std::string> arguments, const std::string &input, bool drafts) {
        if (drafts) arguments.insert(arguments.end(), {"-md", head});
        const Result result = run_program(std::move(arguments), input);
        REQUIRE_MESSAGE(result.code == 0, result.err);
        return result.out;
    };
    const std::string rows = "one two\nthree\none two three four\n\nfive\n";
    const std::vector<std::string> batch = {"batch",  model, "--lines", "--raw", "--ignore-eos", "-n", "30",
                                            "--temp", "0.7", "--seed",  "9",     "--parallel",   "3"};
    CHECK(text(batch, rows, true) == text(batch, rows, false));
    const std::vector<std::string> chat = {"chat",   model, "--ignore-eos", "-n", "30",
                                           "--temp", "0",   "--plain"};
    const std::string turns = "hello there\n/undo\nagain\nmore\n";
    CHECK(text(chat, turns, true) == text(chat, turns, false));
    CHECK(text(chat, turns, false).size() > 20);
}

TEST_CASE("--draft-model with an EAGLE-3 head: what does not fit is refused in one line") {
    if (absent()) return;
    EaglePair pair;
    (void)pair.file();
    const std::string head = pair.head_path().string();
    const auto refused = [](const Result &result, int code, const std::string &why) {
        CHECK(result.code == code);
        CHECK(holds(result.err, why));
        CHECK(std::ranges::count(result.err, '\n') == 1);
        CHECK(result.out == "");
    };
    refused(run_model(head, {}), 3, "an EAGLE-3 head, which drafts for another model and cannot run alone");
    ModelShape wide;
    const TemporaryModel other(wide);
    refused(run_model(other.path, {"-md", head}), 3,
            "eagle3.target_hidden_size: 32, but the target (llama) has 64 as embedding_length");
    refused(run_model(pair.target_path(), {"-md", head, "--window", "64"}), 2,
            "an EAGLE-3 head does not work with --window");
    refused(run_model(pair.target_path(), {"-md", head, "--mtp", "on"}), 2, "choose one");
    refused(run_model(pair.target_path(), {"-md", head, "--self-draft", "1"}), 2, "choose one");
    refused(run_model(pair.target_path(), {"-md", head, "--beams", "2"}), 2, "--beams");
    refused(run_model(pair.target_path(), {"--spec-type", "draft-eagle3"}), 2,
            "--spec-type draft-eagle3 needs --draft-model FILE with an EAGLE-3 head");
    refused(run_model(pair.target_path(), {"--spec-type", "draft-eagle3", "-md", other.path.string()}), 2,
            "--spec-type draft-eagle3 needs --draft-model FILE with an EAGLE-3 head");
}

TEST_CASE("inspect: describes an EAGLE-3 head") {
    if (absent()) return;
    EaglePair pair({.rows = 150, .layers = {0, 2, 4}});
    (void)pair.file();
    const Result text = run_program({"inspect", pair.head_path().string()});
    CHECK(text.code == 0);
    CHECK(holds(text.out,
                "draft head         EAGLE-3, for a model of width 32; reads its layers 0, 2, 4; drafts "
                "150 of its tokens\n"));
    CHECK(holds(text.out, "cannot run alone"));
    const json all = json::parse(run_program({"inspect", pair.head_path().string(), "--json"}).out);
    CHECK(
        all.at("draft_head") ==
        json{{"kind", "eagle3"}, {"target_width", 32}, {"target_layers", {0, 2, 4}}, {"draft_tokens", 150}});
    CHECK_FALSE(json::parse(run_program({"inspect", pair.target_path().string(), "--json"}).out)
                    .contains("draft_head"));
}
