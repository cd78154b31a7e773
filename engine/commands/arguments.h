// The argument list before it is parsed: llama.cpp's spellings, and settings from a configuration file.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace runnel::commands {

using Arguments = std::vector<std::string>;

// Two-letter options that llama.cpp writes with one dash ("-ngl 99", "-sys TEXT", "-ub 512") become the long
// ones of this program. What follows "--" is left alone.
Arguments with_long_spellings(Arguments arguments);

// Removes "--config FILE" (or "--config=FILE"; the last one counts) and returns FILE.
std::optional<std::string> take_config(Arguments &arguments);

// Whether `command` has the long option of that name; the empty command: whether any has it.
using HasOption = std::function<bool(const std::string &command, const std::string &option)>;

// The settings of a TOML/INI file for one command, as arguments: those at the top of the file, where the
// command has such an option, then those of the section [command]. Throws UsageError when the file cannot be
// read or has a setting, at the top or in any section, that is none.
Arguments config_arguments(const std::string &path, const std::string &command, const HasOption &has);

// MODEL [TEXT] on the command line, where the model may also come from -m, or from a default (environment or
// configuration).
struct Words {
    std::string model;
    std::optional<std::string> text;
};
// Throws UsageError for a missing model and for words that are left over.
Words split_words(const Arguments &words, const std::optional<std::string> &model_option,
                  const std::optional<std::string> &model_default, bool takes_text);

// "I/N" of --shard: 1 <= I <= N. Throws UsageError.
struct Shard {
    int64_t part, parts;
};
Shard parse_shard(const std::string &text);

}  // namespace runnel::commands
