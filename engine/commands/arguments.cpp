#include "engine/commands/arguments.h"

#include <CLI/CLI.hpp>
#include <array>
#include <charconv>
#include <fstream>
#include <sstream>
#include <utility>

#include "engine/commands/io.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

// Also of options that this program does not have (yet): a message names those better than what "-md FILE"
// would be otherwise, a model called "d".
constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kSpellings = {{
    {"-ngl", "--gpu-layers"},
    {"-ctk", "--cache-type-k"},
    {"-ctv", "--cache-type-v"},
    {"-sys", "--system"},
    {"-sysf", "--system-file"},
    {"-ub", "--batch-size"},
    {"-dev", "--device"},
    {"-md", "--draft-model"},
    {"-ngld", "--gpu-layers-draft"},
    {"-devd", "--draft-device"},
    {"-cmoe", "--cpu-moe"},
    {"-ncmoe", "--n-cpu-moe"},
}};

std::string section_of(const CLI::ConfigItem &item) {
    std::string section;
    for (const std::string &parent : item.parents) section += (section.empty() ? "" : ".") + parent;
    return section;
}

}  // namespace

Arguments with_long_spellings(Arguments arguments) {
    for (std::string &argument : arguments) {
        if (argument == "--") break;
        const size_t equals = argument.find('=');
        const std::string_view name = std::string_view(argument).substr(0, equals);
        for (const auto &[spelling, option] : kSpellings)
            if (name == spelling) {
                argument.replace(0, name.size(), option);
                break;
            }
    }
    return arguments;
}

std::optional<std::string> take_config(Arguments &arguments) {
    constexpr std::string_view kOption = "--config";
    std::optional<std::string> path;
    Arguments rest;
    bool plain = false;  // behind "--"
    for (size_t i = 0; i < arguments.size(); ++i) {
        const std::string &argument = arguments[i];
        plain = plain || argument == "--";
        if (!plain && argument == kOption) {
            if (i + 1 == arguments.size()) throw UsageError("--config: the file's name is missing");
            path = arguments[++i];
        } else if (!plain && argument.starts_with("--config=")) {
            path = argument.substr(kOption.size() + 1);
        } else {
            rest.push_back(argument);
        }
    }
    arguments = std::move(rest);
    return path;
}

Arguments config_arguments(const std::string &path, const std::string &command, const HasOption &has) {
    std::istringstream text(read_all(path, 0));
    std::vector<CLI::ConfigItem> items;
    try {
        items = CLI::ConfigBase().from_config(text);
    } catch (const CLI::Error &error) {
        throw UsageError(gguf::printable(path, 4096) + ": " + error.what());
    }
    Arguments common, own;
    for (const CLI::ConfigItem &item : items) {
        if (item.name == "++" || item.name == "--")
            continue;  // CLI11's marks for the begin and end of a section
        const std::string section = section_of(item);
        if (!has(section, item.name))
            throw UsageError(gguf::printable(path, 4096) + ": unknown setting '" +
                             gguf::printable(item.name) +
                             (section.empty() ? "'" : "' in [" + gguf::printable(section) + "]"));
        if ((!section.empty() && section != command) || !has(command, item.name)) continue;
        for (const std::string &value : item.inputs)
            (section.empty() ? common : own).push_back("--" + item.name + "=" + value);
    }
    common.insert(common.end(), own.begin(), own.end());
    return common;
}

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
    if (result.model.empty()) throw UsageError("no model given: name a GGUF file");
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
