// Makes one libc call fail, at one place after the other (tests/fault/fault.c). The program must end with a
// fitting code and message, leave correct output and no stray files; a batch must resume where it stopped.
//
// Tries a sample of the places; with RUNNEL_FAULTS=N, the first N of every call; with N = 0, all of them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/engine/commands/program_support.h"
#include "tests/support/data.h"
#include "tests/support/demo_model.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;

#ifndef __SANITIZE_ADDRESS__  // the sanitizer must be the first library

namespace {

namespace fs = std::filesystem;

// The library is built next to the program.
fs::path library() {
    return fs::absolute(fs::path(*program_under_test()).parent_path() / "fault.so");
}

struct Fault {
    const char *call, *error;
    bool all_later = false;
    bool harmless = false;  // the program must not be affected
};
constexpr Fault kFaults[] = {
    {"open", "EIO"},
    {"read", "EIO"},
    {"read", "EINTR", false, true},
    {"read", "short", false, true},
    {"write", "ENOSPC"},
    {"write", "EIO"},
    {"write", "EINTR", false, true},
    {"write", "short", false, true},
    {"fsync", "EIO"},
    {"rename", "EIO"},
    {"mmap", "ENOMEM"},
    {"malloc", "ENOMEM"},
    {"malloc", "ENOMEM", true},
    {"thread", "EAGAIN"},
};

// A command, and the files that it may leave in its folder.
struct Scenario {
    const char *name;
    std::vector<std::string> arguments;  // "@NAME" is that file in the folder
    std::string input;
    std::vector<std::string> outputs;
    std::string resumed = {};  // the output that --resume completes
};

const std::string kRows =
    "{\"prompt\": \"One\", \"max_tokens\": 4}\n{\"prompt\": \"Two\", \"max_tokens\": 5}\n"
    "{\"prompt\": \"Three\", \"max_tokens\": 3}\n{\"prompt\": \"Four\", \"max_tokens\": 6}\n";

std::vector<Scenario> scenarios() {
    const std::string model = demo_model();
    return {
        {"run",
         {"run", model, "Once", "--temp", "0", "-n", "4", "-t", "2", "--stats-file", "@stats"},
         "",
         {"stats"}},
        {"cache",
         {"run", model, "-f", "@text", "--raw", "--temp", "0", "-n", "2", "-t", "1", "--prompt-cache",
          "@cache"},
         "",
         {"cache"}},
        {"batch",
         {"batch", model, "--temp", "0", "-t", "1", "--parallel", "2", "-i", "@rows", "-o", "@out"},
         "",
         {"out"},
         "out"},
        {"chat", {"chat", model, "--temp", "0", "-n", "4", "-t", "1"}, "Hello\n/save @chat\n", {"chat"}},
        {"perplexity",
         {"perplexity", model, "-f", "@text", "-c", "32", "--chunks", "2", "-t", "1", "--save-logits",
          "@logits"},
         "",
         {"logits"}},
    };
}

std::string replaced(std::string text, const fs::path &folder) {
    for (size_t at = text.find('@'); at != text.npos; at = text.find('@', at + 1))
        text.replace(at, 1, folder.native() + "/");
    return text;
}

// Writes the files that the scenarios read.
void fill(const fs::path &folder) {
    std::ofstream(folder / "rows") << kRows;
    std::string text = read_file(held_out_text());
    std::ofstream(folder / "text") << text.substr(0, 1500);
}

Result run_in(const fs::path &folder, const Scenario &scenario, const std::string &fault,
              bool resumes = false) {
    Process p = process(scenario.arguments);
    for (std::string &argument : p.arguments) argument = replaced(argument, folder);
    if (resumes) p.arguments.emplace_back("--resume");
    p.input = replaced(scenario.input, folder);
    p.environment = {"RUNNEL_NO_HISTORY=1"};
    if (!fault.empty()) {
        p.environment.push_back("LD_PRELOAD=" + library().string());
        p.environment.push_back("FAULT=" + fault);
        p.environment.push_back("FAULT_MARK=" + (folder / "mark").string());
    }
    return execute(p);
}

// The content of an output, without parts that depend on the clock.
std::string content(const fs::path &file) {
    std::string text = read_file(file);
    if (file.filename() == "stats") {
        const auto json = nlohmann::json::parse(text, nullptr, false);
        return json.is_object() ? json.value("finish_reason", "") : "not JSON";
    }
    return text;
}

struct Expected {
    Result result;
    std::vector<std::string> contents;
};

void check_files(const fs::path &folder, const Scenario &scenario, const Expected &expected, int code) {
    for (const auto &entry : fs::directory_iterator(folder)) {
        const std::string name = entry.path().filename();
        if (name == "rows" || name == "text" || name == "mark") continue;
        const bool known =
            std::any_of(scenario.outputs.begin(), scenario.outputs.end(), [&](const std::string &output) {
                return name == output || (output == scenario.resumed && name.starts_with(output));
            });
        CAPTURE(name);
        CHECK(known);
        CHECK(name.find("partial") == name.npos);
    }
    for (size_t i = 0; i < scenario.outputs.size(); ++i) {
        const fs::path file = folder / scenario.outputs[i];
        CAPTURE(file.string());
        if (!fs::exists(file)) continue;
        const std::string text = content(file);
        if (scenario.outputs[i] == scenario.resumed && code != 0)
            CHECK(expected.contents[i].starts_with(text));
        else
            CHECK(text == expected.contents[i]);
    }
}

// Returns whether the program made the call at all.
bool survives(const Scenario &scenario, const Fault &fault, long n, const Expected &expected) {
    const TemporaryDirectory directory;
    fill(directory.path());
    const std::string how =
        std::string(fault.call) + ":" + std::to_string(n) + (fault.all_later ? "+" : "") + ":" + fault.error;
    CAPTURE(scenario.name);
    CAPTURE(how);
    const Result result = run_in(directory.path(), scenario, how);
    CAPTURE(result.code);
    CAPTURE(result.out);
    CAPTURE(result.err);
    CHECK(result.code >= 0);
    CHECK(result.code <= 5);
    CHECK(expected.result.out.starts_with(result.out));
    CHECK(result.err.find("terminate") == std::string::npos);
    CHECK(result.err.find("basic_") == std::string::npos);
    if (result.code == 0) CHECK(result.out == expected.result.out);
    if (result.code != 0) CHECK(result.err.find("runnel: ") != std::string::npos);
    if (fault.harmless) CHECK(result.code == 0);
    if (std::string_view(fault.call) == "malloc") CHECK((result.code == 0 || result.code == 4));
    check_files(directory.path(), scenario, expected, result.code);
    if (!scenario.resumed.empty() && result.code != 0) {
        const Result again = run_in(directory.path(), scenario, "", true);
        CAPTURE(again.err);
        CHECK(again.code == 0);
        CHECK(content(directory / scenario.resumed) == expected.contents[0]);
    }
    return fs::exists(directory / "mark");
}

}  // namespace

