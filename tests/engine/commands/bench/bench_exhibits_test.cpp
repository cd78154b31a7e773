// `bench --roofline` and `--naive`: their counts, compared with sums computed by hand, and their output.
// Speeds depend on the machine and are not checked.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/engine/commands/program_support.h"
#include "tests/support/demo_model.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
using nlohmann::json;

namespace {

Result bench(std::vector<std::string> more) {
    std::vector<std::string> arguments = {"bench", tiny().path.string(), "--device", "cpu"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return runnel_with(std::move(arguments));
}

json parsed(const Result &got) {
    CAPTURE(got.err);
    REQUIRE(got.code == 0);
    return json::parse(got.out);
}

std::string content(const std::filesystem::path &path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

// All lines fit a terminal.
void check_width(const std::string &text) {
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) {
        if (line.find("GB/s") != std::string::npos || line.starts_with("CPU"))
            continue;  // names of the machine
        CAPTURE(line);
        CHECK(std::count_if(line.begin(), line.end(),
                            [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }) <= 80);
    }
}

}  // namespace

TEST_CASE("bench --roofline: counted bytes and operations, times, verdicts and the picture") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string svg = (directory / "roof.svg").string();
    const json all =
        parsed(bench({"--roofline", "-pg", "20,9", "-r", "1", "-c", "64", "--json", "--plot", svg}));
    for (const char *key : {"model", "device", "bandwidth_of", "multiply_of"}) CHECK(all[key].is_string());
    CHECK(all["fits_cache"].is_boolean());
    const double bandwidth = all["bandwidth_bytes_per_second"], rate = all["multiply_operations_per_second"];
    CHECK(bandwidth > 0);
    CHECK(rate > 0);
    CHECK(all["ridge"].get<double>() == doctest::Approx(rate / bandwidth));
    // 8 tokens after the first.
    std::vector<double> steps = all["steps_ms"];
    REQUIRE(steps.size() == 8);
    std::sort(steps.begin(), steps.end());
    double sum = 0;
    for (const double step : steps) sum += step;
    CHECK(all["tpot_ms"]["mean"].get<double>() == doctest::Approx(sum / 8));
    CHECK(all["tpot_ms"]["p50"].get<double>() == doctest::Approx(steps[3]));
    CHECK(all["tpot_ms"]["p95"].get<double>() == doctest::Approx(steps[7]));
    CHECK(all["decode_share"].get<double>() == doctest::Approx(sum / (sum + all["ttft_ms"].get<double>())));
    // Prefills of 1, 2, 4 ... 64 tokens, and decoding.
    const json &points = all["points"];
    REQUIRE(points.size() == 8);
    constexpr double kCell = 2 * 2 * 32 * 2;         // 2 layers, 2 heads, 16 + 16 values of 2 bytes
    constexpr double kPair = 2 * 4 * 2 * (16 + 16);  // 2 layers, 4 heads: operations of a query and a key
    for (size_t i = 0; i < 7; ++i) {
        const double tokens = std::pow(2, static_cast<double>(i));
        CAPTURE(tokens);
        CHECK(points[i]["phase"] == "prefill");
        CHECK(points[i]["tokens"] == tokens);
        CHECK(points[i]["cache_bytes"] == 2 * kCell * tokens);
        CHECK(points[i]["attention_operations"] == kPair * tokens * (tokens + 1) / 2);
    }
    CHECK(points[7]["phase"] == "decode");
    // Tokens at 20 ... 27 see 21 ... 28 cells, and each writes one.
    CHECK(points[7]["cache_bytes"].get<double>() == doctest::Approx(25.5 * kCell));
    CHECK(points[7]["attention_operations"].get<double>() == doctest::Approx(24.5 * kPair));
    for (const json &point : points) {
        const double intensity = point["operations"].get<double>() / point["bytes"].get<double>();
        CHECK(point["intensity"].get<double>() == doctest::Approx(intensity));
        CHECK(point["roof_operations_per_second"].get<double>() ==
              doctest::Approx(std::min(bandwidth * intensity, rate)));
        CHECK((point["limit"] == "memory") == (intensity < rate / bandwidth));
    }
    const std::string picture = content(svg);
    CHECK(picture.starts_with("<svg xmlns"));
    for (const char *part :
         {"operations per byte", "operations per second", "prefill of 1 to 64 tokens", "roof: "})
        CHECK(picture.find(part) != std::string::npos);

    const Result table = bench({"--roofline", "-pg", "20,4", "-r", "1", "-c", "32"});
    REQUIRE(table.code == 0);
    for (const char *part : {"ridge point", "first token after", "p95", "operations per byte"})
        CHECK(table.out.find(part) != std::string::npos);
    check_width(table.out);
}

