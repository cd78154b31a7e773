#include "engine/commands/arguments.h"

#include <charconv>

#include "engine/commands/io.h"
#include "gguf/printable.h"

namespace runnel::commands {
Words split_words(const Arguments &words, const std::optional<std::string> &model_option,
                  const std::optional<std::string> &model_default, bool takes_text) {
    size_t next = 0;
    Words result;
    if (model_option) {
        result.model = *model_option;
    } else if (model_default &&
               (words.empty() || (takes_text && words.size() == 1 && !words[0].ends_with(".gguf")))) {
        result.model = *model_default;
    } else if (!words.empty()) {
        result.model = words[next++];
    }
    if (result.model.empty())
        throw UsageError("no model given: name a GGUF file, or one that runnel list shows");
    if (takes_text && next < words.size()) result.text = words[next++];
    if (next < words.size())
        throw UsageError("unexpected argument '" + gguf::printable(words[next]) +
                         (takes_text ? "' (a prompt of several words goes in quotes)" : "'"));
    return result;
}

Shard parse_shard(const std::string &text) {
    Shard shard{0, 0};
    const char *const end = text.data() + text.size();
    const auto [slash, error] = std::from_chars(text.data(), end, shard.part);
    const bool has_slash = error == std::errc() && slash != end && *slash == '/';
    const auto [rest, rest_error] = std::from_chars(has_slash ? slash + 1 : end, end, shard.parts);
    if (!has_slash || rest_error != std::errc() || rest != end || shard.part < 1 || shard.parts < shard.part)
        throw UsageError("--shard " + gguf::quoted(text) + ": write I/N, with I from 1 to N: 1/4");
    return shard;
}

}  // namespace runnel::commands
