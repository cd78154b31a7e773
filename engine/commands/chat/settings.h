// What /set changes in a running chat: sampling and the length of answers, under the names of the options.
#pragma once

#include <string>
#include <string_view>

#include "engine/commands/options.h"

namespace runnel::commands {

// Throws InputError for a name that there is not (listing them) or a value that is none.
void set(GenerationFlags &flags, std::string_view name, std::string_view value);

// A line per setting: name and value.
std::string list_settings(const GenerationFlags &flags);

}  // namespace runnel::commands
