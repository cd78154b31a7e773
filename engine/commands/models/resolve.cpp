#include "engine/commands/models/resolve.h"

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "engine/commands/cli/nearest.h"
#include "engine/commands/io.h"
#include "engine/commands/models/file_names.h"
#include "engine/commands/models/hub_layout.h"
#include "engine/commands/models/pull.h"
#include "engine/commands/models/stores.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

namespace fs = std::filesystem;

std::string shown(const std::string &text) {
    return gguf::printable(text, 4096);
}

// The only model in a folder: the path of its first part.
std::string model_in(const std::string &folder) {
    std::vector<std::string> models;
    for (const std::string &file : snapshot_files(folder))
        if (const auto name = parse_file_name(file); name && name->part == 1 && is_model_name(file))
            models.push_back(file);
    std::error_code error;
    if (models.empty() && (fs::exists(fs::path(folder) / "model.safetensors", error) ||
                           fs::exists(fs::path(folder) / "model.safetensors.index.json", error)))
        throw UsageError(shown(folder) + ": holds safetensors; make a GGUF file of it with runnel convert " +
                         shown(folder) + " OUT.gguf");
    if (models.empty()) throw UsageError(shown(folder) + ": a folder without a GGUF file");
    if (models.size() == 1) return (fs::path(folder) / models[0]).string();
    std::string names;
    constexpr size_t kMost = 10;
    for (size_t i = 0; i < models.size() && i < kMost; ++i)
        names += (i == 0 ? "" : ", ") + gguf::printable(models[i]);
    throw UsageError(shown(folder) + ": a folder with " + std::to_string(models.size()) +
                     " models; name one of them: " + names + (models.size() > kMost ? ", ..." : ""));
}

// Suggestions for a missing file: files in the same folder, and all names of models.
std::string hint_for(const std::string &word, const std::map<std::string, std::string> &short_names) {
    std::vector<std::string> names;
    for (const auto &[name, file] : short_names) names.push_back(name);
    const fs::path folder = fs::path(word).parent_path();
    size_t seen = 0;
    std::error_code error;
    for (fs::directory_iterator entry(folder.empty() ? "." : folder, error), end;
         !error && entry != end && seen < 10'000; entry.increment(error), ++seen)
        if (const std::string name = entry->path().filename().string();
            name.ends_with(".gguf") || name.ends_with(".jinja"))
            names.push_back((folder / name).string());
    for (const StoredModel &model : stored_models()) names.push_back(model.name);
    return suggestion(word, names);
}

std::string downloaded(const HubName &name, bool is_offline, Io &io) {
    if (const auto path = find_pulled(name)) return *path;
    const char *variable = std::getenv("HF_HUB_OFFLINE");
    const std::string value = variable ? capitals(variable) : "";
    if (is_offline || value == "1" || value == "TRUE" || value == "YES" || value == "ON")
        throw UsageError(name.text() +
                         " is not in the cache, and nothing is downloaded (--offline or HF_HUB_OFFLINE)");
    return pull(name, {}, io);
}

}  // namespace

std::string resolve_model(const std::string &word, const std::map<std::string, std::string> &short_names,
                          bool is_offline, Io &io) {
    std::error_code error;
    const bool exists = fs::exists(word, error);
    if (error) return word;  // opening the file reports the reason
    if (exists) return fs::is_directory(word, error) ? model_in(word) : word;
    if (const auto name = parse_hub_address(word)) return downloaded(*name, is_offline, io);
    if (const auto model = find_stored(word)) {
        if (!model->problem.empty()) throw UsageError(shown(model->name) + ": " + model->problem);
        return model->path.string();
    }
    if (const std::string hint = hint_for(word, short_names); !hint.empty())
        throw UsageError(shown(word) + ": no such file" + shown(hint));
    if (const auto name = parse_hub_name(word); name && name->file.empty() && !word.ends_with(".gguf"))
        throw UsageError(shown(word) + ": no such file, and not in a cache; runnel pull " + name->text() +
                         " downloads it, and so does -hf in place of MODEL");
    throw UsageError(shown(word) + ": no such file");
}

}  // namespace runnel::commands
