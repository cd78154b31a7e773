// `bench --trace`: the forms of traces, what is refused, and the replay from outside.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "engine/commands/bench/request_trace.h"
#include "engine/commands/io.h"
#include "engine/commands/paging_report.h"
#include "tests/engine/commands/program_support.h"
#include "tests/support/data.h"
#include "tests/support/random.h"
#include "tests/support/temporary.h"

using namespace runnel::commands;
using namespace runnel::testing;
using nlohmann::json;

namespace {

constexpr int32_t kPage = 4;

// A token per byte.
RequestTrace parse(const std::string &text) {
    return parse_trace(text, "t", kPage, [](std::string_view prompt) {
        return std::vector<int32_t>(prompt.begin(), prompt.end());
    });
}

std::string refusal(const std::string &text) {
    try {
        parse(text);
    } catch (const InputError &error) {
        return error.what();
    }
    return "accepted";
}

}  // namespace

TEST_CASE("request trace: CSV with dates, seconds, and neither") {
    const RequestTrace dates = parse(
        "\xef\xbb\xbfTIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 23:59:59.5000000,7,3\r\n\r\n2023-11-17T00:00:01.25,9,0\r\n2023-11-16 23:59:58.5,1,2");
    CHECK(dates.has_arrivals);
    REQUIRE(dates.requests.size() == 3);
    CHECK(dates.requests[0] == TracedRequest{0, 1, 2});
    CHECK(dates.requests[1] == TracedRequest{1, 7, 3});
    CHECK(dates.requests[2] == TracedRequest{2.75, 9, 0});

    const RequestTrace seconds =
        parse("model, arrival ,\"completion_tokens\",prompt_tokens,max_tokens\na,5.5,3,4,10\nb,5.5,1,2,\n");
    CHECK(seconds.requests == std::vector<TracedRequest>{{0, 4, 3, 10}, {0, 2, 1}});

    const RequestTrace neither = parse("prompt_tokens,completion_tokens\n4,3\n");
    CHECK(!neither.has_arrivals);
    CHECK(neither.requests == std::vector<TracedRequest>{{0, 4, 3}});
}

TEST_CASE("request trace: JSON lines of Mooncake, of answers, and of prompts") {
    const RequestTrace mooncake =
        parse(R"({"timestamp": 2500, "input_length": 1030, "output_length": 2, "hash_ids": [7, 8, 9]})"
              "\n"
              R"({"timestamp": 500, "input_length": 600, "output_length": 1, "hash_ids": [7, 5]})");
    CHECK(mooncake.has_arrivals);
    CHECK(mooncake.has_beginnings);
    REQUIRE(mooncake.requests.size() == 2);
    const TracedRequest &first = mooncake.requests[0], &second = mooncake.requests[1];
    CHECK(first.prompt == 600);
    CHECK(second.arrival == 2);
    CHECK(first.beginning.size() == 150);   // full pages of 4 in 600
    CHECK(second.beginning.size() == 257);  // the last page of 1,030 is not full
    for (size_t i = 0; i < 150; ++i) CHECK((first.beginning[i] == second.beginning[i]) == (i < 128));

    const RequestTrace answers = parse(
        R"({"line": 1, "prompt_tokens": 4, "completion_tokens": 3, "text": "x"})"
        "\n"
        R"({"line": 2, "error": {"message": "no"}})"
        "\n"
        R"({"custom_id": "a", "error": null, "response": {"body": {"usage": {"prompt_tokens": 5, "completion_tokens": 6}}}})"
        "\n");
    CHECK(answers.left_out == 1);
    CHECK(answers.requests == std::vector<TracedRequest>{{0, 4, 3}, {0, 5, 6}});

    const RequestTrace prompts = parse(
        "{\"prompt\": \"abcdefghij\", \"max_tokens\": 9}\n{\"prompt\": \"abcdefgx\", \"max_tokens\": 1}\n"
        "{\"prompt\": \"efgh\", \"max_tokens\": 1}");
    CHECK(prompts.has_beginnings);
    CHECK(prompts.requests[0].prompt == 10);
    CHECK(prompts.requests[0].answer == 9);
    REQUIRE(prompts.requests[0].beginning.size() == 2);
    REQUIRE(prompts.requests[1].beginning.size() == 2);
    CHECK(prompts.requests[0].beginning[0] == prompts.requests[1].beginning[0]);
    CHECK(prompts.requests[0].beginning[1] != prompts.requests[1].beginning[1]);
    // The same tokens behind another beginning are another page.
    CHECK(prompts.requests[2].beginning[0] != prompts.requests[0].beginning[1]);
}

