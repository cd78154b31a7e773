// The cache, tested by running the program: --prompt-cache, --on-overflow, --window, --cache-type-k and -v.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "tests/support/data.h"
#include "tests/support/model_maker.h"
#include "tests/support/process.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
using nlohmann::json;

namespace {

bool absent() {
    if (program_under_test()) return false;
    FAIL("no program to test: set RUNNEL, or build build/runnel");
    return true;
}

const TemporaryModel &tiny() {
    static const TemporaryModel model{ModelShape{}};
    return model;
}

// `run`, greedy and raw, with more arguments; -n 20 unless these have another -n.
Result run_with(std::vector<std::string> more, const std::filesystem::path &model = tiny().path) {
    Process process;
    process.arguments = {"run", model.string(), "--raw", "--temp", "0", "--ignore-eos", "-n", "20"};
    process.arguments.insert(process.arguments.end(), more.begin(), more.end());
    return execute(process);
}

std::string long_text(int words) {
    std::string text;
    for (int i = 0; i < words; ++i) text += "word" + std::to_string(i * 37 % 11) + " ";
    return text;
}

void write(const std::filesystem::path &path, std::string_view text) {
    write_file(path, std::as_bytes(std::span(text)));
}

int64_t prefilled(const std::filesystem::path &stats) {
    return json::parse(read_file(stats)).at("prefill_tokens").get<int64_t>();
}

}  // namespace

TEST_CASE("run --prompt-cache: the prompt is computed once, with the same text from then on") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string file = (directory / "prompt.kv").string(), stats = (directory / "stats").string();
    const std::string prompt = long_text(30);
    const std::vector<std::string> flags = {"-p", prompt, "--prompt-cache", file, "--stats-file", stats};
    const Result plain = run_with({"-p", prompt});
    const Result first = run_with(flags);
    REQUIRE(first.code == 0);
    CHECK(first.out == plain.out);
    CHECK(first.err == "");
    const int64_t all = prefilled(stats);
    REQUIRE(all > 64);
    const Result second = run_with(flags);
    CHECK(second.out == plain.out);
    CHECK(prefilled(stats) <= 32);

    SUBCASE("a prompt that is shorter than a block is not kept, with a note") {
        const std::filesystem::path other = directory / "short.kv";
        const Result brief = run_with({"-p", "a few words", "--prompt-cache", other});
        CHECK(brief.code == 0);
        CHECK(brief.err.find("too few for") != std::string::npos);
        CHECK(!std::filesystem::exists(other));
    }
    SUBCASE("a prompt that continues the saved one uses it, and the longer one is saved") {
        std::vector<std::string> longer = flags;
        longer[1] += long_text(20);
        const Result more = run_with(longer);
        CHECK(more.out == run_with({"-p", longer[1]}).out);
        CHECK(prefilled(stats) < all);
        run_with(longer);
        CHECK(prefilled(stats) <= 32);
    }
    SUBCASE("any damage is detected, reported and repaired") {
        const std::string sound = read_file(file);
        for (size_t at = 8; at < sound.size(); at += 1 + sound.size() / 9) {
            CAPTURE(at);
            std::string damaged = sound;
            damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
            write(file, damaged);
            const Result result = run_with(flags);
            CHECK(result.code == 0);
            CHECK(result.out == plain.out);
            CHECK(result.err.find("the file is not used, and is written again") != std::string::npos);
            CHECK(prefilled(stats) == all);
            CHECK(read_file(file) == sound);
        }
        for (const size_t length : {size_t{9}, size_t{39}, size_t{100}, sound.size() - 1}) {
            CAPTURE(length);
            write(file, sound.substr(0, length));
            CHECK(run_with(flags).out == plain.out);
            CHECK(read_file(file) == sound);
        }
        write(file, sound + "more");
        CHECK(run_with(flags).out == plain.out);
        CHECK(read_file(file) == sound);
    }
    SUBCASE("a file of another model or other settings is not used") {
        ModelShape shape;
        shape.seed = 2;
        const TemporaryModel other{shape};
        const Result result = run_with(flags, other.path);
        CHECK(result.out == run_with({"-p", prompt}, other.path).out);
        CHECK(result.err.find("another model or other settings") != std::string::npos);
        std::vector<std::string> quantized = flags;
        quantized.insert(quantized.end(), {"-ctk", "q8_0"});
        CHECK(run_with(quantized).err.find("another model or other settings") != std::string::npos);
        quantized.insert(quantized.end(), {"--window", "40"});
        CHECK(run_with(quantized).err.find("another model or other settings") != std::string::npos);
    }
    SUBCASE("a file that is no prompt cache is left alone") {
        const std::string before = read_file(tiny().path);
        const Result result = run_with({"-p", prompt, "--prompt-cache", tiny().path.string()});
        CHECK(result.code == 2);
        CHECK(result.err.find("this run reads that file") != std::string::npos);
        CHECK(read_file(tiny().path) == before);
        const std::string letter = (directory / "letter").string();
        std::ofstream(letter) << "dear reader";
        const Result other = run_with({"-p", prompt, "--prompt-cache", letter});
        CHECK(other.code == 2);
        CHECK(other.err.find("not a prompt cache") != std::string::npos);
        CHECK(read_file(letter) == "dear reader");
        CHECK(run_with({"-p", prompt, "--prompt-cache", letter, "--overwrite"}).code == 0);
        CHECK(read_file(letter).starts_with("runnelKV"));
    }
    SUBCASE("a prompt that is shorter than a block is not saved, with a note") {
        std::filesystem::remove(file);
        const Result result = run_with({"-p", "short", "--prompt-cache", file, "--raw"});
        CHECK(result.code == 0);
        CHECK(result.err.find("prompts are kept in blocks of 32") != std::string::npos);
        CHECK(!std::filesystem::exists(file));
    }
    SUBCASE("a file that cannot be written only causes a note") {
        const Result result = run_with({"-p", prompt, "--prompt-cache", "/nowhere/at/all"});
        CHECK(result.code == 0);
        CHECK(result.out == plain.out);
        CHECK(result.err.find("/nowhere/at/all") != std::string::npos);
    }
}

