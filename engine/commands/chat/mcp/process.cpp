#include "engine/commands/chat/mcp/process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "engine/commands/io.h"
#include "gguf/base/timer.h"
#include "gguf/printable.h"

namespace runnel::commands::mcp {
namespace {

struct Pipe {
    Descriptor read, write;
};

Pipe make_pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw StartError("no pipe: " + std::generic_category().message(errno));
    return {Descriptor(ends[0], true), Descriptor(ends[1], true)};
}

// A duplicate of a pipe's end for this process, non-blocking.
void own_end(const Descriptor &end, std::optional<Descriptor> &own) {
    own.emplace(fcntl(end.get(), F_DUPFD_CLOEXEC, 3), true);
    if (own->get() < 0) throw StartError("no pipe: " + std::generic_category().message(errno));
    fcntl(own->get(), F_SETFL, fcntl(own->get(), F_GETFL) | O_NONBLOCK);
}

// This process's environment as "NAME=value"; variables of the configuration replace those of the same name.
std::vector<std::string> environment_of(const ServerConfig &config) {
    std::vector<std::string> all;
    for (char **entry = environ; entry && *entry; ++entry) {
        const std::string_view text = *entry;
        const auto is_same = [&](const auto &set) {
            return text.starts_with(set.first) && text.substr(set.first.size()).starts_with('=');
        };
        if (std::ranges::none_of(config.environment, is_same)) all.emplace_back(text);
    }
    for (const auto &[name, value] : config.environment) all.push_back(name + "=" + value);
    return all;
}

bool is_program(const std::string &path) {
    struct stat status {};
    return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && access(path.c_str(), X_OK) == 0;
}

// The program that a command names: a path, or a file in a folder of the PATH that the server gets.
std::string program_of(const std::string &command, const std::vector<std::string> &environment) {
    if (command.find('/') != command.npos) return command;
    std::string_view folders = "/usr/local/bin:/usr/bin:/bin";
    for (const std::string &entry : environment)
        if (entry.starts_with("PATH=")) folders = std::string_view(entry).substr(5);
    while (!folders.empty()) {
        const size_t end = std::min(folders.find(':'), folders.size());
        const std::string path = std::string(end == 0 ? "." : folders.substr(0, end)) + "/" + command;
        if (is_program(path)) return path;
        folders.remove_prefix(std::min(end + 1, folders.size()));
    }
    throw StartError("command not found: " + gguf::printable(command));
}

std::vector<char *> pointers(std::vector<std::string> &texts) {
    std::vector<char *> list;
    for (std::string &text : texts) list.push_back(text.data());
    list.push_back(nullptr);
    return list;
}

}  // namespace

ServerProcess::ServerProcess(const ServerConfig &config) {
    std::vector<std::string> environment = environment_of(config), arguments = config.arguments;
    const std::string program = program_of(config.command, environment);
    arguments.insert(arguments.begin(), config.command);
    const Pipe in = make_pipe(), out = make_pipe(), errors = make_pipe();

    struct Actions {
        posix_spawn_file_actions_t all;
        posix_spawnattr_t attributes;
        Actions() { posix_spawn_file_actions_init(&all), posix_spawnattr_init(&attributes); }
        ~Actions() { posix_spawn_file_actions_destroy(&all), posix_spawnattr_destroy(&attributes); }
    } actions;
    posix_spawn_file_actions_adddup2(&actions.all, in.read.get(), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions.all, out.write.get(), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions.all, errors.write.get(), STDERR_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&actions.all, 3);
    if (config.folder) posix_spawn_file_actions_addchdir_np(&actions.all, config.folder->c_str());
    sigset_t defaults, none;
    sigemptyset(&defaults), sigemptyset(&none);
    for (const int number : {SIGINT, SIGQUIT, SIGPIPE, SIGXFSZ, SIGTERM, SIGHUP})
        sigaddset(&defaults, number);
    posix_spawnattr_setsigdefault(&actions.attributes, &defaults);
    posix_spawnattr_setsigmask(&actions.attributes, &none);
    posix_spawnattr_setflags(&actions.attributes,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    own_end(in.write, input_);
    own_end(out.read, output_);
    own_end(errors.read, errors_);
    if (const int error = posix_spawn(&process_, program.c_str(), &actions.all, &actions.attributes,
                                      pointers(arguments).data(), pointers(environment).data());
        error != 0) {
        struct stat status {};
        const bool no_folder = config.folder && stat(config.folder->c_str(), &status) != 0;
        throw StartError(no_folder ? "no folder " + gguf::printable(*config.folder, 4096)
                                   : "cannot start " + gguf::printable(program, 4096) + ": " +
                                         std::generic_category().message(error));
    }
}

bool ServerProcess::ended_within(std::chrono::milliseconds time) const {
    const base::Clock::time_point end = base::Clock::now() + time;
    for (std::chrono::milliseconds pause{1};; pause = std::min(2 * pause, std::chrono::milliseconds{20})) {
        siginfo_t info{};
        // WNOWAIT: the number of its process group must stay taken until the group is ended.
        if (waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
            info.si_pid == process_)
            return true;
        if (base::Clock::now() >= end) return false;
        std::this_thread::sleep_for(pause);
    }
}

std::optional<std::string> ServerProcess::ending(std::chrono::milliseconds time) {
    if (ending_ || !ended_within(time)) return ending_;
    kill(-process_, SIGKILL);  // ends the processes that the server started
    int status = 0;
    while (waitpid(process_, &status, 0) < 0 && errno == EINTR) continue;
    ending_ = WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                                  : "exit code " + std::to_string(WEXITSTATUS(status));
    return ending_;
}

void ServerProcess::end(std::span<ServerProcess *const> all) {
    for (ServerProcess *process : all) {
        process->input_.reset();
        process->output_.reset();
        process->errors_.reset();
    }
    for (const int number : {SIGTERM, SIGKILL}) {
        const base::Clock::time_point until = base::Clock::now() + kPatience;
        for (const ServerProcess *process : all) {
            const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - base::Clock::now());
            if (!process->ending_ && !process->ended_within(left)) kill(-process->process_, number);
        }
    }
    for (ServerProcess *process : all) process->ending(kPatience);
}

ServerProcess::~ServerProcess() {
    ServerProcess *const self = this;
    end({&self, 1});
}

}  // namespace runnel::commands::mcp
