// `bench --roofline` and `--naive`: their counts, compared with sums computed by hand, and their output.
// Speeds depend on the machine and are not checked.
#include <doctest/doctest.h>
#include <signal.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/engine/commands/program_support.h"
#include "tests/support/demo_model.h"
#include "tests/support/model_maker.h"
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
    CHECK(bench({"--naive", "-n", "4", "--plot", mine}).code == 0);  // bench wrote it
    CHECK(content(mine).starts_with("<svg"));
}

TEST_CASE("bench --profile: every step of the passes is counted, and the parts add up to the whole") {
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

namespace {

// Nearest rank, by counting.
double percentile_of(const std::vector<double> &values, double percent) {
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 0; i < sorted.size(); ++i)
        if (100.0 * static_cast<double>(i + 1) >= percent * static_cast<double>(sorted.size()) - 1e-9)
            return sorted[i];
    return sorted.back();
}

void check_percentiles(const json &shown, const std::vector<double> &recorded) {
    double sum = 0;
    for (const double value : recorded) sum += value;
    CHECK(shown["mean"].get<double>() == doctest::Approx(sum / static_cast<double>(recorded.size())));
    CHECK(shown["p50"].get<double>() == doctest::Approx(percentile_of(recorded, 50)));
    CHECK(shown["p95"].get<double>() == doctest::Approx(percentile_of(recorded, 95)));
    CHECK(shown["p99"].get<double>() == doctest::Approx(percentile_of(recorded, 99)));
}

// One row of --batching against the times of its requests.
void check_batching_row(const json &row, size_t requests, size_t generate) {
    REQUIRE(row["requests"].size() == requests);
    std::vector<double> waits, first, between;
    double end = 0;
    for (const json &one : row["requests"]) {
        const double arrival = one["arrival_ms"], wait = one["wait_ms"], ttft = one["ttft_ms"];
        CHECK(wait >= 0);
        CHECK(ttft >= wait);
        REQUIRE(one["tokens_ms"].size() == generate - 1);
        double last = arrival + ttft;
        for (const double ms : one["tokens_ms"]) between.push_back(ms), last += ms;
        waits.push_back(wait), first.push_back(ttft);
        end = std::max(end, last);
    }
    check_percentiles(row["wait_ms"], waits);
    check_percentiles(row["ttft_ms"], first);
    check_percentiles(row["tpot_ms"], between);
    const double seconds = row["seconds"];
    CHECK(seconds * 1e3 == doctest::Approx(end));
    CHECK(row["requests_per_second"].get<double>() ==
          doctest::Approx(static_cast<double>(requests) / seconds));
    CHECK(row["tokens_per_second"].get<double>() ==
          doctest::Approx(static_cast<double>(requests * generate) / seconds));
    CHECK(row["preemptions"] == 0);
    CHECK(row["sequences_per_step"].get<double>() <= row["parallel"].get<double>());
}

}  // namespace

TEST_CASE("bench --batching: percentiles and rates are those of the recorded times") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string svg = (directory / "batching.svg").string();
    const json closed = parsed(
        bench({"--batching", "--parallel", "1,3", "-pg", "5,6", "--requests", "9", "--json", "--plot", svg}));
    for (const char *key : {"model", "device"}) CHECK(closed[key].is_string());
    CHECK(closed["prompt"] == 5);
    CHECK(closed["complete"] == true);
    CHECK(closed["generate"] == 6);
    REQUIRE(closed["rows"].size() == 2);
    for (const json &row : closed["rows"]) {
        CHECK(row["rate"].is_null());
        check_batching_row(row, 9, 6);
    }
    CHECK(closed["rows"][0]["parallel"] == 1);
    CHECK(closed["rows"][0]["sequences_per_step"] == 1);
    CHECK(closed["rows"][1]["sequences_per_step"].get<double>() > 1);
    CHECK(content(svg).find("milliseconds from token to token") != std::string::npos);

    const json open = parsed(bench({"--batching", "--parallel", "2", "--rate", "200,400", "-pg", "5,4",
                                    "--requests", "8", "--json", "--plot", svg}));
    REQUIRE(open["rows"].size() == 2);
    CHECK(content(svg).find("requests arriving per second") != std::string::npos);
    std::vector<double> slow, fast;
    for (const json &row : open["rows"]) check_batching_row(row, 8, 4);
    CHECK(open["rows"][1]["rate"] == 400);
    for (const json &one : open["rows"][0]["requests"]) slow.push_back(one["arrival_ms"]);
    for (const json &one : open["rows"][1]["requests"]) fast.push_back(one["arrival_ms"]);
    std::sort(slow.begin(), slow.end()), std::sort(fast.begin(), fast.end());
    CHECK(slow[0] == 0);
    for (size_t i = 1; i < slow.size(); ++i) CHECK(slow[i] == doctest::Approx(2 * fast[i]));

    const Result table = bench({"--batching", "--parallel", "1,2", "-pg", "5,4", "--requests", "4"});
    REQUIRE(table.code == 0);
    for (const char *part : {"TTFT", "TPOT", "wait", "tok/s", "2 at a time"})
        CHECK(table.out.find(part) != std::string::npos);
    check_width(table.out);
    CHECK(bench({"--batching", "-pg", "5,1"}).code == 2);
    CHECK(bench({"--batching", "-pg", "5,6", "-c", "8"}).code == 2);
    CHECK(bench({"--batching", "--naive"}).code == 2);
    CHECK(bench({"--batching", "-d", "5"}).code == 2);
    CHECK(bench({"--rate", "5"}).code == 2);
    CHECK(bench({"--batching", "--rate", "0"}).code == 2);
}

