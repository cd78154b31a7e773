// Confines a command to what its arguments need, enforced by the kernel: if a model file takes over the process through
// a bug in this program, it can neither open other files nor start programs nor create sockets.
//
// Every command that reads models, grammars or templates enters the sandbox before it reads them, so that all later
// threads are confined as well; `pull` and `rm`, which read none, do not. The sandbox uses two mechanisms of Linux,
// each as far as the kernel has it:
//   Landlock   only the files that the arguments name are read, and only the folders of the named outputs are
//              written to (an output appears by rename, which needs rights on the folder); no signals to
//              other processes. Runs that store prompts may read and write the whole folder of prompts
//              (~/.cache/runnel/prompts), including those of other models
//   seccomp    no exec, no new processes, no sockets; no io_uring, ptrace or other calls that get around this; no
//              input simulated on the terminal
//
// `chat` and `list` (Files::All) are confined by seccomp only, and can send signals to other processes: the commands of
// a chat may name files at any time (a helper process starts its editor, chat/editor.h), and `list` reads what lies in
// several folders. Runs that may use a GPU are not confined, because the files and calls that GPU drivers need differ
// by version. With --device auto these are all runs on a machine with a CUDA device; with --device cpu they are
// confined there, too. `list` has no --device: on such a machine it is never confined.
#pragma once

#include <string>
#include <vector>

namespace runnel::commands {

struct SandboxPaths {
    std::vector<std::string> inputs{};   // files; one part of a split model means all. "" and "-" are ignored
    std::vector<std::string> outputs{};  // files that may be created, replaced and read
    enum class Files { Named, All } files = Files::Named;  // All: files are not confined
};

// What is enforced; `text` describes it for users.
struct SandboxState {
    bool files = false, calls = false;  // by Landlock, by seccomp
    std::string text = "off";           // "files, programs and network", "off: ..."
};

// Confines this process and all threads that it starts later; this cannot be undone. The result shows which
// mechanisms the kernel lacks. Throws std::bad_alloc: the command must not run unconfined because memory is short.
SandboxState enter_sandbox(const SandboxPaths &paths);

// The state of this process: the last result of enter_sandbox, or the reason given to stay_outside.
const SandboxState &sandbox_state();
void stay_outside(const std::string &why);

// Whether `device` (a value of --device) may select a GPU of this machine.
bool may_use_gpu(const std::string &device);

}  // namespace runnel::commands
