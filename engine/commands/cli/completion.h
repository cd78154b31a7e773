// Shell completion from the commands' tables.
#pragma once

#include <string>
#include <string_view>

#include "engine/commands/cli/command.h"

namespace runnel::commands {

// A script for bash, zsh or fish that completes commands, options, their words and GGUF files. Throws
// UsageError for another shell.
std::string completion_script(std::string_view shell);

Command completion_command();

}  // namespace runnel::commands
