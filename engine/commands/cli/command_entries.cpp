// The commands of the program. That of `make demo` has those of command_entries_demo.cpp.
#include "engine/commands/cli/command.h"
#include "engine/commands/cli/completion.h"

namespace runnel::commands {
namespace {

constexpr CommandEntry kCommands[] = {
    {"chat", chat_command},
    {"run", run_command},
    {"batch", batch_command},
    {"bench", bench_command},
    {"perplexity", perplexity_command},
    {"compare", compare_command},
    {"inspect", inspect_command},
    {"tokenize", tokenize_command},
    {"template", template_command},
    {"grammar", grammar_command},
    {"devices", devices_command},
    {"doctor", doctor_command},
    {"quantize", quantize_command},
    {"convert", convert_command},
    {"split", split_command},
    {"merge", merge_command},
    {"imatrix", imatrix_command},
    {"pull", pull_command},
    {"list", list_command},
    {"rm", rm_command},
    {"completion", completion_command},
};

}  // namespace

std::span<const CommandEntry> command_entries() {
    return kCommands;
}

std::span<const std::string_view> left_out_commands() {
    return {};
}

}  // namespace runnel::commands
