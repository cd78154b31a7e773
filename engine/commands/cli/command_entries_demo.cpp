// The commands of the program that `make demo` builds. It takes the place of command_entries.cpp there, and the Makefile leaves
// out what only the other commands use.
#include "engine/commands/cli/command.h"
#include "engine/commands/cli/completion.h"

namespace runnel::commands {
namespace {

constexpr CommandEntry kCommands[] = {
    {"chat", chat_command}, {"run", run_command}, {"pull", pull_command},
    {"list", list_command}, {"rm", rm_command},
};

constexpr std::string_view kLeftOut[] = {
    "batch",   "bench",  "perplexity", "compare", "inspect", "tokenize", "template", "grammar",
    "devices", "doctor", "quantize",   "convert", "split",   "merge",    "imatrix",  "completion"};

}  // namespace

std::span<const CommandEntry> command_entries() {
    return kCommands;
}

std::span<const std::string_view> left_out_commands() {
    return kLeftOut;
}

}  // namespace runnel::commands
