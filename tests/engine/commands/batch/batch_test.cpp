// `runnel batch`, run as a program: rows, order, resumption, signals. Needs $RUNNEL (default
// build/runnel).
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "tests/support/model_maker.h"
#include "tests/support/process.h"
#include "tests/support/random.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
using nlohmann::json;

namespace {

bool absent() {
    if (program_under_test()) return false;
    FAIL("no program to test: set RUNNEL, or build build/runnel");
    return true;
}

const std::string &model() {
    static const TemporaryModel tiny{ModelShape{}};
    static const std::string path = tiny.path.string();
    return path;
}

Process batch_process(std::vector<std::string> more, std::optional<std::string> input = {}) {
    Process p{};
    p.arguments = {"batch", model(), "-t", "1"};
    p.arguments.insert(p.arguments.end(), more.begin(), more.end());
    p.input = std::move(input);
    p.stdout_limit = static_cast<size_t>(-1);
    return p;
}

Result batch(std::vector<std::string> more, std::optional<std::string> input = {}) {
    return execute(batch_process(std::move(more), std::move(input)));
}

std::string text_of(const std::filesystem::path &path) {
    const auto bytes = read_bytes(path);
    return {reinterpret_cast<const char *>(bytes.data()), bytes.size()};
}

std::vector<json> rows_of(const std::string &text) {
    std::vector<json> rows;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) rows.push_back(json::parse(line));
    return rows;
}

// Prompts of different lengths, half of them sampled.
std::string random_input(size_t lines, uint64_t seed) {
    Random random(seed);
    std::string text;
    for (size_t i = 0; i < lines; ++i) {
        json row = {{"id", "row " + std::to_string(i)}, {"max_tokens", 1 + random.below(12)}};
        std::string prompt = "p";
        for (uint64_t n = random.below(30); n-- > 0;) prompt += static_cast<char>('a' + random.below(26));
        row["prompt"] = prompt;
        if (random.below(2)) row["temperature"] = 0;
        if (random.below(50) == 0) row["temperature"] = "hot";
        text += row.dump() + "\n";
    }
    return text;
}

}  // namespace