TEST_CASE("bench --compare: gains are medians over the repetitions, and quality is what perplexity reports") {
    if (absent()) return;
    ModelShape shape;
    shape.type = "Q8_0";
    const TemporaryModel other(shape);
    const TemporaryDirectory directory;
    const std::string text = held_out_text().string(), logits = (directory / "base").string(),
                      svg = (directory / "compare.svg").string();
    const json all = parsed(bench(
        {"--compare", other.path.string(), "-pg", "9,4", "-r", "3", "-f", text, "--json", "--plot", svg}));
    const json &models = all["models"];
    REQUIRE(models.size() == 2);
    CHECK(models[0]["model"] == tiny().path.string());
    CHECK(models[1]["model"] == other.path.string());
    CHECK(models[0]["weight_bytes"] > models[1]["weight_bytes"]);
    for (const json &one : models)
        for (const char *phase : {"prefill", "decode"}) {
            const std::string rates = std::string(phase) + "_tps", gain = std::string(phase) + "_gain";
            REQUIRE(one[rates].size() == 3);
            std::vector<double> ratios;
            for (size_t i = 0; i < 3; ++i)
                ratios.push_back(one[rates][i].get<double>() / models[0][rates][i].get<double>());
            std::sort(ratios.begin(), ratios.end());
            CHECK(one[gain].get<double>() == doctest::Approx(ratios[1]));
        }
    CHECK(!models[0].contains("mean_kl"));
    // The same numbers by another way: through a file of rounded logits.
    const auto perplexity = [&](const std::string &model, std::vector<std::string> more) {
        more.insert(more.begin(), {"perplexity", model, "-c", "256", "--device", "cpu", "--json"});
        return parsed(runnel_with(more));
    };
    const json first = perplexity(tiny().path.string(), {"-f", text, "--save-logits", logits}),
               second = perplexity(other.path.string(), {"--kl-base", logits});
    CHECK(models[0]["perplexity"].get<double>() == doctest::Approx(first["perplexity"].get<double>()));
    CHECK(models[0]["tokens"] == first["tokens"]);
    CHECK(models[1]["perplexity"].get<double>() == doctest::Approx(second["perplexity"].get<double>()));
    CHECK(models[1]["mean_kl"].get<double>() ==
          doctest::Approx(second["mean_kl"].get<double>()).epsilon(0.05));
    CHECK(models[1]["top1_agreement"].get<double>() ==
          doctest::Approx(second["top1_agreement"].get<double>()).epsilon(0.02));
    CHECK(content(svg).find("tokens per second of decode") != std::string::npos);
    check_width(bench({"--compare", other.path.string(), "-pg", "9,4", "-r", "1"}).out);
    CHECK(bench({"--compare", "absent.gguf"}).code != 0);
    CHECK(bench({"--compare", other.path.string(), "--naive"}).code == 2);
}

