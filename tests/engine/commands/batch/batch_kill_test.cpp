// `runnel batch` killed at random moments and resumed: the output is that of an undisturbed run. Needs
// $RUNNEL (default build/runnel); RUNNEL_KILLS=50 sets the number of kills per kind of batch.
#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/engine/commands/program_support.h"
#include "tests/support/random.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
using nlohmann::json;

namespace {

std::string text_of(const std::filesystem::path &path) {
    const auto bytes = read_bytes(path);
    return {reinterpret_cast<const char *>(bytes.data()), bytes.size()};
}

std::vector<std::string> lines_of(const std::string &text) {
    std::vector<std::string> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(line + "\n");
    return lines;
}

// Prompts of different lengths, half of them sampled, some bad, some that end as they are submitted.
std::vector<std::string> random_rows(size_t count, uint64_t seed) {
    Random random(seed);
    std::vector<std::string> rows;
    for (size_t i = 0; i < count; ++i) {
        json row = {{"max_tokens", random.below(12)}};
        std::string prompt = "p";
        for (uint64_t n = random.below(30); n-- > 0;) prompt += static_cast<char>('a' + random.below(3));
        row["prompt"] = prompt;
        if (random.below(2)) row["temperature"] = 0;
        if (random.below(30) == 0) row["temperature"] = "hot";
        rows.push_back(row.dump() + "\n");
    }
    return rows;
}

struct Kind {
    const char *name;
    std::vector<std::string> options;
    size_t parts = 1;  // of --shard
    bool ordered = true;
};

// The lines sorted by their number.
std::string sorted(const std::string &text) {
    std::vector<std::string> lines = lines_of(text);
    const auto number = [](const std::string &line) { return json::parse(line)["line"].get<int64_t>(); };
    std::sort(lines.begin(), lines.end(),
              [&](const std::string &a, const std::string &b) { return number(a) < number(b); });
    std::string all;
    for (const std::string &line : lines) all += line;
    return all;
}

// Resumes `out` and kills the run once the file has grown to `target` bytes. The input has rows for more bytes
// and stays open, so the run cannot end before the kill.
void run_and_kill(Process run, const std::string &out, size_t target, Random &random) {
    const auto delay = std::chrono::microseconds(random.below(3000));
    std::thread killer;
    std::atomic<bool> over{false};
    run.input_ends = false;
    run.started = [&](int pid) {
        killer = std::thread([&, pid] {
            std::error_code missing;
            while (!over) {
                const auto now = std::filesystem::file_size(out, missing);
                if (!missing && now >= target) {
                    std::this_thread::sleep_for(delay);
                    kill(pid, SIGKILL);
                    return;
                }
                std::this_thread::sleep_for(std::chrono::microseconds(200));
            }
        });
    };
    const Result r = execute(run);
    over = true;
    killer.join();
    CAPTURE(r.err);
    CHECK(r.code == 128 + SIGKILL);
}

}  // namespace

TEST_CASE("batch: killed at random moments and resumed, the output has the bytes of an undisturbed run") {
    if (absent()) return;
    const char *wanted = std::getenv("RUNNEL_KILLS");
    const auto kills = static_cast<size_t>(wanted && *wanted ? std::atoi(wanted) : 3);
    constexpr size_t kRows = 240;
    const std::vector<Kind> kinds = {{"ordered", {}},
                                     {"unordered", {"--unordered"}, 1, false},
                                     {"sharded", {"--shard", "2/3"}, 3},
                                     {"speculative", {"--lookup", "--draft-max", "4"}}};
    for (const Kind &kind : kinds) {
        CAPTURE(kind.name);
        const TemporaryDirectory directory;
        const std::string in = (directory / "in.jsonl").string(), out = (directory / "out.jsonl").string(),
                          whole = (directory / "whole.jsonl").string();
        const std::vector<std::string> rows = random_rows(kRows * kind.parts, 77);
        std::string input;
        for (const std::string &row : rows) input += row;
        write_file(in, std::as_bytes(std::span(input)));
        const auto with = [&](std::vector<std::string> more) {
            std::vector<std::string> all = {"batch", tiny().path.string(), "-t", "1", "-s",
                                            "11",    "--parallel",         "16"};
            all.insert(all.end(), kind.options.begin(), kind.options.end());
            all.insert(all.end(), more.begin(), more.end());
            return process(all);
        };
        CHECK(execute(with({"-i", in, "-o", whole})).code == 5);  // some rows are bad
        const std::string expected = text_of(whole);
        REQUIRE(lines_of(expected).size() == kRows);
        for (size_t round = 0; round < kills; ++round) {
            CAPTURE(round);
            Random random(round * 7 + kind.parts);
            const std::string before = text_of(out);
            const size_t target =
                std::min(before.size() + random.below(expected.size() / kills * 3 / 2), expected.size());
            Process run = with({"-o", out, "--resume"});
            const auto there = expected.begin() + static_cast<std::ptrdiff_t>(target);
            const auto count =
                static_cast<size_t>(std::count(expected.begin(), there, '\n')) + 1 + random.below(32);
            run.input = "";
            for (size_t i = 0; i < std::min(rows.size(), (count + 2) * kind.parts); ++i)
                *run.input += rows[i];
            run_and_kill(run, out, target, random);
            const std::string now = text_of(out);
            if (kind.ordered) CHECK(expected.starts_with(now));
            CHECK(now.size() >=
                  before.size() - std::min(before.size(), before.size() - before.rfind('\n') - 1));
        }
        for (int i = 0; i < 2; ++i) {  // the second run has nothing to do
            CHECK(execute(with({"-i", in, "-o", out, "--resume"})).code == 5);
            const std::string got = text_of(out);
            CHECK((kind.ordered ? got : sorted(got)) == (kind.ordered ? expected : sorted(expected)));
        }
    }
}