TEST_CASE("batch: every row gets the answer that run gives") {
    if (absent()) return;
    const std::string input =
        R"({"prompt": "ab", "max_tokens": 20, "temperature": 0})"
        "\n"
        R"({"prompt": "hello", "max_tokens": 9, "seed": 7, "temperature": 1.2, "top_p": 0.9})"
        "\n\n"
        R"({"prompt": "x", "max_tokens": 0})"
        "\n";
    const Result r = batch({"-s", "1"}, input);
    CHECK(r.code == 0);
    CHECK(r.err == "");
    const auto rows = rows_of(r.out);
    REQUIRE(rows.size() == 3);
    const auto run = [&](std::vector<std::string> more) {
        std::vector<std::string> arguments = {"run", model(), "--json"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        Process p{};
        p.arguments = arguments;
        p.stdout_limit = static_cast<size_t>(-1);
        return json::parse(execute(p).out);
    };
    const json first = run({"ab", "-n", "20", "--temp", "0"}),
               second = run({"hello", "-n", "9", "-s", "7", "--temp", "1.2", "--top-p", "0.9"});
    for (const char *key : {"text", "prompt_tokens", "completion_tokens", "finish_reason"}) {
        CHECK(rows[0][key] == first[key]);
        CHECK(rows[1][key] == second[key]);
    }
    CHECK(rows[0]["line"] == 1);
    CHECK(rows[2]["line"] == 4);
    CHECK(rows[2]["text"] == "");
}

TEST_CASE("batch: bytes do not depend on parallel sequences, chunks, threads or the cache's size") {
    if (absent()) return;
    const std::string input = random_input(60, 5);
    const Result expected = batch({"-s", "3", "--parallel", "1", "-n", "40"}, input);
    CHECK(rows_of(expected.out).size() == 60);
    for (const std::vector<std::string> &more : {std::vector<std::string>{"--parallel", "16"},
                                                 {"--parallel", "32", "-b", "5"},
                                                 {"--parallel", "7", "-b", "64", "-t", "2"},
                                                 {"--parallel", "60", "-c", "80"}}) {
        CAPTURE(more[1]);
        std::vector<std::string> arguments = {"-s", "3", "-n", "40"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        CHECK(batch(arguments, input).out == expected.out);
    }
}

TEST_CASE("batch: bad rows are answered with an error, and the run goes on") {
    if (absent()) return;
    std::string many;
    for (int i = 0; i < 3000; ++i) many += "word ";
    const Result r = batch({"-n", "3"}, "{\"prompt\": \"a\"}\nnot json\n{\"prompt\": \"" + many +
                                            "\"}\n{\"prompt\": \"\"}\n{\"prompt\": \"b\"}");
    CHECK(r.code == 5);
    CHECK(r.err.find("3 rows have errors") != std::string::npos);
    const auto rows = rows_of(r.out);
    REQUIRE(rows.size() == 5);
    for (size_t i = 0; i < 5; ++i) CHECK(rows[i]["line"] == i + 1);
    CHECK(rows[1]["error"]["message"].get<std::string>().find("line 2") != std::string::npos);
    CHECK(rows[2]["error"]["message"].get<std::string>().find("context holds") != std::string::npos);
    CHECK(rows[4].contains("text"));
}

TEST_CASE("batch: a row that ends on submission is written, whatever rows follow") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string out = (directory / "out.jsonl").string();
    std::string many;
    for (int i = 0; i < 3000; ++i) many += "word ";
    const std::string none = R"({"prompt": "hi", "max_tokens": 0})",
                      long_row = R"({"prompt": ")" + many + "\"}",
                      plain = R"({"prompt": "a", "max_tokens": 3})";
    // Each kind of row alone, as the last row, between others, and only such rows.
    const std::vector<std::vector<std::string>> inputs = {
        {none}, {long_row}, {plain, none}, {none, plain, long_row, none}, {none, none, none, none, none}};
    for (const auto &lines : inputs)
        for (const bool ordered : {true, false}) {
            std::string input;
            for (const std::string &line : lines) input += line + "\n";
            const bool fails = std::count(lines.begin(), lines.end(), long_row) > 0;
            std::vector<std::string> more = {"--parallel", "2"};
            if (!ordered) more.push_back("--unordered");
            const Result r = batch(more, input);
            CAPTURE(r.err);
            CHECK(r.code == (fails ? 5 : 0));
            CHECK(rows_of(r.out).size() == lines.size());
        }
    CHECK(rows_of(batch({"--lines", "-n", "0"}, "a\nb\n").out).size() == 2);
    // On a pipe that stays open the answer comes before the next row.
    Process live = batch_process({"--lines", "-n", "0"}, "a\n");
    live.input_ends = false;
    live.watch = [](const std::string &text, int pid) {
        if (text.ends_with('\n')) kill(pid, SIGINT);
    };
    const Result answered = execute(live);
    CHECK(answered.code == 130);
    CHECK(rows_of(answered.out).size() == 1);
}

TEST_CASE("batch: --lines reads plain prompts, --shard selects rows, --unordered does not wait") {
    if (absent()) return;
    std::string input;
    for (int i = 0; i < 20; ++i) input += "prompt " + std::to_string(i) + "\n";
    const std::vector<std::string> base = {"--lines", "-n", "6", "-s", "9"};
    const auto with = [&](std::vector<std::string> more) {
        more.insert(more.begin(), base.begin(), base.end());
        const Result r = batch(more, input);
        CHECK(r.code == 0);
        return r.out;
    };
    const std::string all = with({});
    CHECK(rows_of(all).size() == 20);
    const auto sorted = [](const std::string &text) {
        std::vector<json> rows = rows_of(text);
        std::sort(rows.begin(), rows.end(),
                  [](const json &a, const json &b) { return a["line"].get<int>() < b["line"].get<int>(); });
        return rows;
    };
    CHECK(sorted(with({"--unordered"})) == rows_of(all));
    std::string parts;
    for (const char *shard : {"1/3", "2/3", "3/3"}) parts += with({"--shard", shard});
    CHECK(sorted(parts) == rows_of(all));
}