TEST_CASE("bench --attention: counts of every pass, all shapes, the picture, and what it refuses") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string svg = (directory / "attention.svg").string();
    // The model: 2 layers, 4 heads of 16 values over 2 K/V heads.
    const json all = parsed(bench({"--attention", "-d", "40,9", "--window", "8", "-r", "1", "-t", "2", "-ctv",
                                   "q8_0", "--json", "--plot", svg}));
    for (const char *key : {"model", "device", "cache_type_k", "cache_type_v"}) CHECK(all[key].is_string());
    CHECK(all["layers"] == 2);
    CHECK(all["heads"] == 4);
    CHECK(all["kv_heads"] == 2);
    CHECK(all["cache_type_v"] == "q8_0");
    CHECK(all["window"] == 8);
    CHECK(all["largest_difference"].get<double>() < 1e-4);
    CHECK(all["rows"].size() == 2 * (3 + 5));
    for (const json &row : all["rows"]) {
        const double depth = row["depth"], tokens = row["tokens"], window = row["window"];
        CHECK((depth == 9 || depth == 40));
        double pairs = 0;
        for (double own = depth + 1; own <= depth + tokens; ++own)
            pairs += window > 0 ? std::min(window, own) : own;
        CHECK(row["scores"] == 4 * pairs);
        CHECK(row["operations"] == 4 * pairs * 2 * (16 + 16));
        const double cells = window > 0 ? std::min(window + tokens - 1, depth + tokens) : depth + tokens;
        CHECK(row["cache_bytes"] == cells * row["kv_heads"].get<double>() * (32 + 34));
        CHECK(row["matrix_bytes"] == (row["fused"] == true ? 0 : 16 * 4 * pairs));
        CHECK(row["bytes"].get<double>() == row["cache_bytes"].get<double>() +
                                                row["row_bytes"].get<double>() +
                                                row["matrix_bytes"].get<double>());
        CHECK(row["us_per_token"].get<double>() == doctest::Approx(row["us"].get<double>() / tokens));
        CHECK(row["own"] == (row["kv_heads"] == 2));
    }
    for (const char *part :
         {"microseconds per token and layer", "depth: tokens", "GQA 2 (the model)", "window 8"})
        CHECK(content(svg).find(part) != std::string::npos);
    const Result table = bench({"--attention", "-d", "9,40", "-r", "1"});
    REQUIRE(table.code == 0);
    for (const char *part : {"unfused", "MQA 1", "largest difference"})
        CHECK(table.out.find(part) != std::string::npos);
    check_width(table.out);
    CHECK(bench({"--attention", "-p", "5"}).code == 2);
    CHECK(bench({"--attention", "-pg", "5,5"}).code == 2);
    CHECK(bench({"--attention", "-d", "9999999"}).code == 2);
    CHECK(bench({"--attention", "--naive"}).code == 2);
}

TEST_CASE("bench: a mode refuses -p and -n that it does not use, also with their default values") {
    if (absent()) return;
    for (const char *mode : {"--roofline", "--profile", "--batching", "--attention"}) {
        CAPTURE(mode);
        CHECK(bench({mode, "-p", "512"}).code == 2);
        CHECK(bench({mode, "-n", "128"}).code == 2);
    }
    CHECK(bench({"--naive", "-p", "512"}).code == 2);
    CHECK(bench({"--naive", "-pg", "5,5"}).code == 2);
    // The default tests are 512 and 128 tokens; an option replaces its own default only.
    const json both = parsed(bench({"-p", "3", "-n", "0", "-r", "1", "--json"}));
    CHECK(both.dump().find("pp3") != std::string::npos);
    CHECK(both.dump().find("tg128") == std::string::npos);
}

TEST_CASE("bench --batching: after Ctrl-C the finished rows are printed, exit code 130") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string svg = (directory / "rows.svg").string();
    // The second request of the second row arrives after hours.
    Process p =
        process({"bench", tiny().path.string(), "--device", "cpu", "-t", "1", "--batching", "--parallel", "1",
                 "--rate", "1000,0.001", "--requests", "4", "-pg", "5,4", "--plot", svg});
    p.terminal = true;
    p.environment = {"LC_ALL=C"};
    bool sent = false;
    p.watch = [&](const std::string &shown, int pid) {
        if (sent || shown.find("0.001 per second: 1 of 4") == std::string::npos) return;
        sent = true;
        kill(pid, SIGINT);
    };
    const Result r = execute(p);
    CAPTURE(r.out);
    CHECK(sent);
    CHECK(r.code == 130);
    CHECK(r.out.find("interrupted: 1 of 2 rows") != std::string::npos);
    CHECK(r.out.find("tok/s") != std::string::npos);
    CHECK(content(svg).find("requests arriving per second") != std::string::npos);
    // Before the first row there is nothing to print.
    p.arguments[10] = "0.001,1000";
    sent = false;
    const Result none = execute(p);
    CHECK(sent);
    CHECK(none.code == 130);
    CHECK(none.out.find("tok/s") == std::string::npos);
}

