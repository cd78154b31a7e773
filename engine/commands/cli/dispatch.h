// Runs the command that the program's arguments name.
#pragma once

#include "engine/commands/cli/command.h"

namespace runnel::commands {

// Returns the exit code. Settings come from the user's configuration file, then RUNNEL_* variables, then
// --config, then the command line; later ones take precedence. Throws UsageError and what the command throws.
int dispatch(const Arguments &arguments, Io &io);

}  // namespace runnel::commands
