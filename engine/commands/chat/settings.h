// The settings of /set in a running chat: sampling and the length of answers, by the names of the options
// or of ollama's parameters ("num_predict").
#pragma once

#include <string>
#include <string_view>

#include "engine/commands/options.h"

namespace runnel::commands {

// Throws InputError for an unknown name (listing the known ones) or an invalid value.
void set(GenerationFlags &flags, std::string_view name, std::string_view value);

// A line per setting: name and value.
std::string list_settings(const GenerationFlags &flags);

}  // namespace runnel::commands
