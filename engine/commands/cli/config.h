// Configuration files: TOML with a section per command, and [models] with short names for files.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace runnel::commands {

struct Setting {
    std::string name, value;
};

struct Configuration {
    std::vector<Setting> settings;              // settings for all commands, then those of the section
    std::map<std::string, std::string> models;  // short name -> path
};

// Whether `command` has an option of that name; for the empty command, whether any command has it.
using HasOption = std::function<bool(std::string_view command, std::string_view option)>;

// The settings of a file for one command: those at the top of the file that the command has, then its section
// [command]. Paths in [models] are relative to the file; "~/" is the home directory. Throws UsageError if the
// file cannot be read, or if a setting, in any section, does not exist.
Configuration read_configuration(const std::string &path, std::string_view command, const HasOption &has);

// The path of the user's file: $RUNNEL_CONFIG (empty: none), else runnel/config.toml in $XDG_CONFIG_HOME
// or ~/.config if it exists.
std::optional<std::string> user_configuration();

}  // namespace runnel::commands
