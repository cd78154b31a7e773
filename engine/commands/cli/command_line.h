// The words of a command line against the options of a command.
#pragma once

#include <string>
#include <vector>

#include "engine/commands/cli/command.h"

namespace runnel::commands {

struct CommandLine {
    struct Given {
        const Option *option;
        std::string value;  // of a flag: "true" unless it says otherwise
        std::string typed;  // as the user spells the option
    };
    std::vector<Given> given;        // in their order
    Arguments words;                 // what is no option
    std::vector<std::string> notes;  // on options of other programs that have nothing to do here
};

// Options are "--name VALUE", "--name=VALUE", "-n VALUE", "-n5" and names of several letters with one dash
// ("-ngl"), which are never taken for several options; "_" in a name is "-"; what follows "--" are words.
// Throws UsageError for an option that the command does not have, saying what may be meant, and for a missing
// value.
CommandLine parse_command_line(const Arguments &arguments, const Command &command);

}  // namespace runnel::commands