TEST_CASE(
    "run --on-overflow: the policy decides what happens to a prompt or an answer that exceeds the context") {
    if (absent()) return;
    const std::string prompt = long_text(60);
    const Result error = run_with({"-p", prompt, "-c", "128"});
    CHECK(error.code == 5);
    for (const std::string how : {"shift", "drop-middle"}) {
        CAPTURE(how);
        const Result result =
            run_with({"-p", prompt, "-c", "128", "--on-overflow", how, "-n", "200", "--json"});
        REQUIRE(result.code == 0);
        const json answer = json::parse(result.out);
        CHECK(answer.at("completion_tokens") == 200);
        CHECK(answer.at("prompt_tokens") == 96);
        CHECK(result.err.find("are left out") != std::string::npos);
        CHECK(result.err.find("tokens were dropped to make room") != std::string::npos);
    }
    const Result ends = run_with({"-p", "word", "-c", "64", "-n", "200", "--json"});
    CHECK(json::parse(ends.out).at("finish_reason") == "length");
    CHECK(json::parse(ends.out).at("completion_tokens") < 64);
}

TEST_CASE("batch --on-overflow: every row gets the answer that run gives") {
    if (absent()) return;
    const std::string prompt = long_text(60);
    const std::string input = json{{"prompt", prompt}}.dump() + "\n" + json{{"prompt", "word"}}.dump() + "\n";
    const auto rows = [&](const std::string &how, Result &result) {
        Process p{};
        p.arguments = {"batch", tiny().path.string(), "--raw",         "-c", "128", "-n", "200", "--temp",
                       "0",     "--ignore-eos",       "--on-overflow", how};
        p.input = input;
        p.stdout_limit = static_cast<size_t>(-1);
        result = execute(p);
        const size_t end = result.out.find('\n');
        REQUIRE(end != std::string::npos);
        return std::pair(json::parse(result.out.substr(0, end)), json::parse(result.out.substr(end)));
    };
    Result result;
    for (const std::string how : {"shift", "drop-middle"}) {
        CAPTURE(how);
        const auto [first, second] = rows(how, result);
        CHECK(result.code == 0);
        CHECK(result.err.find("texts outgrew the context") != std::string::npos);
        for (const auto &[row, text] : {std::pair(first, prompt), std::pair(second, std::string("word"))}) {
            const json expected = json::parse(run_with({"-p", text, "-c", "128", "--on-overflow", how, "-n",
                                                        "200", "--temp", "0", "--ignore-eos", "--json"})
                                                  .out);
            for (const char *key : {"text", "prompt_tokens", "completion_tokens", "finish_reason"})
                CHECK(row[key] == expected[key]);
            CHECK(row["forgotten_tokens"] > 0);
        }
    }
    const auto [error, length] = rows("error", result);
    CHECK(result.code == 5);
    CHECK(error.contains("error"));
    CHECK(length["finish_reason"] == "length");
}

TEST_CASE("run --window: generation goes on beyond the context of the model, in any type of cache") {
    if (absent()) return;
    const std::vector<std::string> base = {"-p", long_text(20), "--window", "64",    "--sinks",
                                           "4",  "-n",          "700",      "--json"};
    const Result endless = run_with(base);
    REQUIRE(endless.code == 0);
    CHECK(json::parse(endless.out).at("completion_tokens") == 700);  // the model's context has 512
    for (const std::string type : {"f32", "bf16", "q8_0", "q5_1", "q4_0", "iq4_nl", "fp8"}) {
        CAPTURE(type);
        std::vector<std::string> flags = base;
        flags.insert(flags.end(), {"-ctk", type, "-ctv", type, "-b", "7"});
        const Result result = run_with(flags);
        flags.back() = "64";
        CHECK(result.code == 0);
        CHECK(json::parse(result.out).at("tokens") == json::parse(run_with(flags).out).at("tokens"));
    }
    CHECK(run_with({"-p", "a", "--sinks", "4"}).code == 2);
    CHECK(run_with({"-p", "a", "-ctk", "q9_9"}).code == 2);
    CHECK(run_with({"-p", "a", "--cache-size", "1"}).code == 4);
    CHECK(run_with({"-p", "a", "--cache-size", "64M"}).out == run_with({"-p", "a"}).out);
}
