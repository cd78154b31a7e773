// scripts/gpu-check without a GPU: every stage runs, on tiny shapes on the CPU, and the table has their
// figures.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/support/process.h"
#include "tests/support/skip.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
using nlohmann::json;

namespace {

std::string text_of(const std::filesystem::path &path) {
    const std::vector<std::byte> bytes = read_bytes(path);
    return {reinterpret_cast<const char *>(bytes.data()), bytes.size()};
}

}  // namespace

TEST_CASE("gpu-check: a dry run goes through all stages") {
    const auto program = program_under_test();
    REQUIRE_MESSAGE(program, "no program to test: set RUNNEL, or build build/runnel");
    REQUIRE_MESSAGE(std::filesystem::exists("scripts/gpu-check"), "tests run from the root of the sources");
    if (std::system("python3 --version >/dev/null 2>&1") != 0) return skip("no python3");
    const std::filesystem::path binaries = std::filesystem::absolute(*program).parent_path();
    if (!std::filesystem::exists(binaries / "make-model")) return skip("no make-model beside the program");
    const TemporaryDirectory directory;
    // gpu-tests are not built here: this program has the same cases, on the emulated device.
    for (const char *name : {"runnel", "make-model"})
        std::filesystem::create_symlink(binaries / name, directory / name);
    std::filesystem::create_symlink(std::filesystem::read_symlink("/proc/self/exe"), directory / "gpu-tests");
    const int status = std::system(("python3 scripts/gpu-check " + shell_word(directory / "out") +
                                    " --dry-run --skip build --binaries " + shell_word(directory.path()) +
                                    " >" + shell_word(directory / "log") + " 2>&1")
                                       .c_str());
    CAPTURE(text_of(directory / "log"));
    CHECK(status == 0);
    const json report = json::parse(text_of(directory / "out" / "gpu-check.json"));
    CHECK(report["dry_run"] == true);
    CHECK(report["problems"].empty());
    for (const char *stage :
         {"device", "kernels", "doubts", "sanitizer", "doctor", "switches", "families", "bench"})
        CHECK(report["stages"].contains(stage));
    CHECK(report["stages"]["kernels"]["cases"].get<std::string>().find("0 failed") != std::string::npos);
    std::set<std::string> asked;
    for (const json &row : report["stages"]["doubts"]["rows"]) {
        asked.insert(row["subject"]);
        CHECK(row["verdict"] != "WRONG");
        CHECK(!row["detail"].get<std::string>().empty());
    }
    CHECK(asked == std::set<std::string>{"read bandwidth", "reads beside a stream",
                                         "experts fetched by a kernel", "launches recorded as dependent",
                                         "edge of a launch", "carve-out", "early trigger",
                                         "barrier of the grid", "zero products in an mma", "sums of an mma"});
    const json &switches = report["stages"]["switches"]["rows"];
    REQUIRE(switches.size() == 2);
    CHECK(switches[0]["off"] == "");
    CHECK(switches[1]["off"] == "pdl");
    for (const json &row : switches) {
        CHECK(row["same_text"] == true);
        CHECK(row["decode_tps"].get<double>() > 0);
    }
    const json &families = report["stages"]["families"]["rows"];
    REQUIRE(families.size() == 2);
    CHECK(families[0]["kl"].get<double>() < 1e-4);  // the CPU against itself, rounded in the file
    CHECK(families[0]["same_tokens"] == families[0]["tokens"]);
    const json &bench = report["stages"]["bench"]["rows"][0];
    CHECK(bench["decode_tps"].get<double>() > 0);
    CHECK(bench["prefill_tps"].get<double>() > 0);
    REQUIRE(bench.contains("launches"));
    CHECK(bench["launches"].is_null());  // the CPU launches no kernels
    CHECK(bench["batch_gain"].get<double>() > 0);
    CHECK(bench["load_ms"].get<double>() > 0);
    const std::string table = text_of(directory / "out" / "gpu-check.md");
    CHECK(table.find("| tiny | Q8_0 |") != std::string::npos);
    CHECK(table.find("No problems.") != std::string::npos);
}
