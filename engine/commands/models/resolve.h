// MODEL: a file, a folder with one model, or a name that `runnel list` shows.
#pragma once

#include <map>
#include <string>

namespace runnel::commands {

// The path of the model's file, for a MODEL that is no short name of the configuration. `short_names` are only
// suggested. Throws UsageError if there is none, with what the user may have meant.
std::string resolve_model(const std::string &word, const std::map<std::string, std::string> &short_names);

}  // namespace runnel::commands
