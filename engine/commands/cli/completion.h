// Shell completion scripts, generated from the tables of options.
#pragma once

#include <string>
#include <string_view>

#include "engine/commands/cli/command.h"

namespace runnel::commands {

// A script for bash, zsh or fish that completes commands, options, their values and GGUF files. Throws
// UsageError for another shell.
std::string completion_script(std::string_view shell);

Command completion_command();

}  // namespace runnel::commands
