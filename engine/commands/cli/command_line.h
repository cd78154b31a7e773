// Parses the words of a command line with the options of a command.
#pragma once

#include <string>
#include <vector>

#include "engine/commands/cli/command.h"

namespace runnel::commands {

struct CommandLine {
    struct Given {
        const Option *option;
        std::string value;  // of a flag: "true", or its explicit value
        std::string typed;  // the option as the user typed it
    };
    std::vector<Given> given;        // in their order
    Arguments words;                 // words that are not options
    std::vector<std::string> notes;  // notes about ignored options of other programs
};

// Options are "--name VALUE", "--name=VALUE", "-n VALUE", "-n5" and names of several letters with
// one dash ("-ngl"), which are never read as several options; "_" in a name is "-"; words after "--"
// are not options. Throws UsageError for an unknown option, with a suggestion, and for a missing
// value.
CommandLine parse_command_line(const Arguments &arguments, const Command &command);

}  // namespace runnel::commands