TEST_CASE("bench --naive: recomputing gives the same text, and its work grows as counted") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string svg = (directory / "naive.svg").string();
    const json all = parsed(bench({"--naive", "-n", "40", "--json", "--plot", svg}));
    CHECK(all["same_text"] == true);
    CHECK(all["text"].size() == 41);
    REQUIRE(all["steps"].size() == 40);
    double cached = 0, naive = 0;
    const double weights = all["steps"][0]["cached"]["operations"].get<double>() - 2 * 4 * 2 * 32;
    for (size_t i = 0; i < 40; ++i) {
        const json &step = all["steps"][i];
        const double length = static_cast<double>(i) + 1;
        CHECK(step["length"] == length);
        // 2 layers of 4 heads: one row of the causal triangle, or all of it.
        CHECK(step["cached"]["scores"] == 8 * length);
        CHECK(step["recomputed"]["scores"] == 8 * length * (length + 1) / 2);
        // A score and its value: 2 * (16 + 16) operations.
        CHECK(step["cached"]["operations"].get<double>() == doctest::Approx(weights + 8 * length * 64));
        cached += step["cached"]["ms"].get<double>(), naive += step["recomputed"]["ms"].get<double>();
    }
    CHECK(all["cached_ms"].get<double>() == doctest::Approx(cached));
    CHECK(all["recomputed_ms"].get<double>() == doctest::Approx(naive));
    CHECK(all["cached_exponent"].is_number());
    CHECK(all["recomputed_exponent"].is_number());
    CHECK(content(svg).find("milliseconds per token") != std::string::npos);
    // The same text again, from pieces of a prefill.
    const json pieces = parsed(bench({"--naive", "-n", "40", "-b", "7", "--json"}));
    CHECK(pieces["text"] == all["text"]);
    CHECK(pieces["same_text"] == true);

    const Result table = bench({"--naive", "-n", "20"});
    REQUIRE(table.code == 0);
    CHECK(table.out.find("both loops gave the same text") != std::string::npos);
    check_width(table.out);
}

TEST_CASE(
    "bench: --roofline and --naive refuse other options, and do not overwrite files that runnel did not "
    "make") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string mine = (directory / "mine.svg").string();
    std::ofstream(mine) << "precious";
    CHECK(bench({"--naive", "--roofline"}).code == 2);
    CHECK(bench({"--naive", "-n", "1"}).code == 2);
    CHECK(bench({"--naive", "-n", "8", "-c", "4"}).code == 2);
    CHECK(bench({"--naive", "-n", "8,9"}).code == 2);
    CHECK(bench({"--naive", "-t", "1,2"}).code == 2);
    CHECK(bench({"--naive", "--lookup"}).code == 2);
    CHECK(bench({"--naive", "-d", "5"}).code == 2);
    CHECK(bench({"--naive", "-o", "csv"}).code == 2);
    CHECK(bench({"--roofline", "-pg", "5,1"}).code == 2);
    CHECK(bench({"--roofline", "--plot", "picture.png"}).code == 2);
    CHECK(bench({"--plot", mine}).code == 2);
    CHECK(bench({"--naive", "-n", "4", "--plot", mine}).code == 2);
    CHECK(content(mine) == "precious");
    CHECK(bench({"--naive", "-n", "4", "--plot", mine, "--overwrite"}).code == 0);
    CHECK(bench({"--naive", "-n", "4", "--plot", mine}).code == 0);  // its own
    CHECK(content(mine).starts_with("<svg"));
}

TEST_CASE("bench --profile: every step of the passes is counted, and the parts are the whole") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string svg = (directory / "profile.svg").string();
    for (const char *threads : {"1", "3"}) {
        const json all = parsed(bench(
            {"--profile", "-pg", "20,9", "-t", threads, "-ub", "8", "-c", "64", "--json", "--plot", svg}));
        CHECK(all["prefill"]["tokens"] == 20);
        CHECK(all["prefill"]["passes"] == 3);
        CHECK(all["decode"]["tokens"] == 8);  // the prefill gives the first, and the last needs no pass
        CHECK(all["decode"]["passes"] == 8);
        for (const char *phase : {"prefill", "decode"}) {
            const json &part = all[phase];
            double sum = 0, share = 0;
            for (const json &one : part["parts"]) {
                sum += one["ms"].get<double>();
                share += one["share"].get<double>();
                CHECK(one["waited_ms"] <= one["ms"].get<double>() + 1e-6);
            }
            CHECK(sum == doctest::Approx(part["ms"].get<double>()));
            CHECK(share == doctest::Approx(1));
        }
        // Per pass and layer of this model: Q with K and V, the output, gate with up, down.
        const auto layers = all["decode"]["layers_ms"].size();
        CHECK(layers == 2);
        int64_t matrices = 0, attentions = 0, logits = 0;
        for (const json &one : all["decode"]["parts"]) {
            if (one["kind"] == "matrix") matrices = one["count"];
            if (one["kind"] == "attention") attentions = one["count"];
            if (one["kind"] == "logits") logits = one["count"];
        }
        CHECK(matrices == 8 * 4 * static_cast<int64_t>(layers));
        CHECK(attentions == 8 * static_cast<int64_t>(layers));
        CHECK(logits == 8);
    }
    CHECK(content(svg).starts_with("<svg xmlns"));
    const Result table = bench({"--profile", "-pg", "20,9", "-c", "64"});
    CHECK(table.code == 0);
    check_width(table.out);
    CHECK(bench({"--profile", "-pg", "20,1"}).code == 2);
    CHECK(bench({"--profile", "--naive"}).code == 2);
}
