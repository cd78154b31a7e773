// MODEL: a file, a folder with one model, a name that `runnel list` shows, or hf.co/USER/REPO[:QUANT], which is
// downloaded if it is not there.
#pragma once

#include <map>
#include <string>

#include "engine/commands/io.h"

namespace runnel::commands {

// The path of the model's file. `word` is not one of `short_names`, which serve only for suggestions. Throws
// UsageError with suggestions if there is no such model, and what pull() throws.
std::string resolve_model(const std::string &word, const std::map<std::string, std::string> &short_names,
                          bool is_offline, Io &io);

}  // namespace runnel::commands
