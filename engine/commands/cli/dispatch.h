// From the arguments of the program to a call of one command.
#pragma once

#include "engine/commands/cli/command.h"

namespace runnel::commands {

// Returns the exit code. Settings come from the user's configuration file, then RUNNEL_* variables, then
// --config, then the command line: the last one counts. Throws what commands throw, UsageError foremost.
int dispatch(const Arguments &arguments, Io &io);

}  // namespace runnel::commands
