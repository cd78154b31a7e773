#include "engine/commands/cli/config.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <utility>

#include "engine/commands/io.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

namespace fs = std::filesystem;

std::string section_of(const CLI::ConfigItem &item) {
    std::string section;
    for (const std::string &parent : item.parents) section += (section.empty() ? "" : ".") + parent;
    return section;
}

std::optional<std::string> variable(const char *name) {
    const char *value = std::getenv(name);
    return value && *value ? std::optional<std::string>(value) : std::nullopt;
}

fs::path model_path(const std::string &text, const fs::path &file) {
    if (const auto home = variable("HOME"); home && text.starts_with("~/"))
        return fs::path(*home) / text.substr(2);
    if (text.starts_with("hf.co/") || text.starts_with("huggingface.co/")) return text;
    const fs::path path = fs::path(text).is_absolute() ? fs::path(text) : file.parent_path() / text;
    std::error_code error;
    const bool is_name = text.find(':') != std::string::npos && !fs::exists(path, error);  // of runnel list
    return is_name ? fs::path(text) : path;
}

}  // namespace

Configuration read_configuration(const std::string &path, std::string_view command, const HasOption &has) {
    std::istringstream text(read_all(path, 0));
    std::vector<CLI::ConfigItem> items;
    try {
        items = CLI::ConfigBase().from_config(text);
    } catch (const CLI::Error &error) {
        throw UsageError(gguf::printable(path, 4096) + ": not a TOML file: " + error.what());
    }
    Configuration result;
    std::vector<Setting> own;
    for (const CLI::ConfigItem &item : items) {
        if (item.name == "++" || item.name == "--")
            continue;  // CLI11's markers for the start and end of a section
        const std::string section = section_of(item);
        if (section == "models") {
            if (item.inputs.size() != 1)
                throw UsageError(gguf::printable(path, 4096) + ": [models] " + gguf::printable(item.name) +
                                 ": write NAME = \"FILE\"");
            result.models[item.name] = model_path(item.inputs[0], path).string();
            continue;
        }
        if (!has(section, item.name))
            throw UsageError(gguf::printable(path, 4096) + ": unknown setting '" +
                             gguf::printable(item.name) +
                             (section.empty() ? "'" : "' in [" + gguf::printable(section) + "]"));
        if ((!section.empty() && section != command) || !has(command, item.name)) continue;
        for (const std::string &value : item.inputs)
            (section.empty() ? result.settings : own).push_back({item.name, value});
    }
    result.settings.insert(result.settings.end(), own.begin(), own.end());
    return result;
}

std::optional<std::string> user_configuration() {
    if (const char *named = std::getenv("RUNNEL_CONFIG"))
        return *named ? std::optional<std::string>(named) : std::nullopt;
    fs::path folder;
    if (const auto xdg = variable("XDG_CONFIG_HOME"))
        folder = *xdg;
    else if (const auto home = variable("HOME"))
        folder = fs::path(*home) / ".config";
    else
        return std::nullopt;
    const fs::path file = folder / "runnel" / "config.toml";
    std::error_code error;
    return fs::exists(file, error) ? std::optional(file.string()) : std::nullopt;
}

}  // namespace runnel::commands
