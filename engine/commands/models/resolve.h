// MODEL: a file, a folder with one model, a name that `runnel list` shows, or hf.co/USER/REPO[:QUANT], which is
// downloaded if it is not there.
#pragma once

#include <map>
#include <string>

#include "engine/commands/io.h"

namespace runnel::commands {

// The path of the model's file, for a MODEL that is not a short name of the configuration. `short_names` serve only as
// suggestions. Throws UsageError, with what the user may have meant, if there is no such model, and what pull() throws.
std::string resolve_model(const std::string &word, const std::map<std::string, std::string> &short_names,
                          bool is_offline, Io &io);

}  // namespace runnel::commands