TEST_CASE("batch: an answer comes before the input ends") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string fifo = (directory / "in").string();
    REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
    std::atomic<bool> answered{false}, over{false};
    std::thread writer;
    Process p = batch_process({"-i", fifo, "-n", "3"});
    p.started = [&](int) {
        writer = std::thread([&] {
            FILE *in = std::fopen(fifo.c_str(), "r+");  // "w" would wait for the program
            std::fputs("{\"prompt\": \"a\"}\n", in);
            std::fflush(in);
            while (!answered && !over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
            std::fputs("{\"prompt\": \"b\"}", in);
            std::fclose(in);
        });
    };
    p.watch = [&](const std::string &out, int) {
        answered = answered || out.find('\n') != std::string::npos;
    };
    const Result r = execute(p);
    CHECK(answered);
    over = true;
    writer.join();
    CHECK(r.code == 0);
    CHECK(rows_of(r.out).size() == 2);
}

TEST_CASE("batch: --resume repairs a line that was cut anywhere") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string in = (directory / "in.jsonl").string(), out = (directory / "out.jsonl").string();
    write_text(in, random_input(12, 3));
    const std::vector<std::string> arguments = {"-i", in, "-o", out, "-s", "2"};
    const int code = batch(arguments).code;
    const std::string expected = text_of(out);
    auto again = arguments;
    again.push_back("--resume");
    Random random(1);
    for (int i = 0; i < 12; ++i) {
        const size_t cut = i == 0 ? 0 : i == 1 ? expected.size() - 1 : random.below(expected.size());
        CAPTURE(cut);
        write_text(out, std::string_view(expected).substr(0, cut));
        CHECK(batch(again).code == code);
        CHECK(text_of(out) == expected);
    }
    // With --unordered, missing lines are added, wherever they belong.
    again.insert(again.end(), {"--unordered", "--force"});
    auto lines = rows_of(expected);
    std::string some;
    for (size_t i = 0; i < lines.size(); i += 2) some = lines[i].dump() + "\n" + some;
    write_text(out, some);
    batch(again);
    std::set<int> numbers;
    for (const json &row : rows_of(text_of(out))) CHECK(numbers.insert(row["line"].get<int>()).second);
    CHECK(numbers.size() == 12);
}

TEST_CASE("batch: --resume leaves files that batch did not write unchanged") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string in = (directory / "in.jsonl").string(), out = (directory / "out.jsonl").string();
    write_text(in, "{\"id\": \"a\", \"prompt\": \"x\"}\n{\"id\": \"b\", \"prompt\": \"y\"}\n");
    const std::vector<std::string> arguments = {"-i", in, "-o", out, "-n", "2", "--resume", "--force"};
    const auto refused = [&](const std::string &before, int code, const char *part) {
        std::filesystem::remove(out + ".resume");
        write_text(out, before);
        const Result r = batch(arguments);
        CAPTURE(r.err);
        CHECK(r.code == code);
        CHECK(r.err.find(part) != std::string::npos);
        CHECK(text_of(out) == before);
    };
    refused("a letter\nto somebody\n", 5, "line 1 was not written by runnel batch");
    refused("{\"id\": \"b\", \"line\": 2, \"text\": \"\"}\n", 2, "--shard");
    refused("{\"id\": \"b\", \"line\": 2, \"text\": \"\"}\n{\"id\": \"a\", \"line\": 1, \"text\": \"\"}\n", 2,
            "--unordered");
    refused("{\"id\": \"a\", \"line\": 1, \"text\": \"\"}\nno line end", 5, "line 2 was not written");
    // An edited line is refused, and nothing after it is cut off.
    std::filesystem::remove(out);
    REQUIRE(batch({"-i", in, "-o", out, "-n", "2", "--overwrite"}).code == 0);
    std::string edited = text_of(out);
    edited.replace(edited.find("\"a\""), 3, "\"z\"");
    write_text(out, edited);
    const Result changed = batch({"-i", in, "-o", out, "-n", "2", "--resume"});
    CHECK(changed.code == 5);
    CHECK(changed.err.find("line 1 has changed since it was written") != std::string::npos);
    CHECK(text_of(out) == edited);
    CHECK(batch({"-i", in, "-o", out, "-n", "2", "--resume", "--force"}).code == 0);
    CHECK(text_of(out) == edited);
    CHECK(batch({"-i", in, "--resume"}).code == 2);
    CHECK(batch({"-i", in, "-o", out, "--force"}).code == 2);
    CHECK(batch({"-i", in, "-o", in}).code == 2);
    CHECK(batch({"-i", in, "--shard", "3/2"}).code == 2);
    CHECK(batch({"-i", (directory / "none").string()}).code == 2);
    CHECK(batch({"-i", directory.path().string()}).code == 2);
}

