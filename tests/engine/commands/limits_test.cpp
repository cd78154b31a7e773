// Every command under hard limits: little address space, no space for files, few descriptors, a small stack,
// little time, closed descriptors, no HOME, folders without write permission, a user without rights. Each
// command succeeds or gives the reason in one line with a documented exit code, soon, and leaves no
// incomplete file.
#include <doctest/doctest.h>
#include <elf.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "tests/engine/commands/program_support.h"
#include "tests/support/data.h"
#include "tests/support/demo_model.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;

#ifndef __SANITIZE_ADDRESS__  // the sanitizer needs terabytes of address space

namespace {

namespace fs = std::filesystem;

struct Ended {
    int status;
    std::string out, err;
};

// Runs in `folder`, with `prepare` called in the child. Its output goes to files: pipes would need descriptors.
Ended ended(const fs::path &folder, const std::vector<std::string> &arguments,
            const std::function<void()> &prepare) {
    const std::string program = program_under_test().value();
    std::vector<char *> argv{const_cast<char *>(program.c_str())};
    for (const std::string &argument : arguments) argv.push_back(const_cast<char *>(argument.c_str()));
    argv.push_back(nullptr);
    const fs::path out = folder / "stdout", err = folder / "stderr";
    const int binary = open(program.c_str(), O_RDONLY | O_CLOEXEC);
    REQUIRE(binary >= 0);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        dup2(open("/dev/null", O_RDONLY), 0);
        dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
        dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
        // Close descriptors that the caller left open (make's jobs), because they would count.
        if (binary > 3) close_range(3, static_cast<unsigned>(binary) - 1, 0);
        close_range(static_cast<unsigned>(binary) + 1, ~0u, 0);
        for (const int number : {SIGINT, SIGPIPE, SIGXFSZ}) signal(number, SIG_DFL);
        close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);  // descriptors that the tests inherited must not count
        alarm(60);
        prepare();
        fexecve(binary, argv.data(), environ);
        _exit(127);
    }
    close(binary);
    Ended result{};
    waitpid(child, &result.status, 0);
    result.out = read_file(out), result.err = read_file(err);
    return result;
}

std::function<void()> limit(int what, rlim_t value) {
    return [what, value] {
        const rlimit both{value, value};
        setrlimit(static_cast<__rlimit_resource>(what), &both);
    };
}

struct Place {
    const char *name;
    std::function<void()> prepare;
    bool ends_by_signal = false;  // SIGXCPU cannot be handled
};

// Address space that the program takes before it begins: the segments of its file (with device code, 60 MB).
rlim_t image_bytes() {
    std::ifstream file(program_under_test().value(), std::ios::binary);
    Elf64_Ehdr header{};
    REQUIRE(file.read(reinterpret_cast<char *>(&header), sizeof header));
    rlim_t end = 0;
    file.seekg(static_cast<std::streamoff>(header.e_phoff));
    for (int i = 0; i < header.e_phnum; ++i) {
        Elf64_Phdr segment{};
        REQUIRE(file.read(reinterpret_cast<char *>(&segment), sizeof segment));
        if (segment.p_type == PT_LOAD) end = std::max<rlim_t>(end, segment.p_vaddr + segment.p_memsz);
    }
    return end;
}

std::vector<Place> places(const fs::path &folder) {
    const rlim_t image = image_bytes();
    return {{"no address space", limit(RLIMIT_AS, image + (8 << 20))},
            {"little address space", limit(RLIMIT_AS, image + (140 << 20))},
            {"no room in files", limit(RLIMIT_FSIZE, 0)},
            {"little room in files", limit(RLIMIT_FSIZE, 700)},
            {"four descriptors", limit(RLIMIT_NOFILE, 4)},
            {"six descriptors", limit(RLIMIT_NOFILE, 6)},
            {"a small stack", limit(RLIMIT_STACK, 256 << 10)},
            {"no time", limit(RLIMIT_CPU, 0), true},
            {"no stdin", [] { close(0); }},
            {"no stdout", [] { close(1); }},
            {"no stderr", [] { close(2); }},
            {"no descriptors", [] { close(0), close(1), close(2); }},
            {"no HOME", [] { unsetenv("HOME"), unsetenv("XDG_STATE_HOME"); }},
            {"a folder that is not there",
             [folder] { (void)!chdir((folder / "gone").c_str()), rmdir((folder / "gone").c_str()); }},
            {"no rights", [] {
                 if (geteuid() == 0) (void)!setgid(65534), (void)!setuid(65534);
             }}};
}

}  // namespace

TEST_CASE("limits: every command under every limit succeeds or says why not, and leaves nothing half done") {
    REQUIRE(program_under_test());
    const TemporaryDirectory directory;
    const fs::path model = directory / "m.gguf", text = directory / "text", rows = directory / "rows",
                   outputs = directory / "o";
    fs::copy_file(demo_model(), model);
    std::ofstream(text) << read_file(held_out_text()).substr(0, 1500);
    std::ofstream(rows)
        << "{\"prompt\": \"One\", \"max_tokens\": 4}\n{\"prompt\": \"Two\", \"max_tokens\": 4}\n";
    fs::permissions(directory.path(), fs::perms::all);
    const std::vector<std::vector<std::string>> commands = {
        {"run", model, "Once", "-n", "4", "--temp", "0", "-t", "2", "--stats-file", outputs / "stats"},
        {"batch", model, "-i", rows, "--temp", "0", "-t", "2", "-o", outputs / "out"},
        {"chat", model, "-n", "4", "-t", "2"},
        {"perplexity", model, "-f", text, "-c", "32", "--chunks", "1", "-t", "2", "--save-logits",
         outputs / "logits"},
        {"tokenize", model, "Once upon"},
        {"inspect", model},
        {"template", model},
        {"devices"},
    };
    for (const auto &command : commands)
        for (const Place &place : places(directory.path())) {
            CAPTURE(command[0]);
            CAPTURE(place.name);
            fs::create_directories(outputs);
            fs::permissions(outputs, fs::perms::all);
            fs::create_directories(directory / "gone");
            const Ended result = ended(directory.path(), command, place.prepare);
            CAPTURE(result.err);
            CAPTURE(result.status);
            if (WIFSIGNALED(result.status)) {
                CHECK(place.ends_by_signal);
                CHECK((WTERMSIG(result.status) == SIGXCPU || WTERMSIG(result.status) == SIGKILL));
            } else {
                const int code = WEXITSTATUS(result.status);
                CHECK(code <= 5);
                const bool can_speak = std::string_view(place.name) != "no stderr" &&
                                       std::string_view(place.name) != "no descriptors" &&
                                       std::string_view(place.name) != "no room in files";
                if (code != 0 && can_speak) CHECK(result.err.find("runnel: ") != std::string::npos);
                CHECK(result.err.find("terminate") == std::string::npos);
            }
            for (const auto &entry : fs::directory_iterator(outputs)) {
                const std::string name = entry.path().filename();
                CAPTURE(name);
                if (!place.ends_by_signal) CHECK(name.find("partial") == std::string::npos);
                if (name == "logits" && WIFEXITED(result.status)) CHECK(fs::file_size(entry.path()) > 8);
                if (name == "logits") CHECK(read_file(entry.path()).starts_with("_logits_"));
                if (name == "stats") CHECK(read_file(entry.path()).starts_with("{"));
            }
            fs::remove_all(outputs);
        }
}

#endif
