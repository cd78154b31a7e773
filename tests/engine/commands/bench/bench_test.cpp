// `bench`: lists of values, output formats, and the counted bytes. Speeds depend on the machine and are not
// checked.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/engine/commands/program_support.h"

using namespace runnel::testing;
using nlohmann::json;

namespace {

Result bench(std::vector<std::string> more) {
    std::vector<std::string> arguments = {"bench", tiny().path.string(), "-r", "2", "--device", "cpu"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return runnel_with(std::move(arguments));
}

std::vector<std::string> lines(const std::string &text) {
    std::vector<std::string> all;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
}

// The kinds of values of a test in JSON; '?' may also be null.
const std::vector<std::pair<const char *, const char *>> kTestSchema = {{"test", "string"},
                                                                        {"kind", "string"},
                                                                        {"tokens", "number"},
                                                                        {"prompt", "number"},
                                                                        {"generate", "number"},
                                                                        {"depth", "number"},
                                                                        {"sequences", "number"},
                                                                        {"gain", "number?"},
                                                                        {"tps_mean", "number"},
                                                                        {"tps_sd", "number"},
                                                                        {"tps", "array"},
                                                                        {"ttft_ms", "number?"},
                                                                        {"bytes_per_token", "number?"},
                                                                        {"bandwidth_share", "number?"},
                                                                        {"fits_cache", "boolean?"},
                                                                        {"launches_per_token", "number?"},
                                                                        {"operations_per_second", "number?"},
                                                                        {"tensor_share", "number?"},
                                                                        {"threads", "number"},
                                                                        {"batch", "number"},
                                                                        {"gpu_layers", "string"},
                                                                        {"type_k", "string"},
                                                                        {"type_v", "string"}};

void check_test(const json &test) {
    CAPTURE(test.dump());
    for (const auto &[key, kind] : kTestSchema) {
        REQUIRE(test.contains(key));
        const std::string wanted = kind, found = test[key].type_name();
        const bool may_lack = wanted.ends_with('?');
        CAPTURE(key);
        CHECK((found == (may_lack ? wanted.substr(0, wanted.size() - 1) : wanted) ||
               (may_lack && found == "null")));
    }
}

}  // namespace

TEST_CASE("bench: every combination of the listed values is measured") {
    if (absent()) return;
    const Result got = bench({"-p", "4,6", "-n", "3",     "-pg",  "5,2",      "-pg",  "4,3", "-d", "0,8",
                              "-t", "1,2", "-b", "16,32", "-ctk", "f16,bf16", "-ctv", "fp8", "-o", "json"});
    CAPTURE(got.err);
    REQUIRE(got.code == 0);
    const json all = json::parse(got.out);
    for (const char *key : {"model", "device", "placement", "bandwidth_of"}) CHECK(all[key].is_string());
    for (const char *key : {"bandwidth_bytes_per_second", "load_ms", "repetitions"})
        CHECK(all[key].is_number());
    // 2 x 2 x 2 settings, 2 depths, 5 tests.
    REQUIRE(all["tests"].size() == 80);
    std::set<std::string> different;
    for (const json &test : all["tests"]) {
        check_test(test);
        CHECK(test["tps"].size() == 2);
        CHECK(test["tps_mean"] > 0);
        CHECK(test["tokens"] == test["prompt"].get<int>() + test["generate"].get<int>());
        CHECK(test["type_v"] == "fp8");
        different.insert(test["test"].get<std::string>() + test["threads"].dump() + test["batch"].dump() +
                         test["type_k"].dump());
    }
    CHECK(different.size() == 80);
    for (const char *name : {"pp4", "pp6 @ d8", "tg3", "pp5+tg2", "pp4+tg3 @ d8"})
        CHECK(different.contains(name + std::string("216\"bf16\"")));
}

TEST_CASE("bench: Markdown, CSV, JSON lines and the table have the same tests") {
    if (absent()) return;
    const std::vector<std::string> tests = {"-p", "4", "-n", "3", "-pg", "5,2", "-t", "1,2"};
    const auto with = [&](const char *format) {
        std::vector<std::string> arguments = tests;
        arguments.insert(arguments.end(), {"-o", format});
        const Result got = bench(arguments);
        CAPTURE(got.err);
        REQUIRE(got.code == 0);
        return lines(got.out);
    };
    const auto rows = with("jsonl");
    REQUIRE(rows.size() == 6);
    for (const std::string &row : rows) {
        const json test = json::parse(row);
        check_test(test);
        CHECK(test["model"] == tiny().path.string());
    }
    const auto csv = with("csv");
    REQUIRE(csv.size() == 7);
    CHECK(csv[0].starts_with("model,device,gpu_layers,threads,batch,type_k,type_v,test,"));
    const auto columns = std::count(csv[0].begin(), csv[0].end(), ',');
    for (const std::string &line : csv) {
        int64_t commas = 0;
        bool quoted = false;
        for (const char c : line) {
            quoted ^= c == '"';
            commas += c == ',' && !quoted;
        }
        CHECK(commas == columns);
    }
    const auto md = with("md");
    REQUIRE(md.size() == 8);
    for (const std::string &line : md)
        CHECK(std::count(line.begin(), line.end(), '|') == std::count(md[0].begin(), md[0].end(), '|'));
    const auto table = with("table");
    CHECK(std::count(table.begin(), table.end(), "threads 1") == 1);
    CHECK(std::count(table.begin(), table.end(), "threads 2") == 1);
}

TEST_CASE("bench: lists that make no sense are refused") {
    if (absent()) return;
    CHECK(bench({"-t", "1,x"}).code == 2);
    CHECK(bench({"-ctk", "f16,f17"}).code == 2);
    CHECK(bench({"-pg", "5"}).code == 2);
    CHECK(bench({"-pg", "0,5"}).code == 2);
    CHECK(bench({"-o", "xml"}).code == 2);
    CHECK(bench({"-p", "0,0", "-n", "0"}).code == 2);
    CHECK(bench({"--lookup", "-o", "csv"}).code == 2);
    CHECK(bench({"--lookup", "-t", "1,2"}).code == 2);
    CHECK(bench({"--lookup", "-n", "8,9"}).code == 2);
}

TEST_CASE("bench: bytes per token respect the window; a model in the CPU's cache has no bandwidth share") {
    if (absent()) return;
    const auto decode = [](std::vector<std::string> more) {
        more.insert(more.end(), {"-p", "0", "-n", "4", "-d", "100,400", "-r", "1", "--json"});
        const Result got = bench(more);
        CAPTURE(got.err);
        REQUIRE(got.code == 0);
        return json::parse(got.out);
    };
    const json full = decode({}), window = decode({"--window", "32"});
    // 2 layers, 2 heads, 16 + 16 values of 2 bytes; the mean of 4 tokens sees depth + 2.5 cells.
    constexpr double kCell = 2 * 2 * 32 * 2;
    CHECK(full["tests"][1]["bytes_per_token"].get<double>() -
              full["tests"][0]["bytes_per_token"].get<double>() ==
          doctest::Approx(300 * kCell));
    CHECK(full["tests"][0]["bytes_per_token"].get<double>() -
              window["tests"][0]["bytes_per_token"].get<double>() ==
          doctest::Approx((102.5 - 32) * kCell));
    CHECK(window["tests"][0]["bytes_per_token"] == window["tests"][1]["bytes_per_token"]);
    for (const json &test : full["tests"]) {
        const bool fits = !full["cache_bytes"].is_null() &&
                          test["bytes_per_token"].get<double>() <= full["cache_bytes"].get<double>();
        CHECK(test["fits_cache"] == fits);
        CHECK(test["bandwidth_share"].is_null() == fits);
    }
}
