// What an attacker's code can do after enter_sandbox; a child process of the tests plays the attacker.
#include "engine/commands/sandbox/sandbox.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "engine/commands/sandbox/landlock.h"
#include "tests/engine/commands/program_support.h"
#include "tests/support/demo_model.h"
#include "tests/support/skip.h"
#include "tests/support/temporary.h"

using namespace runnel::commands;
using namespace runnel::testing;

namespace {

namespace fs = std::filesystem;

// The errno of `attack` in a confined child; 0: it succeeded.
int refused_with(const SandboxPaths &paths, const std::function<bool()> &attack) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        enter_sandbox(paths);
        errno = 0;
        _exit(attack() ? 0 : errno != 0 ? errno : 255);
    }
    int status = 0;
    waitpid(child, &status, 0);
    REQUIRE(WIFEXITED(status));
    return WEXITSTATUS(status);
}

std::function<bool()> opening(const fs::path &path, int flags = O_RDONLY) {
    return [path, flags] { return open(path.c_str(), flags | O_CLOEXEC, 0600) >= 0; };
}

bool confines_files() {
    if (landlock::version() > 0) return true;
    skip("this kernel has no Landlock");
    return false;
}

}  // namespace

TEST_CASE("sandbox: only the inputs can be opened, and only the outputs created") {
    if (!confines_files()) return;
    const TemporaryDirectory directory, elsewhere;
    const fs::path input = directory / "input", secret = elsewhere / "secret";
    std::ofstream(input) << "x";
    std::ofstream(secret) << "x";
    const SandboxPaths paths{{input}, {(directory / "out") / "result"}};
    fs::create_directory(directory / "out");

    CHECK(refused_with(paths, opening(input)) == 0);
    CHECK(refused_with(paths, opening("/proc/meminfo")) == 0);
    CHECK(refused_with(paths, opening(secret)) == EACCES);
    CHECK(refused_with(paths, opening(directory / "sister", O_WRONLY | O_CREAT)) == EACCES);
    CHECK(refused_with(paths, opening(input, O_WRONLY)) == EACCES);
    CHECK(refused_with(paths, opening("/etc/passwd")) == EACCES);
    CHECK(refused_with(paths, [&] { return unlink(secret.c_str()) == 0; }) == EACCES);
    CHECK(refused_with(paths, [&] { return truncate(secret.c_str(), 0) == 0; }) == EACCES);
    CHECK(refused_with(paths, [&] { return rename(secret.c_str(), (elsewhere / "moved").c_str()) == 0; }) ==
          EACCES);
    CHECK(fs::file_size(secret) == 1);
    // The steps that write an output are allowed.
    CHECK(refused_with(paths, [&] {
              const fs::path partial = directory / "out" / "result.partial",
                             result = directory / "out" / "result";
              return opening(partial, O_WRONLY | O_CREAT)() && rename(partial.c_str(), result.c_str()) == 0 &&
                     opening(result, O_RDWR | O_TRUNC)();
          }) == 0);
    CHECK(fs::exists(directory / "out" / "result"));
    // Threads of the process are confined as well.
    CHECK(refused_with(paths, [&] {
              bool opened = false;
              int error = 0;
              std::thread([&] { opened = opening(secret)(), error = errno; }).join();
              errno = error;
              return opened;
          }) == EACCES);
}

TEST_CASE("sandbox: programs, processes and sockets are refused") {
    CHECK(refused_with({}, [] { return execl("/bin/true", "true", static_cast<char *>(nullptr)) == 0; }) ==
          EPERM);
    CHECK(refused_with({}, [] { return fork() >= 0; }) == EPERM);
    CHECK(refused_with({}, [] { return syscall(SYS_vfork) >= 0; }) == EPERM);
    for (const int family : {AF_INET, AF_INET6, AF_UNIX, AF_NETLINK})
        CHECK(refused_with({}, [&] { return socket(family, SOCK_DGRAM, 0) >= 0; }) == EPERM);
    CHECK(refused_with({}, [] { return syscall(425, 1, nullptr) >= 0; }) == EPERM);  // io_uring_setup
    for (const unsigned long high : {0ul, 1ul << 32})
        for (const unsigned long request : {TIOCSTI, TIOCLINUX})
            CHECK(refused_with({}, [=] { return syscall(SYS_ioctl, -1, request | high, "x") == 0; }) ==
                  EPERM);
    CHECK(refused_with({}, [] { return syscall(SYS_ioctl, -1, TIOCGWINSZ, nullptr) == 0; }) == EBADF);
    CHECK(refused_with({}, [] { return syscall(SYS_ptrace, 16, getppid(), 0, 0) == 0; }) == EPERM);
    CHECK(refused_with({}, [] {
              bool ran = false;
              std::thread([&] { ran = true; }).join();
              return ran;
          }) == 0);
    if (landlock::version() >= 6) CHECK(refused_with({}, [] { return kill(getppid(), 0) == 0; }) == EPERM);
}

