// The words of a command line that are not options.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace runnel::commands {

using Arguments = std::vector<std::string>;

// MODEL [TEXT] on the command line; the model may also come from -m or from a default
// (environment or configuration).
struct Words {
    std::string model;
    std::optional<std::string> text;
    Arguments operands = {};  // further required words after MODEL
};
// Throws UsageError for a missing model and for extra words.
Words split_words(const Arguments &words, const std::optional<std::string> &model_option,
                  const std::optional<std::string> &model_default, bool takes_text);

// "I/N" of --shard: 1 <= I <= N. Throws UsageError.
struct Shard {
    int64_t part, parts;
};
Shard parse_shard(const std::string &text);

}  // namespace runnel::commands