TEST_CASE("request trace: what cannot be used is refused with its line") {
    CHECK(refusal("") == "t: no requests in it");
    CHECK(refusal("prompt_tokens,completion_tokens\n") == "t: no requests in it");
    CHECK(refusal("a,b\n1,2\n").starts_with("t, line 1: the header has no columns"));
    CHECK(refusal("prompt_tokens,ContextTokens,completion_tokens\n").find("the same") != std::string::npos);
    const std::string header = "arrival,prompt_tokens,completion_tokens\n";
    for (const char *row :
         {"1,2", "1,2,x", "1,-2,3", "1,2.5,3", "1,1e99,3", "1,nan,3", "x,2,3", ",2,3",
          "2023-13-01 00:00:00,2,3", "2023-11-16 25:00:00,2,3", "2023-11-1,2,3", "inf,2,3"}) {
        CAPTURE(row);
        CHECK(refusal(header + "0,1,1\n\n" + row + "\n").starts_with("t, line 4: "));
    }
    CHECK(refusal(header + "0,1,1\n1e10,1,1\n").find("30 years") != std::string::npos);
    CHECK(refusal(header + "1e300,1,1\n").find("arrival") != std::string::npos);
    for (const char *row :
         {"{", "{}", "{\"prompt\": 3, \"max_tokens\": 1}", "{\"prompt\": \"x\"}", "{\"messages\": []}",
          "{\"prompt_tokens\": \"3\", \"completion_tokens\": 1}", "{\"input_length\": 5}",
          "{\"input_length\": 5, \"output_length\": 1, \"hash_ids\": [\"a\"]}",
          "{\"timestamp\": 1e300, \"input_length\": 5, \"output_length\": 1}"}) {
        CAPTURE(row);
        CHECK(refusal(std::string(row) + "\n").starts_with("t, line 1"));
    }
}

TEST_CASE("request trace: damaged traces are refused or read, never worse") {
    const std::string texts[] = {
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 23:59:59.5000000,7,3\n2023-11-17 00:00:01,9,0\n",
        "{\"timestamp\": 2500, \"input_length\": 1030, \"output_length\": 2, \"hash_ids\": [7, -8]}\n"
        "{\"prompt\": \"abcdefghij\", \"max_tokens\": 9}\n"};
    for (uint32_t seed = 0; seed < 2000; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        std::string text = texts[random.below(2)];
        for (size_t n = 1 + random.below(4); n > 0; --n) {
            const size_t at = random.below(static_cast<uint32_t>(text.size()));
            if (random.below(2) == 0)
                text[at] = static_cast<char>(random.below(256));
            else
                text.erase(at, 1 + random.below(8));
            if (text.empty()) text = "x";
        }
        try {
            for (const TracedRequest &one : parse(text).requests) {
                CHECK(one.arrival >= 0);
                CHECK(one.beginning.size() <= static_cast<size_t>(one.prompt / kPage));
            }
        } catch (const InputError &error) {
            CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos);
        }
    }
}

