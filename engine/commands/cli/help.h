// Generates help from the commands' descriptions and options. Lines have at most 80 columns.
#pragma once

#include <string>
#include <string_view>

#include "engine/commands/cli/command.h"

namespace runnel::commands {

// The list of commands, one per line.
std::string overview();

// `all`: includes rarely needed options, and every spelling.
std::string help(const Command &command, bool all);

// `text` in lines of at most `width` columns; every line but the first is indented by `indent` blanks.
std::string wrapped(std::string_view text, size_t indent, size_t width = 80);

// "  -c, --ctx-size N": the spelling of an option; with `all`, every spelling.
std::string spellings(const Option &option, bool all);

// "context in tokens (default: 0)".
std::string explanation(const Option &option);

}  // namespace runnel::commands