TEST_CASE("bench --compare-lists: K/V types side by side, with the divergence that perplexity finds") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string text = held_out_text().string(), logits = (directory / "base").string();
    const json all = parsed(bench({"--compare-lists", "-ctk", "f16,q4_0", "-ctv", "f16", "-pg", "9,4", "-r",
                                   "2", "-f", text, "--json"}));
    const json &models = all["models"];
    REQUIRE(models.size() == 2);
    CHECK(models[0]["cache_type_k"] == "f16");
    CHECK(models[1]["cache_type_k"] == "q4_0");
    CHECK(models[1]["cache_type_v"] == "f16");
    CHECK(models[1]["name"].get<std::string>().ends_with(", K q4_0"));
    CHECK(models[1]["mean_kl"].get<double>() > 0);
    const auto perplexity = [&](std::vector<std::string> more) {
        more.insert(more.begin(),
                    {"perplexity", tiny().path.string(), "-c", "256", "--device", "cpu", "--json"});
        return parsed(runnel_with(more));
    };
    perplexity({"-f", text, "--save-logits", logits});
    const json other = perplexity({"--kl-base", logits, "-ctk", "q4_0"});
    CHECK(models[1]["perplexity"].get<double>() == doctest::Approx(other["perplexity"].get<double>()));
    const Result table =
        bench({"--compare-lists", "-ctk", "f16,q8_0", "-ctv", "f16,q8_0", "-pg", "9,4", "-r", "1"});
    REQUIRE(table.code == 0);
    for (const char *name : {"K f16, V f16", "K f16, V q8_0", "K q8_0, V f16", "K q8_0, V q8_0"})
        CHECK(table.out.find(name) != std::string::npos);
    CHECK(bench({"--compare-lists"}).code == 2);
    CHECK(bench({"--compare", tiny().path.string(), "-ctk", "f16,q8_0"}).code ==
          2);  // lists need their own flag
}

TEST_CASE("bench --experts: what a GPU with fewer experts fetches, the picture, and what it refuses") {
    if (absent()) return;
    ModelShape shape;
    shape.arch = "qwen3moe";
    shape.layers = 2;
    shape.experts.count = 16;
    shape.experts.used = 3;
    const TemporaryModel mixture(shape);
    const TemporaryDirectory directory;
    const std::string text = (directory / "text.txt").string(), svg = (directory / "experts.svg").string();
    std::ofstream(text)
        << "The small river runs behind the old house, and every evening the children play there.";
    const auto experts = [&](std::vector<std::string> more) {
        std::vector<std::string> arguments = {"bench", mixture.path.string(), "--experts"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return runnel_with(std::move(arguments));
    };
    const json all = parsed(experts({"-f", text, "--json", "--plot", svg}));
    CHECK(all["experts"] == 16);
    CHECK(all["used"] == 3);
    CHECK(all["layers"] == 2);
    const size_t tokens = all["tokens"];
    CHECK(tokens > 20);
    CHECK(all["not_counted"] == tokens / 4);
    const json &rows = all["rows"];
    std::vector<int> held;
    for (const json &row : rows) {
        held.push_back(row["gpu_experts"]);
        CHECK(row["chosen"] == 6);
        CHECK(row["gpu_bytes"].get<double>() ==
              doctest::Approx(all["expert_bytes"].get<double>() * held.back() / 16));
        CHECK(row["fetched_bytes"].get<double>() / row["fetched"].get<double>() ==
              doctest::Approx(all["chosen_bytes"].get<double>() / 6));
    }
    CHECK(held == std::vector<int>{3, 4, 6, 8, 10, 12, 14, 16});
    CHECK(rows[0]["fetched"] > rows[7]["fetched"]);
    CHECK(content(svg).find("<svg") != std::string::npos);
    Result shown = experts({"-f", text});
    CHECK(shown.out.find("2 layers with 16 experts") == 0);
    REQUIRE(shown.out.find(text) != std::string::npos);
    check_width(shown.out.erase(shown.out.find(text), text.size()));
    CHECK(experts({}).err.find("--experts needs a text such as the model will read: -f FILE") !=
          std::string::npos);
    CHECK(experts({"-f", text, "--device", "cuda"}).code == 2);
    CHECK(bench({"--experts", "-f", text}).err.find("the model has no experts") != std::string::npos);
    std::ofstream(text, std::ios::trunc) << "a";
    const Result little = experts({"-f", text});
    CHECK(little.code == 5);
    CHECK(little.err.find("--experts: the text has fewer than 4 tokens") != std::string::npos);
}