TEST_CASE("bench --trace: a hand-computed replay, the picture, and what it refuses") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const auto file = [&](const char *name, const std::string &text) {
        const std::string path = (directory / name).string();
        write_file(path, std::as_bytes(std::span(text)));
        return path;
    };
    const auto bench = [](std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), {"bench", tiny().path.string()});
        return runnel(arguments);
    };
    // Two requests at a time in 4 pages of 32: contexts of 128 fit once, pages twice.
    const std::string csv =
        file("t.csv", "arrival,prompt_tokens,completion_tokens\n10,31,2\n10,60,4\n11,1,1\n");
    const std::string svg = (directory / "t.svg").string();
    const Result small = bench({"--trace", csv, "-c", "128", "--cache-size", "1", "--json"});
    CHECK(small.code == 2);
    const json one = json::parse(bench({"--trace", csv, "-c", "128", "--json"}).out);
    CHECK(one["cells"] == 8 * 128);
    const int64_t cell = one["cell_bytes"];
    CHECK(cell == 2 * 2 * (16 + 16) * 2);  // layers, K/V heads, values, bytes
    const Result result = bench({"--trace", csv, "-c", "128", "--parallel", "2", "--cache-size",
                                 std::to_string(128 * cell), "--step-time", "500", "--json", "--plot", svg});
    CAPTURE(result.err);
    REQUIRE(result.code == 0);
    const json all = json::parse(result.out);
    for (const char *key : {"model", "trace"}) CHECK(all[key].is_string());
    CHECK(all["requests"] == 3);
    CHECK(all["too_long"] == 0);
    CHECK(all["errors"] == 0);
    CHECK(all["cells"] == 128);
    CHECK(all["context"] == 128);
    CHECK(all["parallel"] == 2);
    CHECK(all["page"] == 32);
    CHECK(all["step_ms"] == 500);
    CHECK(all["has_arrivals"] == true);
    CHECK(all["has_beginnings"] == false);
    REQUIRE(all["replays"].size() == 3);
    const json &contexts = all["replays"][0], &pages = all["replays"][2];
    CHECK(contexts["allocation"] == "context");
    // Steps 0 and 1: the first. 2 to 5: the second. 6: the third, which arrived at step 2.
    CHECK(contexts["steps"] == 7);
    CHECK(contexts["most_running"] == 1);
    CHECK(contexts["most_held_cells"] == 128);
    CHECK(contexts["busy_seconds"] == 3.5);
    CHECK(contexts["wait_seconds"].get<double>() == doctest::Approx((2 + 4) * 0.5 / 3));
    const double used = 32 + 33 + 61 + 62 + 63 + 64 + 2;
    CHECK(contexts["used"].get<double>() == doctest::Approx(used / (7 * 128)));
    CHECK(contexts["internal_waste"].get<double>() == doctest::Approx((7 * 128 - used) / (7 * 128)));
    CHECK(contexts["external_waste"] == 0);
    // Pages: steps 0 to 3, the third request in step 2.
    CHECK(pages["allocation"] == "pages");
    CHECK(pages["steps"] == 4);
    CHECK(pages["most_running"] == 2);
    CHECK(pages["most_held_cells"] == 4 * 32);
    CHECK(pages["wait_seconds"] == 0);
    CHECK(pages["preemptions"] == 0);
    CHECK(pages["too_large"] == 0);
    CHECK(pages["shared"] == 0);
    REQUIRE(pages["by_memory"].size() == 5);
    CHECK(pages["by_memory"][2]["cells"] == 128);
    CHECK(pages["by_memory"][2]["mean_running"] == pages["mean_running"]);
    for (const char *part : {"requests at a time, mean", "cells of the KV cache", "contexts reserved"})
        CHECK(read_file(svg).find(part) != std::string::npos);

    // Prompts: their equal beginnings are shared. The model's own tokenizer counts them.
    std::string rows;
    for (int i = 0; i < 6; ++i)
        rows += json{{"prompt", std::string(100, 'a') + std::to_string(i)}, {"max_tokens", 9}}.dump() + "\n";
    const std::string jsonl = file("t.jsonl", rows);
    const json shared = json::parse(bench({"--trace", jsonl, "-c", "256", "--json"}).out);
    REQUIRE(shared["replays"].size() == 4);
    CHECK(shared["replays"][3]["allocation"] == "shared");
    CHECK(shared["replays"][3]["shared"].get<double>() > 0);
    CHECK(shared["replays"][3]["most_held_cells"] < shared["replays"][2]["most_held_cells"]);

    Process table = process({"bench", tiny().path.string(), "--trace", jsonl, "-c", "256"});
    table.environment = {"LC_ALL=C", "TERM=dumb"};
    const Result shown = execute(table);
    REQUIRE(shown.code == 0);
    for (const char *part : {"6 requests of ", "pages, shared", "shared by several", "wait, mean s", "SSS"})
        CHECK(shown.out.find(part) != std::string::npos);
    CHECK(shown.out.find("\xe2") == std::string::npos);

    CHECK(bench({"--trace", "absent.csv"}).code == 2);
    CHECK(bench({"--trace", file("bad.csv", "x\n")}).code == 5);
    CHECK(bench({"--trace", csv, "-c", "16"}).code == 0);  // one request fits
    CHECK(bench({"--trace", csv, "-c", "1"}).code == 5);
    CHECK(bench({"--trace", csv, "--naive"}).code == 2);
    CHECK(bench({"--trace", csv, "--parallel", "1,2"}).code == 2);
    CHECK(bench({"--trace", csv, "-p", "5"}).code == 2);
    CHECK(bench({"--step-time", "5"}).code == 2);
    CHECK(bench({"--trace", csv, "--plot", csv}).code != 0);  // the picture would replace the trace
    CHECK(read_file(csv).starts_with("arrival"));
}
