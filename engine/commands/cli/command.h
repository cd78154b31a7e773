// A command as data: its name, help text and options, and the function that runs it.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/commands/arguments.h"
#include "engine/commands/cli/option.h"
#include "engine/commands/io.h"

namespace runnel::commands {

// Common to all commands: the general options, and the model.
struct Common {
    bool quiet = false, overwrite = false, version = false, help = false, help_all = false;
    std::optional<std::string> model, config;
    std::optional<std::string> hub_repo, hub_file;  // -hf in place of MODEL
    bool is_offline = false;
};

struct Command {
    enum class Model { None, Optional, Needed };

    std::string_view name;
    std::string_view usage;    // after the name: "MODEL [PROMPT]"
    std::string_view summary;  // one line in the list of commands
    std::string_view description;
    std::vector<std::string_view> examples;  // without "runnel"
    Model model = Model::Needed;
    bool takes_text = false;
    size_t operands = 0;  // required words after MODEL: OUT and TYPE
    // If set: gives `operands` for the options and the number of words on the command line. Throws UsageError.
    std::function<size_t(size_t words)> operands_now = {};
    bool operands_are_models = false;           // names of models are resolved to files, as MODEL is
    bool writes_files = false;                  // adds --overwrite
    std::function<bool()> needs_no_model = {};  // whether the given options make MODEL unnecessary
    OptionTable options = {};
    // Runs the command after the options are set. Returns the exit code.
    std::function<int(const Words &, Io &)> call = {};
};

struct CommandEntry {
    std::string_view name;
    Command (*make)();
};

// The commands of this program, in the order of help.
std::span<const CommandEntry> command_entries();

// Names of commands that this program was built without. Only the program of `make demo` lacks any
// (command_entries_demo.cpp).
std::span<const std::string_view> left_out_commands();

// Adds the options that all commands have. Keeps a reference to `common`.
Command with_common_options(Command command, Common &common);

Command chat_command();
Command run_command();
Command batch_command();
Command bench_command();
Command perplexity_command();
Command compare_command();
Command inspect_command();
Command tokenize_command();
Command template_command();
Command grammar_command();
Command devices_command();
Command doctor_command();
Command quantize_command();
Command convert_command();
Command split_command();
Command merge_command();
Command imatrix_command();
Command pull_command();
Command list_command();
Command rm_command();

}  // namespace runnel::commands
