// What `bench` reports about drafts. Speeds depend on the machine, so only facts that hold everywhere are
// checked.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/support/data.h"
#include "tests/support/demo_model.h"
#include "tests/support/model_maker.h"
#include "tests/support/process.h"

using namespace runnel::testing;
using nlohmann::json;

namespace {

bool absent() {
    if (program_under_test() && std::filesystem::exists(demo_model())) return false;
    FAIL("tests run from the root of the sources, with RUNNEL or build/runnel");
    return true;
}

Result bench(const std::vector<std::string> &more) {
    std::vector<std::string> arguments = {"bench", demo_model().string(), "-r", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return execute({.arguments = std::move(arguments),
                    .input = std::string(),
                    .environment = {},
                    .stdout_to = {},
                    .watch = nullptr,
                    .type = nullptr});
}

}  // namespace

TEST_CASE(
    "bench: compares plain and speculative decoding, and shows the gain by acceptance and draft length") {
    if (absent()) return;
    json result;
    const auto edited = [&](const char *what) { return result["texts"][2]["speculation"][what].get<int>(); };
    // On a busy machine, passes of many tokens may seem too expensive for drafts.
    for (int attempt = 0; attempt < 6 && (attempt == 0 || edited("drafted") <= 20); ++attempt) {
        const Result got = bench({"--lookup", "-md", demo_draft().string(), "-n", "100", "--json"});
        CAPTURE(got.err);
        REQUIRE(got.code == 0);
        result = json::parse(got.out).at("speculation");
        REQUIRE(result["texts"].size() == 3);
    }
    for (const json &text : result["texts"]) {
        CAPTURE(text.dump());
        CHECK(text["same_text"] == true);
        CHECK(text["plain_tps"][0] > 0);
        CHECK(text["draft_tps"][0] > 0);
    }
    CHECK(result["texts"][2]["text"] == "editing");
    if (edited("drafted") > 20)
        CHECK(2 * edited("accepted") > edited("drafted"));  // with a change every 25 tokens
    else
        MESSAGE("the machine is too busy for drafts to pay");
    REQUIRE(result["pass_costs"].size() == 5);
    double before = 1;
    for (const json &pass : result["pass_costs"]) {
        CHECK(pass["plain_steps"] >= before);
        before = pass["plain_steps"];
    }
    REQUIRE(result["dial"].size() == 5);
    CHECK(result["dial"][0]["bound"] == 1.0);
    for (const json &row : result["dial"]) {
        CHECK(row["gain"] > 0);
        CHECK(row["bound"] >= 1);
        CHECK(row["lengths"].size() == 5);
    }
}

TEST_CASE("bench: drafts as a table, and contradictory flags") {
    if (absent()) return;
    const Result got = bench({"--self-draft", "2", "-n", "20"});
    CHECK(got.code == 0);
    for (const char *part : {"greedy", "temperature 0.8", "a pass of 2, 4, 8, 16, 32 tokens costs", "100%"})
        CHECK(got.out.find(part) != std::string::npos);
    CHECK(got.out.find("different text") == std::string::npos);
    CHECK(got.out.find("editing") == std::string::npos);
    CHECK(bench({"--lookup", "-n", "0"}).code == 2);
    CHECK(bench({"--lookup", "-c", "100"}).code == 2);
    CHECK(bench({"--self-draft", "99"}).code == 2);
    CHECK(bench({"--lookup", "--sequences", "2"}).code == 2);
    CHECK(bench({"--lookup", "-d", "64"}).code == 2);
    CHECK(bench({"--lookup", "-n", "8", "-b", "8"}).code == 0);  // no passes of 16 and 32 tokens
}

TEST_CASE("bench: --mtp shows the costs of the file's draft block") {
    if (absent()) return;
    ModelShape shape;
    shape.arch = "glm4moe", shape.layers = 3, shape.draft_block = true, shape.context = 2048;
    const TemporaryModel model(shape);
    const auto bench_mtp = [&](std::vector<std::string> more) {
        more.insert(more.begin(), {"bench", model.path.string(), "--mtp", "-n", "8", "-r", "1"});
        const Result got = execute({.arguments = std::move(more),
                                    .input = std::string(),
                                    .environment = {},
                                    .stdout_to = {},
                                    .watch = nullptr,
                                    .type = nullptr});
        REQUIRE_MESSAGE(got.code == 0, got.err);
        return got.out;
    };
    const json speculation = json::parse(bench_mtp({"--json"})).at("speculation");
    for (const json &text : speculation["texts"]) CHECK(text["same_text"] == true);
    const json &block = speculation.at("draft_block");
    CHECK(block["step"] > 0);
    CHECK(block["passes"].size() == 4);
    CHECK(block["catch_up"].size() == 4);
    CHECK(block["bounds"].size() == 15);
    CHECK(bench_mtp({}).find(
              "\nbound of the gain with the draft block, by acceptance rate and draft length\n") !=
          std::string::npos);
    CHECK_FALSE(json::parse(bench_mtp({"--json", "-b", "3"})).at("speculation").contains("draft_block"));
}
