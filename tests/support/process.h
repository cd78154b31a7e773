// Running the program under test: $RUNNEL, by default build/runnel.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace runnel::testing {

struct Process {
    std::vector<std::string> arguments;    // without the program's name
    std::optional<std::string> input;      // of stdin; otherwise /dev/null
    bool input_ends = true;                // otherwise the program waits for more after `input`
    std::vector<std::string> environment;  // "NAME=value", in addition to the environment of the tests
    std::string stdout_to;                 // a file instead of the pipe ("/dev/full")
    size_t stdout_limit = static_cast<size_t>(-1);  // the pipe is closed after this many bytes
    // Called after every piece of output with all output so far and the process id.
    std::function<void(const std::string &, int pid)> watch = nullptr;
    std::function<void(int pid)> started = nullptr;  // called once, when the process runs
    bool terminal = false;  // stdin, stdout and stderr are a terminal; `input` is typed; stderr goes to `out`
    int columns = 80, rows = 24;
    // The program is a foreground job, as of a shell. When it stops, "[stopped]" is shown, or "[stopped in raw mode]" if
    // it has not restored the terminal's mode; when a line is then typed, it continues.
    bool job_control = false;
    // Called before `type` with all output so far; gives the window another size, if it returns one.
    std::function<std::optional<std::pair<int, int>>(const std::string &shown)> resize = nullptr;
    // Given the terminal's content, and whether the program reads single keys (it edits a line), returns what
    // to type next. Called repeatedly; "" waits for more.
    std::function<std::string(const std::string &shown, bool reads_keys)> type = nullptr;
};

struct Result {
    int code;  // exit status; 128 + signal when killed
    std::string out, err;
};

// Kills a process that hangs, with code 124: after five minutes, far more than any test takes
// on a slow and busy machine.
Result execute(const Process &process);

// The path of the program, or nullopt.
std::optional<std::string> program_under_test();

}  // namespace runnel::testing
