// What a command may do once its arguments are known, enforced by the kernel: a model file that takes the process
// over, by an error in this program, can neither open other files, nor start a program, nor make a socket.
//
// `run`, `batch`, `chat`, `perplexity` and `tokenize` enter before they read a byte of the model, so that all
// threads that come later are confined with them. Two mechanisms of Linux, each used as far as the kernel has it:
//   Landlock   only the files that the arguments name are read, and only the folders of the named outputs are
//              written to (an output appears by rename, so the folder is what can be allowed); no signals to
//              other processes
//   seccomp    no exec, no new processes, no sockets, no io_uring, ptrace or other ways around that
//
// A chat is held by seccomp alone, because a person names files in it at any time; its editor is started by a
// process of its own (chat/editor.h). Not confined: whatever may use a GPU, because what its driver opens and
// calls differs from driver to driver and was not measured. With --device auto that is every machine with a
// CUDA device; --device cpu confines there, too.
#pragma once

#include <string>
#include <vector>

namespace runnel::commands {

struct SandboxPaths {
    std::vector<std::string> inputs{};   // files; of a model in parts, all parts are meant. "" and "-": none
    std::vector<std::string> outputs{};  // files that may be made, replaced and read
    enum class Files { Named, All } files = Files::Named;  // All: none is out of reach
};

// What holds, in a few words; for people.
struct SandboxState {
    bool files = false, calls = false;  // by Landlock, by seccomp
    std::string text = "off";           // "files, programs and network", "off: ..."
};

// Confines this process for good, with all threads that it starts from now on. Never throws; what the kernel
// cannot do is left out, and the result says so.
SandboxState enter_sandbox(const SandboxPaths &paths);

// Of this process: what enter_sandbox gave last, or why it was not called (set by stay_outside).
const SandboxState &sandbox_state();
void stay_outside(const std::string &why);

// A device that would make `device` (as --device says it) run on a GPU is there.
bool may_use_gpu(const std::string &device);

}  // namespace runnel::commands
