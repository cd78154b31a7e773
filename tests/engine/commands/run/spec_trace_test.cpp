// `run --spec-trace`: the passes against the answer and the program's own counts.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/measure/draft_timeline.h"
#include "tests/engine/commands/program_support.h"
#include "tests/support/data.h"
#include "tests/support/demo_model.h"
#include "tests/support/temporary.h"

using namespace runnel;
using namespace runnel::testing;
using nlohmann::json;

namespace {

std::vector<std::string> command(std::vector<std::string> more) {
    std::vector<std::string> all = {"run",         demo_model(), "Once upon a time there was a little boat",
                                    "-n",          "40",         "--temp",
                                    "0",           "--device",   "cpu",
                                    "--ignore-eos"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
}

}  // namespace

TEST_CASE("spec-trace: the passes give the answer's tokens, and the counts are the program's") {
    if (absent()) return;
    const json plain = json::parse(runnel_with(command({"--json"}), "").out);
    for (const std::vector<std::string> &drafts :
         {std::vector<std::string>{"--lookup"}, {"--self-draft", "2"}, {"-md", demo_draft().string()}}) {
        CAPTURE(drafts[0]);
        const TemporaryDirectory directory;
        const std::string svg = directory / "passes.svg";
        std::vector<std::string> more = drafts;
        more.insert(more.end(), {"--json", "--spec-trace", svg});
        const Result r = runnel_with(command(more), "");
        CAPTURE(r.err);
        REQUIRE(r.code == 0);
        const json all = json::parse(r.out), &trace = all["spec_trace"];
        CHECK(all["text"] == plain["text"]);
        // The prefill gives the first token.
        json tokens = {all["tokens"][0]};
        int64_t guessed = 0, accepted = 0, with_drafts = 0;
        double ms = 0;
        std::vector<double> plain_passes;
        for (const json &pass : trace["passes"]) {
            const size_t right = pass["accepted"];
            REQUIRE(right <= pass["tokens"].size());
            CHECK(pass["tokens"].size() <= right + 1);
            CHECK(pass["drafts"].size() <= pass["guessed"]);
            const size_t of_draft =
                pass["branch_after"].is_null() ? right : pass["branch_after"].get<size_t>();
            for (size_t i = 0; i < of_draft; ++i) CHECK(pass["drafts"][i] == pass["tokens"][i]);
            if (pass["branch_after"].is_null() && right < pass["drafts"].size() &&
                right < pass["tokens"].size())
                CHECK(pass["drafts"][right] != pass["tokens"][right]);
            for (const json &token : pass["tokens"]) tokens.push_back(token);
            guessed += pass["guessed"].get<int64_t>(), accepted += static_cast<int64_t>(right);
            with_drafts += pass["guessed"] > 0;
            ms += pass["draft_ms"].get<double>() + pass["pass_ms"].get<double>();
        }
        CHECK(tokens == all["tokens"]);
        CHECK(trace["tokens"] == tokens.size() - 1);
        CHECK(trace["guessed"] == guessed);
        CHECK(trace["accepted"] == accepted);
        CHECK(trace["ms"].get<double>() == doctest::Approx(ms));
        const json &counts = all["speculation"];
        CHECK(counts["drafted"] == guessed);
        CHECK(counts["accepted"] >= accepted);  // the last pass may accept more than the answer takes
        CHECK(counts["passes"] == with_drafts);
        CHECK(counts["plain_passes"].get<size_t>() == trace["passes"].size() - with_drafts);
        CHECK(read_file(svg).starts_with("<svg xmlns"));
    }
}

TEST_CASE("spec-trace: the text on stderr shows every pass, and wrong options are refused") {
    if (absent()) return;
    const Result r = runnel_with(command({"--self-draft", "1", "--spec-trace", "-"}), "");
    CHECK(r.code == 0);
    CHECK(r.err.find("drafted tokens were accepted") != std::string::npos);
    CHECK(r.err.find("[accepted] +the model's own token ~rejected~") != std::string::npos);
    const TemporaryDirectory directory;
    const std::string svg = directory / "passes.svg";
    CHECK(runnel_with(command({"--spec-trace", svg}), "").code == 2);
    CHECK(runnel_with(command({"--lookup", "--samples", "2", "--spec-trace", svg}), "").code == 2);
    CHECK(runnel_with(command({"--lookup", "--spec-trace", "passes.png"}), "").code == 2);
}

TEST_CASE("spec-trace: sums, the median of plain passes, and a last pass that gives too much") {
    completion::Done done;
    done.tokens = {1, 2, 3, 4, 5, 6};
    done.draft_passes = {{{}, {2}, 0, {}, 0, 0, 0.004},
                         {{3, 9}, {3, 4}, 1, {}, 2, 0.001, 0.006},
                         {{}, {5}, 0, {}, 0, 0, 0.002},
                         {{6, 7, 8}, {6, 7, 8, 9}, 3, {}, 3, 0.001, 0.008}};
    const measure::DraftTimeline timeline = measure::draft_timeline(done);
    CHECK(timeline.tokens == 5);
    CHECK(timeline.guessed == 5);
    CHECK(timeline.accepted == 2);
    CHECK(timeline.seconds == doctest::Approx(0.022));
    CHECK(timeline.plain_passes == 2);
    REQUIRE(timeline.plain);
    CHECK(*timeline.plain == doctest::Approx(0.003));
    CHECK(*timeline.without == doctest::Approx(0.015));
    CHECK(timeline.passes.back().tokens == std::vector<text::TokenId>{6});
    CHECK(timeline.passes.back().accepted == 1);
    done.draft_passes.resize(2), done.draft_passes.erase(done.draft_passes.begin());
    CHECK(!measure::draft_timeline(done).without);
}
