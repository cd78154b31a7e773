// `batch --explain`: the run's figures against --stats, the replays' order, and the map.
#include "engine/commands/batch/batch_explain.h"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/engine/commands/program_support.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
using nlohmann::json;

TEST_CASE("batch --explain: a row of one pass is in the peak") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string stats = (directory / "stats.json").string();
    const std::string row = json{{"prompt", std::string(80, 'a')}, {"max_tokens", 1}}.dump() + "\n";
    const Result got =
        runnel_with({"batch", tiny().path.string(), "--device", "cpu", "-t", "1", "--raw", "--temp", "0",
                     "--ignore-eos", "--parallel", "1", "-c", "256", "--explain", "--stats-file", stats},
                    row);
    REQUIRE(got.code == 0);
    const json run = json::parse(std::ifstream(stats))["paging"]["run"];
    CHECK(run["most_held_pages"] == 3);  // 80 tokens and a BOS
    CHECK(run["held_pages"] == 3);
}

TEST_CASE("batch --explain: the run's figures are those of --stats, and every allocation answers all rows") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string stats = (directory / "stats.json").string();
    std::string input;
    const std::string shared(80, 'a');  // longer than a page
    for (int i = 0; i < 12; ++i)
        input +=
            json{{"prompt", shared + std::string(static_cast<size_t>(1 + i * 3), 'b')}, {"max_tokens", 4 + i}}
                .dump() +
            "\n";
    const Result got =
        runnel_with({"batch", tiny().path.string(), "--device", "cpu", "-t", "1", "--raw", "--temp", "0",
                     "--ignore-eos", "--parallel", "3", "-c", "256", "--explain", "--stats-file", stats},
                    input);
    CAPTURE(got.err);
    REQUIRE(got.code == 0);
    CHECK(std::count(got.out.begin(), got.out.end(), '\n') == 12);  // the answers alone
    const json all = json::parse(std::ifstream(stats));
    const json &paging = all["paging"], &run = paging["run"];
    CHECK(paging["requests"] == 12);
    CHECK(paging["context"] == 256);
    CHECK(paging["page"] == 32);
    CHECK(paging["parallel"] == 3);
    CHECK(run["reused_tokens"] == all["reused_tokens"]);
    CHECK(run["reused_tokens"].get<int64_t>() >= 64);
    CHECK(run["preemptions"] == all["preemptions"]);
    CHECK(run["pages"].get<int64_t>() * 32 == paging["cells"].get<int64_t>());
    CHECK(run["most_held_pages"] <= run["pages"]);
    CHECK(run["held_pages"] <= run["most_held_pages"]);
    CHECK(run["shared_pages"] <= run["held_pages"]);
    CHECK(run["shared_pages"].get<double>() > 0);
    CHECK(run["unfilled"].get<double>() > 0);
    REQUIRE(paging["replays"].size() == 3);
    for (const json &one : paging["replays"]) {
        const double used = one["used"], internal = one["internal_waste"], external = one["external_waste"];
        CHECK(used > 0);
        CHECK(used + internal + external <= 1 + 1e-9);
        CHECK(one["most_running"] <= 3);
        CHECK(one["too_large"] == 0);
    }
    // Reservation holds whole contexts; the same tokens are in fewer cells with limits, and in fewer with pages.
    CHECK(paging["replays"][0]["most_held_cells"] == 3 * 256);
    CHECK(paging["replays"][2]["most_held_cells"] < paging["replays"][0]["most_held_cells"]);
    for (const char *part :
         {"12 requests, 3 at a time", "contexts reserved", "preemptions", "pages when most"})
        CHECK(got.err.find(part) != std::string::npos);
    std::istringstream lines(got.err);
    for (std::string line; std::getline(lines, line);)
        CHECK(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; }) <= 80);
}

TEST_CASE("batch --explain: the map has one mark per page, or the one most in use of several") {
    using runnel::commands::block_map;
    using runnel::measure::BlockUse;
    const std::vector<BlockUse> few = {BlockUse::Held, BlockUse::Free, BlockUse::Shared, BlockUse::Kept,
                                       BlockUse::Free};
    const std::string map = block_map(few, true);
    CHECK(map.starts_with("  #.So\n  and 1 free pages\n"));
    CHECK(map.find("S shared by several") != std::string::npos);
    CHECK(block_map(few, false).starts_with("  \u2593\u00b7\u2588\u2591\n"));
    std::vector<BlockUse> many(3000, BlockUse::Kept);
    many[4] = BlockUse::Shared, many.back() = BlockUse::Held;
    const std::string large = block_map(many, true);
    CHECK(large.starts_with("  oSoo"));
    CHECK(large.find("one character for 3 pages") != std::string::npos);
    CHECK(block_map(std::vector<BlockUse>(7, BlockUse::Free), true).starts_with("  and 7 free pages\n"));
}