TEST_CASE("faults: when a call fails, no command crashes, hangs, gives wrong output or leaves files behind") {
    REQUIRE(program_under_test());
    REQUIRE(fs::exists(library()));
    const char *wish = std::getenv("RUNNEL_FAULTS");
    const long most = wish ? std::atol(wish) : -1;
    long faults = 0;
    for (const Scenario &scenario : scenarios()) {
        const TemporaryDirectory directory;
        fill(directory.path());
        Expected expected{run_in(directory.path(), scenario, ""), {}};
        CAPTURE(scenario.name);
        CAPTURE(expected.result.err);
        REQUIRE(expected.result.code == 0);
        for (const std::string &output : scenario.outputs) {
            REQUIRE(fs::exists(directory / output));
            expected.contents.push_back(content(directory / output));
        }
        for (const Fault &fault : kFaults) {
            const bool memory = std::string_view(fault.call) == "malloc";
            if (most < 0) {  // a sample
                for (const long n : {1, memory ? 1500 : 3}) faults += survives(scenario, fault, n, expected);
                continue;
            }
            for (long n = 1; most == 0 || n <= most; n += memory ? 1 + n / 50 : 1, ++faults)
                if (!survives(scenario, fault, n, expected)) break;
        }
    }
    MESSAGE("faults: " << faults << " calls failed");
    CHECK(faults > 60);
}

#endif