TEST_CASE("batch: --resume refuses another model, other options and edited rows, and says which") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string in = (directory / "in.jsonl").string(), out = (directory / "out.jsonl").string();
    const std::string first = "{\"prompt\": \"x\"}\n", second = "{\"prompt\": \"y\"}\n";
    write_text(in, first);
    REQUIRE(batch({"-i", in, "-o", out, "-n", "9", "--temp", "1"}).code == 0);
    const std::string before = text_of(out);
    write_text(in, first + second);
    const auto refused = [&](std::vector<std::string> more, int code, const char *part) {
        more.insert(more.begin(), {"-i", in, "-o", out, "--resume"});
        const Result r = batch(more);
        CAPTURE(r.err);
        CHECK(r.code == code);
        CHECK(r.err.find(part) != std::string::npos);
        CHECK(text_of(out) == before);
    };
    refused({"-n", "9", "--temp", "0.5"}, 2, "--temp was 1 and is 0.5");
    refused({"-n", "8", "--temp", "1"}, 2, "--predict was 9 and is 8");
    refused({"-n", "9", "--temp", "1", "-s", "5"}, 2, "--seed was ");
    refused({"-n", "9", "--temp", "1", "--stop", "e"}, 2, "--stop was not given and is [\"e\"]");
    ModelShape shape;
    shape.seed = 99;
    const TemporaryModel other(shape);
    Process another = batch_process({"-i", in, "-o", out, "--resume", "-n", "9", "--temp", "1"});
    another.arguments[1] = other.path.string();
    const Result r = execute(another);
    CHECK(r.code == 2);
    CHECK(r.err.find("the model was ") != std::string::npos);
    CHECK(text_of(out) == before);
    write_text(in, second + first);
    refused({"-n", "9", "--temp", "1"}, 5, "line 1 of the input has changed");
    write_text(in, first + second);
    // Without --seed, the resumed run continues with the same seed: the output is that of one undisturbed run.
    REQUIRE(batch({"-i", in, "-o", out, "-n", "9", "--temp", "1", "--resume"}).code == 0);
    const std::string all = text_of(out), whole = (directory / "whole.jsonl").string();
    CHECK(all.starts_with(before));
    const json header = json::parse(text_of(out + ".resume").substr(0, text_of(out + ".resume").find('\n')));
    REQUIRE(batch({"-i", in, "-o", whole, "-n", "9", "--temp", "1", "-s",
                   header["settings"]["--seed"].get<std::string>()})
                .code == 0);
    CHECK(text_of(whole) == all);
    write_text(in, second + first + first);
    CHECK(batch({"-i", in, "-o", out, "-n", "3", "--resume", "--force"}).code == 0);
    CHECK(text_of(out).starts_with(all));
    CHECK(rows_of(text_of(out)).size() == 3);
}

TEST_CASE("batch: --resume distinguishes one value with a blank from two values") {
    if (absent()) return;
    for (const std::string option : {"--dry-sequence-breaker", "--stop"}) {
        const TemporaryDirectory directory;
        const std::string in = (directory / "in.jsonl").string(), out = (directory / "out.jsonl").string();
        write_text(in, "{\"prompt\": \"x\"}\n");
        const auto with = [&](std::vector<std::string> more) {
            more.insert(more.begin(), {"-i", in, "-o", out, "-n", "2", option});
            return batch(more);
        };
        REQUIRE(with({"a b"}).code == 0);
        const Result r = with({"a", option, "b", "--resume"});
        CAPTURE(r.err);
        CHECK(r.code == 2);
        CHECK(r.err.find(option + " was [\"a b\"] and is [\"a\",\"b\"]") != std::string::npos);
        CHECK(with({"a b", "--resume"}).code == 0);
    }
}

