// Running the program under test: $RUNNEL, by default build/runnel.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace runnel::testing {

struct Process {
    std::vector<std::string> arguments;             // without the program's name
    std::optional<std::string> input;               // of stdin; otherwise /dev/null
    bool input_ends = true;                         // otherwise the program waits for more behind `input`
    std::vector<std::string> environment;           // "NAME=value", beside what the tests have
    std::string stdout_to;                          // a file instead of the pipe ("/dev/full")
    size_t stdout_limit = static_cast<size_t>(-1);  // the pipe is closed after so many bytes
    // Called after every piece of output, with all of it and the process id.
    std::function<void(const std::string &, int pid)> watch = nullptr;
    std::function<void(int pid)> started = nullptr;  // called once, when it runs
    bool terminal = false;  // stdin, stdout and stderr are a terminal; `input` is typed, err is in out
    // What the terminal shows so far, and whether the program reads single keys there (it edits a line) ->
    // what to type next. Called again and again; "" waits for more.
    std::function<std::string(const std::string &shown, bool reads_keys)> type = nullptr;
};

struct Result {
    int code;  // exit status; 128 + signal when killed
    std::string out, err;
};

// Kills what hangs, with code 124: after five minutes, which nothing else takes, be the machine slow and
// busy.
Result execute(const Process &process);

// Where the program is, or nullopt (tests then pass with a MESSAGE).
std::optional<std::string> program_under_test();

}  // namespace runnel::testing
