// Help, from the commands' descriptions and their tables of options. Lines of at most 80 columns.
#pragma once

#include <string>
#include <string_view>

#include "engine/commands/cli/command.h"

namespace runnel::commands {

// What runnel can do: a line per command.
std::string overview();

// `all`: also options that are rarely needed, and every spelling.
std::string help(const Command &command, bool all);

// `text` in lines of at most `width` columns, every line but the first behind `indent` blanks.
std::string wrapped(std::string_view text, size_t indent, size_t width = 80);

// "  -c, --ctx-size N": how an option is written, with `all` in every spelling.
std::string spellings(const Option &option, bool all);

// "context in tokens (default: 0)".
std::string explanation(const Option &option);

}  // namespace runnel::commands
