// Speculation from the command line, with the models that ship with the product.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/support/data.h"
#include "tests/support/demo_model.h"
#include "tests/support/process.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
using nlohmann::json;

namespace {

bool absent() {
    if (program_under_test() && std::filesystem::exists(demo_model())) return false;
    FAIL("tests run from the root of the sources, with RUNNEL or build/runnel");
    return true;
}

Result runnel_with(std::vector<std::string> arguments, std::optional<std::string> input = std::string()) {
    return execute({.arguments = std::move(arguments),
                    .input = std::move(input),
                    .environment = {},
                    .stdout_to = {},
                    .watch = nullptr,
                    .type = nullptr});
}

using Flags = std::vector<std::string>;

Flags with(Flags flags, const Flags &more) {
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
}

const std::vector<Flags> &kinds() {
    static const std::vector<Flags> kKinds = {{"-md", demo_draft().string()},
                                              {"--lookup"},
                                              {"--self-draft", "2"},
                                              {"--lookup", "-md", demo_draft().string()}};
    return kKinds;
}

}  // namespace

TEST_CASE(
    "speculation: run gives the same text with every source, greedy and sampled, and reports its drafts") {
    if (absent()) return;
    for (const char *temperature : {"0", "0.8"}) {
        const Flags plain = {"run",
                             demo_model().string(),
                             "Once upon a time",
                             "--raw",
                             "--ignore-eos",
                             "-n",
                             "60",
                             "-s",
                             "3",
                             "--temp",
                             temperature};
        const Result expected = runnel_with(plain);
        REQUIRE(expected.code == 0);
        for (const Flags &kind : kinds()) {
            CAPTURE(kind.front());
            CAPTURE(temperature);
            const Result got = runnel_with(with(with(plain, kind), {"--stats", "--spec-verify"}));
            CHECK(got.code == 0);
            CHECK(got.out == expected.out);
            CHECK(got.err.find("\ndrafts ") != std::string::npos);
            CHECK(got.err.find("60 tokens, no difference") != std::string::npos);
        }
    }
}

TEST_CASE("speculation: JSON has the counts; the rejection rule and fixed lengths are accepted") {
    if (absent()) return;
    const Result got = runnel_with({"run", demo_model().string(), "One day", "--raw", "-n", "80", "-s", "3",
                                    "--json", "-md", demo_draft().string(), "--draft-rule", "rejection",
                                    "--draft-max", "6", "--draft-p-min", "0.1"});
    REQUIRE(got.code == 0);
    const json speculation = json::parse(got.out).at("speculation");
    for (const char *key :
         {"drafted", "accepted", "acceptance_rate", "mean_accepted", "branches", "branches_accepted",
          "draft_ms", "verify_ms", "plain_ms", "passes", "plain_passes", "speedup"}) {
        CAPTURE(key);
        CHECK(speculation.at(key).get<double>() >= 0);
    }
    CHECK(speculation.at("accepted") <= speculation.at("drafted"));
    CHECK(speculation.at("speedup") > 0);
}

TEST_CASE("speculation: the number of draft branches is from 1 to its limit") {
    if (absent()) return;
    const Flags plain = {"run",
                         demo_model().string(),
                         "Once upon a time",
                         "--raw",
                         "--ignore-eos",
                         "-n",
                         "60",
                         "--temp",
                         "0",
                         "--json",
                         "-md",
                         demo_draft().string()};
    const Result one = runnel_with(with(plain, {"--draft-branches", "1"})),
                 more = runnel_with(with(plain, {"--draft-branches", "8"}));
    REQUIRE(one.code == 0);
    REQUIRE(more.code == 0);
    CHECK(json::parse(one.out)["speculation"]["branches"] == 0);
    CHECK(json::parse(one.out)["tokens"] == json::parse(more.out)["tokens"]);
    for (const char *wrong : {"0", "-1", "99", "few"})
        CHECK(runnel_with(with(plain, {"--draft-branches", wrong})).code == 2);
    const Result chat = runnel_with({"chat", demo_model().string(), "--lookup", "--spec-verify"});
    CHECK(chat.code == 2);
    CHECK(chat.err.find("--spec-verify") != std::string::npos);
}

TEST_CASE("speculation: batch and samples answer as without drafts") {
    if (absent()) return;
    std::string rows;
    for (int i = 0; i < 5; ++i)
        rows += json({{"prompt", "Tale " + std::to_string(i)}, {"max_tokens", 20 + i}}).dump() + "\n";
    const Flags batch = {"batch", demo_model().string(), "--raw", "-s", "3", "--parallel", "3"};
    const Flags samples = {"run", demo_model().string(), "One day", "--raw", "-n", "25", "-s",
                           "3",   "--samples",           "3"};
    const Result expected_rows = runnel_with(batch, rows), expected_samples = runnel_with(samples);
    REQUIRE(expected_rows.code == 0);
    REQUIRE(expected_samples.code == 0);
    const TemporaryDirectory directory;
    for (const Flags &kind : kinds()) {
        CAPTURE(kind.front());
        const std::string stats = directory / "stats.json";
        CHECK(runnel_with(with(with(batch, kind), {"--stats-file", stats}), rows).out == expected_rows.out);
        CHECK(json::parse(read_file(stats)).contains("speculation"));
        CHECK(runnel_with(with(samples, kind)).out == expected_samples.out);
    }
}

TEST_CASE("speculation: chat gives the same answers over several turns") {
    if (absent()) return;
    const Flags chat = {"chat", demo_model().string(), "-n", "25", "-s", "3", "-q"};
    const std::string turns = "Hello\nTell me a story\n/set temp 0.5\nAnd then?\n/regen\n";
    const Result expected = runnel_with(chat, turns);
    REQUIRE(expected.code == 0);
    for (const Flags &kind : kinds()) {
        CAPTURE(kind.front());
        CHECK(runnel_with(with(chat, kind), turns).out == expected.out);
    }
}

TEST_CASE("speculation: --spec-verify needs no -c if a window bounds the memory") {
    if (absent()) return;
    const Result r = runnel_with({"run", demo_model().string(), "Once upon a time", "-n", "12", "--temp", "0",
                                  "--window", "64", "--lookup", "--spec-verify"});
    CAPTURE(r.err);
    CHECK(r.code == 0);
    CHECK(r.err.find("no difference") != std::string::npos);
}
