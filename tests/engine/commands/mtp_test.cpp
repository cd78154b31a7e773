// --mtp: drafts of the file's own next-token-prediction block, from outside.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/engine/commands/program_support.h"
#include "tests/support/data.h"
#include "tests/support/draft_model.h"
#include "tests/support/model_maker.h"
#include "tests/support/process.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
using nlohmann::json;

namespace {

Result run_model(const std::filesystem::path &model, const std::vector<std::string> &more) {
    Process process;
    process.arguments = {"run", model.string(), "--raw",  "-p", "a b c d", "--ignore-eos",
                         "-n",  "60",           "--seed", "3",  "--json"};
    process.arguments.insert(process.arguments.end(), more.begin(), more.end());
    return execute(process);
}

}  // namespace

TEST_CASE("--mtp: the text is the same with and without, and the counts are shown") {
    if (absent()) return;
    for (const std::string arch : {"glm4moe", "qwen35", "mimo2"}) {
        CAPTURE(arch);
        DraftModel made(arch);
        if (arch == "mimo2") made.chain(3);  // with windows, too
        (void)made.write();
        const std::filesystem::path model = made.path();
        for (const char *temperature : {"0", "0.9"}) {
            const std::vector<std::string> how = {"--temp", temperature};
            const auto with = [&](std::vector<std::string> more) {
                more.insert(more.end(), how.begin(), how.end());
                return run_model(model, more);
            };
            const Result off = with({}), on = with({"--mtp"}), automatic = with({"--mtp", "auto"});
            CHECK(answer_of(on) == answer_of(off));
            CHECK(answer_of(automatic) == answer_of(off));
            CHECK_FALSE(json::parse(off.out).contains("speculation"));
            CHECK(json::parse(on.out).contains("speculation"));
            CHECK(json::parse(automatic.out).contains("speculation"));
            CHECK(with({"--mtp", "on", "--spec-verify"}).code == 0);
            CHECK(answer_of(with({"--mtp", "on", "-b", "3"})) == answer_of(off));
        }
    }
}

TEST_CASE("--mtp: a prompt from a prompt file gives the same text") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const DraftModel made("qwen35");
    (void)made.write();
    std::string prompt;
    for (int i = 0; i < 40; ++i) prompt += "word " + std::to_string(i) + " ";
    const auto with = [&](std::vector<std::string> more) {
        more.insert(more.end(), {"-p", prompt, "--temp", "0"});
        return run_model(made.path(), more);
    };
    const json plain = answer_of(with({"--mtp", "off"}));
    for (int i = 0; i < 2; ++i)
        CHECK(answer_of(with({"--mtp", "on", "--prompt-cache", (directory / "prompt").string()})) == plain);
}

TEST_CASE("--mtp: the rows of a batch have the same texts with and without") {
    if (absent()) return;
    DraftModel hybrid("qwen35moe"), windows("mimo2");
    windows.chain(2);
    const auto texts = [](const DraftModel &made, const char *mtp) {
        Process process;
        process.arguments = {"batch",
                             made.path().string(),
                             "--lines",
                             "--raw",
                             "--ignore-eos",
                             "-n",
                             "30",
                             "--temp",
                             "0.7",
                             "--seed",
                             "9",
                             "--parallel",
                             "3",
                             "--mtp",
                             mtp};
        process.input = "one two\nthree\none two three four\n\nfive\n";
        const Result result = execute(process);
        REQUIRE_MESSAGE(result.code == 0, result.err);
        return result.out;
    };
    for (const DraftModel *made : {&hybrid, &windows}) {
        (void)made->write();
        CHECK(texts(*made, "on") == texts(*made, "off"));
    }
}

TEST_CASE("--mtp: a file without the block, a window, or another draft model is a usage error") {
    if (absent()) return;
    const TemporaryModel plain{ModelShape{}};
    const Result none = run_model(plain.path, {"--mtp", "on"});
    CHECK(none.code == 2);
    CHECK(none.err.find("--mtp: the file has no next-token-prediction block") != std::string::npos);
    CHECK(none.out == "");
    const Result automatic = run_model(plain.path, {"--mtp", "auto"});
    CHECK(automatic.code == 0);
    CHECK_FALSE(json::parse(automatic.out).contains("speculation"));
    CHECK(run_model(plain.path, {"--mtp", "maybe"}).code == 2);

    const DraftModel made("glm4moe");
    (void)made.write();
    const Result window = run_model(made.path(), {"--mtp", "on", "--window", "64"});
    CHECK(window.code == 2);
    CHECK(window.err.find("--window") != std::string::npos);
    CHECK(run_model(made.path(), {"--window", "64", "--mtp", "auto"}).code == 0);
    const Result both = run_model(made.path(), {"--mtp", "on", "--self-draft", "1"});
    CHECK(both.code == 2);
    CHECK(both.err.find("choose one") != std::string::npos);
    CHECK(answer_of(run_model(made.path(), {"--beams", "2"})) ==
          answer_of(run_model(made.path(), {"--beams", "2", "--mtp", "auto"})));
}

TEST_CASE("inspect: shows the memory of a next-token-prediction block") {
    if (absent()) return;
    const DraftModel made("qwen35");
    (void)made.write();
    const auto inspect = [](const std::filesystem::path &model, std::vector<std::string> more) {
        Process process;
        process.arguments = {"inspect", model.string()};
        process.arguments.insert(process.arguments.end(), more.begin(), more.end());
        const Result result = execute(process);
        REQUIRE(result.code == 0);
        return result.out;
    };
    CHECK(inspect(made.path(), {}).find("(--mtp)") != std::string::npos);
    const json memory = json::parse(inspect(made.path(), {"--json", "-c", "64"})).at("memory");
    // 64 cells of F16: keys and values of one layer, and the hidden states.
    const json whole = json::parse(inspect(made.path(), {"--json", "-c", "128"})).at("memory");
    CHECK(memory.at("draft_block").get<int64_t>() * 2 == whole.at("draft_block").get<int64_t>());
    CHECK(memory.at("draft_block").get<int64_t>() > 64 * kDraftWidth * 2);
    const TemporaryModel plain{ModelShape{}};
    CHECK(inspect(plain.path, {}).find("--mtp") == std::string::npos);
}