TEST_CASE("batch: Ctrl-C, a full disk and a closed pipe end the run") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string in = (directory / "in.jsonl").string(), out = (directory / "out.jsonl").string();
    // The answers exceed what a pipe and its reader's buffer hold, so the program cannot have finished when the
    // signal is sent after the first piece.
    constexpr size_t kLines = 2000;
    write_text(in, random_input(kLines, 8));
    Process stopped = batch_process({"-i", in, "-s", "1", "--parallel", "4"});
    bool sent = false;
    stopped.watch = [&](const std::string &text, int pid) {
        if (text.size() > 500 && !std::exchange(sent, true)) kill(pid, SIGINT);
    };
    const Result r = execute(stopped);
    CHECK(r.code == 130);
    CHECK(r.err.find("stopped after") != std::string::npos);
    const size_t rows = rows_of(r.out).size();  // whole ones
    CHECK(rows >= 5);
    CHECK(rows < kLines);

    Process full = batch_process({"-i", in});
    full.stdout_to = "/dev/full";
    const Result no_space = execute(full);
    CHECK(no_space.code == 1);
    CHECK(no_space.err.find("No space left") != std::string::npos);

    Process head = batch_process({"-i", in});
    head.stdout_limit = 300;
    const Result closed = execute(head);
    CHECK(closed.code == 1);
    CHECK(closed.err.find("standard output was closed after") != std::string::npos);
}

TEST_CASE("batch: progress is shown on a terminal only, and --stats sums up") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string in = (directory / "in.jsonl").string(), out = (directory / "out.jsonl").string();
    write_text(in, random_input(300, 8));
    Process p =
        batch_process({"-i", in, "-o", out, "--stats", "--stats-file", (directory / "stats").string()});
    p.terminal = true;
    const Result shown = execute(p);
    CHECK(shown.out.find("tokens/s") != std::string::npos);
    CHECK(shown.out.find("\r[") != std::string::npos);
    const json stats = json::parse(text_of(directory / "stats"));
    CHECK(stats["rows"] == 300);
    CHECK(stats["written"] == 300);
    CHECK(stats["preemptions"] == 0);
    size_t prompt = 0, completion = 0;
    for (const json &row : rows_of(text_of(out))) {
        prompt += row.value("prompt_tokens", size_t{0});
        completion += row.value("completion_tokens", size_t{0});
    }
    CHECK(stats["prompt_tokens"] == prompt);
    CHECK(stats["completion_tokens"] == completion);
    p.arguments.insert(p.arguments.end(), {"-q", "--overwrite"});
    CHECK(execute(p).out == "");
}

TEST_CASE("batch: a header that a thousand prompts share is computed once") {
    if (absent()) return;
    ModelShape shape;
    shape.layers = 1, shape.width = 32, shape.ff = 32, shape.heads = 2, shape.context = 2048;
    const TemporaryModel large(shape);
    std::string header, input;
    while (header.size() < 1000) header += "word" + std::to_string(header.size()) + " ";
    for (int i = 0; i < 1000; ++i) input += header + std::to_string(i) + "\n";
    const TemporaryDirectory directory;
    Process p = batch_process(
        {"--lines", "-n", "2", "--temp", "0", "--stats", "--stats-file", (directory / "stats").string()},
        input);
    p.arguments[1] = large.path.string();
    const Result r = execute(p);
    CHECK(r.code == 0);
    CHECK(r.err.find("from the cache") != std::string::npos);
    const json stats = json::parse(text_of(directory / "stats"));
    const auto rows = rows_of(r.out);
    REQUIRE(rows.size() == 1000);
    const size_t prompt = rows[0]["prompt_tokens"];
    CAPTURE(prompt);
    CHECK(prompt > 500);
    const int64_t computed = stats["computed_tokens"], shared = stats["reused_tokens"];
    // The header is computed once; of every prompt, only the tokens after the last shared block are computed.
    CHECK(computed < static_cast<int64_t>(prompt + 1000 * (32 + 8 + 2)));
    CHECK(shared > 999 * (static_cast<int64_t>(prompt) - 40 - 8));
    // The answers are the same with one sequence at a time and with a small cache.
    std::istringstream lines(input);
    std::string line;
    std::getline(lines, line);
    Process alone{};
    alone.arguments = {"run", large.path.string(), line, "-n", "2", "--temp", "0"};
    alone.stdout_limit = static_cast<size_t>(-1);
    CHECK(execute(alone).out == rows[0]["text"].get<std::string>());
}

