// Sends signals at random moments and checks what the ended run leaves behind. RUNNEL_SIGNALS=N sends N signals
// instead of a sample.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/engine/commands/program_support.h"
#include "tests/support/demo_model.h"
#include "tests/support/random.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;

namespace {

namespace fs = std::filesystem;

struct Row {
    const char *name;
    std::vector<std::string> arguments;
};

std::vector<Row> rows(const fs::path &folder) {
    const std::string model = demo_model(), text = held_out_text(), in = folder / "rows";
    return {{"run", {"run", model, "Once", "-n", "200", "--temp", "0", "-t", "2"}},
            {"samples", {"run", model, "Once", "-n", "60", "--samples", "3", "-t", "2"}},
            {"batch", {"batch", model, "-i", in, "-n", "60", "-t", "2"}},
            {"perplexity", {"perplexity", model, "-f", text, "-c", "64", "--save-logits", folder / "logits"}},
            {"bench", {"bench", model, "-p", "64", "-n", "64", "-r", "3", "-t", "2"}}};
}

// True if the process handles SIGINT or has ended. Before that the system's loader runs, for a long time on a
// busy machine.
bool is_up(pid_t child) {
    std::ifstream status("/proc/" + std::to_string(child) + "/status");
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with("State:") && line.find('Z') != std::string::npos) return true;
        if (line.starts_with("SigCgt:"))
            return (std::stoull(line.substr(line.find_first_not_of("\t ", 7)), nullptr, 16) >> (SIGINT - 1) &
                    1) != 0;
    }
    return true;
}

// The wait status of the program if signal `number` reached it `after` microseconds after it was up.
int ended_by(const std::vector<std::string> &arguments, int number, useconds_t after) {
    const std::string program = program_under_test().value();
    std::vector<char *> argv{const_cast<char *>(program.c_str())};
    for (const std::string &argument : arguments) argv.push_back(const_cast<char *>(argument.c_str()));
    argv.push_back(nullptr);
    int ready[2];
    REQUIRE(pipe2(ready, O_CLOEXEC) == 0);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        const int nothing = open("/dev/null", O_RDWR);
        for (const int fd : {0, 1, 2}) dup2(nothing, fd);
        for (const int each : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) signal(each, SIG_DFL);
        execv(program.c_str(), argv.data());
        _exit(127);
    }
    close(ready[1]);
    char byte;
    (void)!read(ready[0], &byte, 1);  // until exec closed it
    close(ready[0]);
    while (!is_up(child)) usleep(200);
    usleep(after);
    kill(child, number);
    int status = 0;
    waitpid(child, &status, 0);
    return status;
}

}  // namespace

TEST_CASE(
    "signals: Ctrl-C gives exit code 130 at every moment, other signals their default end; files stay "
    "whole") {
    REQUIRE(program_under_test());
    const TemporaryDirectory directory;
    {
        std::ofstream in(directory / "rows");
        for (int i = 0; i < 40; ++i) in << "{\"prompt\": \"Row\", \"seed\": " << i << "}\n";
    }
    const char *wish = std::getenv("RUNNEL_SIGNALS");
    const int count = wish ? std::atoi(wish) : 25;
    const auto table = rows(directory.path());
    const uint64_t seed = 20261122;
    CAPTURE(seed);
    Random random(seed);
    int by_code = 0;
    for (int i = 0; i < count; ++i) {
        const Row &row = table[random.below(table.size())];
        const int number = random.below(4) == 0 ? SIGTERM : SIGINT;
        const auto after = static_cast<useconds_t>(random.below(60000));
        CAPTURE(i);
        CAPTURE(row.name);
        CAPTURE(number);
        CAPTURE(after);
        const int status = ended_by(row.arguments, number, after);
        if (number == SIGINT) {
            REQUIRE(WIFEXITED(status));
            CHECK((WEXITSTATUS(status) == 130 || WEXITSTATUS(status) == 0));
            by_code += WEXITSTATUS(status) == 130;
        } else {
            CHECK(((WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) ||
                   (WIFEXITED(status) && WEXITSTATUS(status) == 0)));
        }
        if (number == SIGINT)
            for (const auto &entry : fs::directory_iterator(directory.path()))
                CHECK(entry.path().filename().string().find("partial") == std::string::npos);
        for (const auto &entry : fs::directory_iterator(directory.path()))
            if (entry.path().filename() != "rows") fs::remove(entry.path());
    }
    CHECK(by_code > 0);
}

TEST_CASE("signals: Ctrl-C during quantize --method awq and gptq gives exit code 130 and leaves nothing") {
    REQUIRE(program_under_test());
    const TemporaryDirectory directory;
    const uint64_t seed = 20261123;
    CAPTURE(seed);
    Random random(seed);
    for (int i = 0; i < 4; ++i) {
        const auto after = static_cast<useconds_t>(random.below(600000));
        CAPTURE(after);
        const int status =
            ended_by({"quantize", demo_model(), directory / "out.gguf", "Q4_K", "--allow-requantize",
                      "--method", i % 2 == 0 ? "gptq" : "awq", "-f", held_out_text(), "--chunks", "-1"},
                     SIGINT, after);
        REQUIRE(WIFEXITED(status));
        CHECK(WEXITSTATUS(status) == 130);
        CHECK(fs::is_empty(directory.path()));
    }
}

TEST_CASE("signals: SIGTERM during a chat's answer leaves no color behind") {
    REQUIRE(program_under_test());
    Process p = process({"chat", demo_model(), "--temp", "0", "-n", "2000", "--color", "on", "-t", "1"});
    p.terminal = true;
    p.environment = {"TERM=xterm", "RUNNEL_NO_HISTORY=1"};
    bool asked = false, ended = false;
    p.type = [&](const std::string &, bool reads_keys) -> std::string {
        if (!reads_keys || asked) return "";
        asked = true;
        return "Once upon a time\r";
    };
    p.watch = [&](const std::string &shown, int pid) {
        const size_t question = shown.find("upon a time\r\r\n");
        if (ended || question == std::string::npos || shown.size() < question + 40) return;
        ended = true;
        kill(pid, SIGTERM);
    };
    const Result result = execute(p);
    CAPTURE(result.out);
    CHECK(result.code == 128 + SIGTERM);
    CHECK(result.out.ends_with("\x1b[?7h\x1b[?25h\x1b[0m\x1b[?2004l"));
}