TEST_CASE("sandbox: all parts of a split model can be read, and outputs behind links written") {
    if (!confines_files()) return;
    const TemporaryDirectory directory;
    for (const char *name : {"m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "n-00002-of-00002.gguf"})
        std::ofstream(directory / name) << "x";
    fs::create_directory(directory / "far");
    std::ofstream(directory / "far" / "real") << "x";
    fs::create_symlink(directory / "far" / "real", directory / "link");
    const SandboxPaths paths{{directory / "m-00001-of-00002.gguf"}, {directory / "link"}};
    CHECK(refused_with(paths, opening(directory / "m-00002-of-00002.gguf")) == 0);
    CHECK(refused_with(paths, opening(directory / "n-00002-of-00002.gguf")) == EACCES);
    CHECK(refused_with(paths, opening(directory / "link", O_WRONLY)) == 0);
    CHECK(refused_with(paths, opening(directory / "far" / "new", O_WRONLY | O_CREAT)) == 0);
}

TEST_CASE("sandbox: --stats shows what is enforced, and --no-sandbox disables it") {
    REQUIRE(program_under_test());
    const std::string model = demo_model();
    const auto run = [&](std::vector<std::string> more) {
        std::vector<std::string> arguments = {"run",    model, "Once",     "-n",  "2",
                                              "--temp", "0",   "--device", "cpu", "--stats"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return runnel_with(arguments, "");
    };
    const Result on = run({}), off = run({"--no-sandbox"});
    CHECK(on.code == 0);
    CHECK(on.err.find(landlock::version() > 0 ? "sandbox  on: files, programs and network\n" : "sandbox  ") !=
          std::string::npos);
    CHECK(off.code == 0);
    CHECK(off.err.find("sandbox  off: --no-sandbox\n") != std::string::npos);
    CHECK(on.out == off.out);
}

TEST_CASE("sandbox: a chat can open files, but not start programs or make sockets") {
    const SandboxPaths all{.files = SandboxPaths::Files::All};
    CHECK(refused_with(all, opening("/etc/passwd")) == 0);
    CHECK(refused_with(all, [] { return fork() >= 0; }) == EPERM);
    CHECK(refused_with(all, [] { return socket(AF_INET, SOCK_STREAM, 0) >= 0; }) == EPERM);
    CHECK(sandbox_state().text == "off");  // the tests are not confined
}

#ifndef __SANITIZE_ADDRESS__  // the sanitizer must be the first library

TEST_CASE("sandbox: code that takes over a command while it maps the model is confined") {
    REQUIRE(program_under_test());
    const fs::path library = fs::absolute(fs::path(*program_under_test()).parent_path() / "fault.so");
    REQUIRE(fs::exists(library));
    const TemporaryDirectory directory, elsewhere;
    const std::string model = demo_model(), planted = elsewhere / "planted", out = directory / "out";
    const std::vector<std::vector<std::string>> commands = {
        {"run", model, "Once", "-n", "2", "--device", "cpu", "--stats-file", directory / "stats"},
        {"batch", model, "--lines", "-n", "2", "--device", "cpu", "-o", out},
        {"perplexity", model, "-f", held_out_text(), "-c", "32", "--chunks", "1", "--device", "cpu",
         "--save-logits", directory / "logits"},
        {"tokenize", model, "text"},
        {"inspect", model},
        {"inspect", model, "--diff", model},
        {"inspect", model, "--plan", "--plot", directory / "plan.svg"},
        {"quantize", model, directory / "quantized", "Q4_0", "--allow-requantize"},
        {"split", model, "--tensors", "20", "-o", directory / "split", "--overwrite"},
        {"imatrix", model, "-f", held_out_text(), "-c", "32", "--chunks", "1", "-o", directory / "imatrix"},
        {"bench", model, "-p", "8", "-n", "2", "-r", "1", "--device", "cpu"},
        {"doctor", model, "--quick", "--device", "cpu"},
        {"chat", model, "-n", "2", "--device", "cpu"}};
    for (const bool confined : {true, false})
        for (std::vector<std::string> command : commands) {
            CAPTURE(command[0]);
            const bool chat = command[0] == "chat";
            if (!confined) command.emplace_back("--no-sandbox");
            for (const char *name :
                 {"out", "out.resume", "stats", "logits", "plan.svg", "quantized", "imatrix"})
                fs::remove(directory / name);
            fs::remove(planted);
            Process p = process(command);
            p.input = "Once\n";
            p.environment = {"LD_PRELOAD=" + library.string(), "FAULT=exploit:1:EIO",
                             "EXPLOIT_FILE=" + planted};
            const Result r = execute(p);
            CAPTURE(r.err);
            CHECK(r.code == 0);
            const bool files = confined && !chat && landlock::version() > 0;
            const auto number = [&](int error) { return std::to_string(confined ? error : 0); };
            const std::string file = std::to_string(files ? EACCES : 0);
            CHECK(r.err.find("exploit: file " + file + " made " + file + " program " + number(EPERM) +
                             " internet " + number(EPERM) + " local " + number(EPERM) + "\n") !=
                  std::string::npos);
            CHECK(fs::exists(planted) == !files);
        }
}

TEST_CASE("sandbox: on a kernel that lacks a mechanism, commands run and --stats names it") {
    REQUIRE(program_under_test());
    const std::string library = fs::absolute(fs::path(*program_under_test()).parent_path() / "fault.so");
    const auto stats = [&](const std::string &command, const std::string &missing) {
        Process p = process({command, demo_model(), "-n", "2", "--temp", "0", "--device", "cpu", "--stats"});
        p.input = "Once\n";
        p.environment = {"LD_PRELOAD=" + library, "FAULT=" + missing + ":1:EIO", "RUNNEL_NO_HISTORY=1"};
        const Result r = execute(p);
        CAPTURE(r.err);
        CHECK(r.code == 0);
        CHECK(!r.out.empty());
        const size_t at = r.err.find("sandbox  ");
        REQUIRE(at != std::string::npos);
        return r.err.substr(at + 9, r.err.find('\n', at) - at - 9);
    };
    CHECK(stats("run", "landlock") ==
          "on: programs and network (this kernel has no Landlock: files are not confined)");
    if (landlock::version() > 0)
        CHECK(stats("run", "seccomp") ==
              "on: files (this kernel has no seccomp: programs and network are not confined)");
    CHECK(stats("run", "sandbox") == "off: this kernel has neither Landlock nor seccomp");
}

#endif