TEST_CASE("run: --samples and --beams") {
    if (absent()) return;
    const auto run = [&](std::vector<std::string> more) {
        Process p{};
        p.arguments = {"run", model(), "hello there", "-s", "4", "-n", "15"};
        p.arguments.insert(p.arguments.end(), more.begin(), more.end());
        p.stdout_limit = static_cast<size_t>(-1);
        const Result r = execute(p);
        CHECK(r.code == 0);
        return r.out;
    };
    const json three = json::parse(run({"--samples", "3", "--json"}));
    REQUIRE(three["samples"].size() == 3);
    const json one = json::parse(run({"--json"}));
    for (const char *key : {"text", "tokens", "finish_reason", "completion_tokens", "prompt_tokens"})
        CHECK(three[key] == one[key]);
    CHECK(three["samples"][0]["tokens"] == one["tokens"]);
    CHECK(three["samples"][0]["tokens"] != three["samples"][1]["tokens"]);
    for (const json &sample : three["samples"]) {
        CHECK(sample["logprob"].get<double>() < 0);
        CHECK(sample["score"].get<double>() <=
              three["samples"][three["best"].get<size_t>()]["score"].get<double>());
    }
    CHECK(run({"--samples", "3"}) == three["samples"][0]["text"].get<std::string>() + "\n---\n" +
                                         three["samples"][1]["text"].get<std::string>() + "\n---\n" +
                                         three["samples"][2]["text"].get<std::string>());
    const json beams = json::parse(run({"--beams", "4", "--json"}));
    REQUIRE(beams["beams"].size() == 4);
    CHECK(beams["best"] == 0);
    CHECK(beams["text"] == beams["beams"][0]["text"]);
    CHECK(run({"--beams", "4", "-b", "7", "-s", "9"}) == beams["text"].get<std::string>());
    const json greedy = json::parse(run({"--temp", "0", "--samples", "2", "--json"}));
    CHECK(greedy["samples"][0] == greedy["samples"][1]);
    CHECK(run({"--samples", "2", "-n", "0"}) == "\n---\n");
}

TEST_CASE("batch --timings: every answer has its times, and the text stays the same") {
    if (absent()) return;
    const std::string rows =
        "{\"prompt\": \"one two\", \"max_tokens\": 5, \"temperature\": 0, \"ignore_eos\": true}\n"
        "{\"prompt\": \"three\", \"max_tokens\": 1, \"temperature\": 0}\n"
        "{\"custom_id\": \"c\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": "
        "{\"prompt\": \"four\", \"max_tokens\": 4, \"temperature\": 0}}\n"
        "{\"prompt\": 7}\n";
    const Result plain = batch({}, rows), timed = batch({"--timings", "--parallel", "1"}, rows);
    CHECK(plain.code == 5);  // the last row
    CHECK(timed.code == 5);
    std::vector<json> without = rows_of(plain.out), with = rows_of(timed.out);
    REQUIRE(with.size() == 4);
    REQUIRE(without.size() == 4);
    for (size_t i = 0; i < 3; ++i) {
        json &answer = with[i].contains("response") ? with[i]["response"]["body"] : with[i];
        const json times = answer["timings"];
        REQUIRE(times.is_object());
        const double queued = times["queued_ms"], prefill = times["prefill_ms"];
        CHECK(queued >= 0);
        CHECK(times["ttft_ms"].get<double>() >= queued + prefill - 1e-6);
        CHECK(times["prefill_tokens"] >= 1);
        const double tokens = i == 2 ? answer["usage"]["completion_tokens"] : answer["completion_tokens"];
        if (i == 1) {
            CHECK(times["tpot_ms"].is_null());
            CHECK(times["decode_ms"] == 0);
        } else if (!times["tpot_ms"].is_null() && i == 0) {
            CHECK(times["tpot_ms"].get<double>() * (tokens - 1) ==
                  doctest::Approx(times["decode_ms"].get<double>()));
        }
        answer.erase("timings");
    }
    CHECK(with == without);
}
