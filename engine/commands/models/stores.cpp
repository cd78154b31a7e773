#include "engine/commands/models/stores.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "engine/commands/io.h"
#include "engine/commands/models/file_names.h"
#include "engine/commands/models/hub_layout.h"
#include "engine/commands/models/ollama_store.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostOfFolder = 10'000;

std::optional<fs::path> path_variable(const char *name) {
    const char *value = std::getenv(name);
    return value && *value ? std::optional<fs::path>(value) : std::nullopt;
}

// Adds a folder below HOME.
void add_home(std::vector<fs::path> &roots, const char *folder) {
    if (const auto home = path_variable("HOME")) roots.push_back(*home / folder);
}

std::vector<fs::path> folders_in(const fs::path &root) {
    std::vector<fs::path> folders;
    std::error_code error;
    size_t seen = 0;
    for (fs::directory_iterator entry(root, error), end; !error && entry != end && seen < kMostOfFolder;
         entry.increment(error), ++seen) {
        std::error_code ignored;
        if (entry->is_directory(ignored)) folders.push_back(entry->path());
    }
    std::ranges::sort(folders);
    return folders;
}

// Models of one repository: USER/REPO:TAG, or USER/REPO/PATH if there is no tag or several models have it.
std::vector<StoredModel> in_repository(const std::string &repo, Store store, const fs::path &folder,
                                       const std::vector<std::string> &files) {
    std::multiset<std::string> tags;
    std::vector<std::pair<std::string, FileName>> models;
    for (const std::string &file : files)
        if (const auto name = parse_file_name(file); name && name->part == 1 && is_model_name(file)) {
            models.emplace_back(file, *name);
            tags.insert(name->tag);
        }
    std::vector<StoredModel> result;
    for (const auto &[file, name] : models) {
        const bool is_short = !name.tag.empty() && tags.count(name.tag) == 1;
        StoredModel model{
            .name = repo + (is_short ? ":" + name.tag : "/" + file), .store = store, .path = folder / file};
        std::error_code error;
        if (!fs::exists(model.path, error))
            model.problem = "its file is missing: runnel pull downloads it again";
        result.push_back(std::move(model));
    }
    return result;
}

// Why a repository has no GGUF file.
std::string what_else(const std::vector<std::string> &files) {
    for (const std::string &file : files)
        if (file.ends_with(".safetensors")) return "holds safetensors, but no GGUF file";
    return "holds no GGUF file";
}

std::vector<StoredModel> in_hub(const fs::path &root) {
    std::vector<StoredModel> result;
    for (const fs::path &folder : folders_in(root)) {
        const auto repo = hub_repo(folder.filename().string());
        if (!repo) continue;
        std::vector<StoredModel> models = hub_models(root, *repo);
        std::ranges::move(models, std::back_inserter(result));
    }
    return result;
}

std::vector<StoredModel> in_llama_cache(const fs::path &root) {
    std::vector<StoredModel> result = in_hub(root);
    std::error_code error;
    size_t seen = 0;
    for (fs::directory_iterator entry(root, error), end; !error && entry != end && seen < kMostOfFolder;
         entry.increment(error), ++seen) {
        const std::string file = entry->path().filename().string();
        const auto name = parse_file_name(file);
        if (name && name->part == 1 && is_model_name(file))
            result.push_back({.name = name->stem, .store = Store::LlamaCpp, .path = entry->path()});
    }
    for (StoredModel &model : result) model.store = Store::LlamaCpp;
    return result;
}

std::vector<StoredModel> in_lm_studio(const fs::path &root) {
    std::vector<StoredModel> result;
    for (const fs::path &user : folders_in(root))
        for (const fs::path &repo : folders_in(user)) {
            std::vector<StoredModel> models =
                in_repository(user.filename().string() + "/" + repo.filename().string(), Store::LmStudio,
                              repo, snapshot_files(repo));
            std::ranges::move(models, std::back_inserter(result));
        }
    return result;
}

// True if `word` is the name of the model's file, in any folder: "Qwen3-8B-Q4_K_M.gguf" or "Qwen3-8B-Q4_K_M".
bool is_file_name(const StoredModel &model, const std::string &word) {
    const std::string file = model.path.filename().string();
    if (word == file) return true;
    const auto name = parse_file_name(file);
    return name && word == name->stem;
}

// The model that USER/REPO:TAG names, by llama.cpp's rule for tags, ignoring case.
std::optional<StoredModel> by_repository(const std::vector<StoredModel> &models, const std::string &word) {
    const size_t colon = word.find(':');
    const std::string repo = word.substr(0, colon);
    const std::string tag = colon == std::string::npos ? "" : word.substr(colon + 1);
    if (!is_repo_name(repo)) return std::nullopt;
    for (const Store store : {Store::HuggingFace, Store::LlamaCpp, Store::LmStudio}) {
        std::vector<std::string> paths;
        std::vector<const StoredModel *> found;
        for (const StoredModel &model : models) {
            const std::string &name = model.name;
            const bool is_here =
                name.starts_with(repo) && (name[repo.size()] == ':' || name[repo.size()] == '/');
            if (model.store != store || !is_here || !model.problem.empty()) continue;
            paths.push_back(model.path.generic_string());
            found.push_back(&model);
        }
        // Search only the file names, not the folders above them.
        std::vector<std::string> files;
        for (const std::string &path : paths) files.push_back(path.substr(path.rfind('/') + 1));
        if (const auto chosen = choose_model(files, tag))
            return *found[static_cast<size_t>(std::ranges::find(files, *chosen) - files.begin())];
    }
    return std::nullopt;
}

}  // namespace

std::string_view store_name(Store store) {
    switch (store) {
        case Store::HuggingFace:
            return "huggingface";
        case Store::LlamaCpp:
            return "llama.cpp";
        case Store::LmStudio:
            return "lmstudio";
        case Store::Ollama:
            return "ollama";
    }
    return "";
}

std::optional<fs::path> hub_root() {
    for (const char *name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
        if (auto folder = path_variable(name)) return folder;
    if (const auto folder = path_variable("HF_HOME")) return *folder / "hub";
    if (const auto folder = path_variable("XDG_CACHE_HOME")) return *folder / "huggingface" / "hub";
    if (const auto home = path_variable("HOME")) return *home / ".cache" / "huggingface" / "hub";
    return std::nullopt;
}

std::vector<fs::path> store_roots(Store store) {
    std::vector<fs::path> roots;
    switch (store) {
        case Store::HuggingFace:
            if (auto root = hub_root()) roots.push_back(*root);
            break;
        case Store::LlamaCpp:
            if (const auto folder = path_variable("LLAMA_CACHE"))
                roots.push_back(*folder);
            else if (const auto cache = path_variable("XDG_CACHE_HOME"))
                roots.push_back(*cache / "llama.cpp");
            else
                add_home(roots, ".cache/llama.cpp");
            break;
        case Store::LmStudio:
            add_home(roots, ".lmstudio/models");
            add_home(roots, ".cache/lm-studio/models");
            break;
        case Store::Ollama:
            if (const auto folder = path_variable("OLLAMA_MODELS"))
                roots.push_back(*folder);
            else
                add_home(roots, ".ollama/models");
            break;
    }
    return roots;
}

std::vector<StoredModel> hub_models(const fs::path &root, const std::string &repo) {
    const fs::path folder = root / hub_folder(repo);
    std::vector<StoredModel> result;
    std::set<std::string> names;
    std::vector<std::string> others;
    for (const std::string &commit : hub_commits(folder)) {
        const fs::path snapshot = folder / "snapshots" / commit;
        const std::vector<std::string> files = snapshot_files(snapshot);
        others.insert(others.end(), files.begin(), files.end());
        // A model of an older commit counts only if no newer commit has it.
        for (StoredModel &model : in_repository(repo, Store::HuggingFace, snapshot, files))
            if (names.insert(model.name).second) result.push_back(std::move(model));
    }
    if (result.empty() && !others.empty())
        result.push_back(
            {.name = repo, .store = Store::HuggingFace, .path = folder, .problem = what_else(others)});
    return result;
}

std::vector<StoredModel> stored_models() {
    std::vector<StoredModel> result;
    std::set<fs::path> seen;
    for (const Store store : {Store::HuggingFace, Store::LlamaCpp, Store::LmStudio, Store::Ollama})
        for (const fs::path &root : store_roots(store)) {
            if (!seen.insert(root.lexically_normal()).second) continue;
            std::vector<StoredModel> models = store == Store::HuggingFace ? in_hub(root)
                                              : store == Store::LlamaCpp  ? in_llama_cache(root)
                                              : store == Store::LmStudio  ? in_lm_studio(root)
                                                                          : ollama_models(root);
            std::ranges::sort(models, {}, &StoredModel::name);
            std::ranges::move(models, std::back_inserter(result));
        }
    return result;
}

std::optional<StoredModel> find_stored(const std::string &word) {
    const std::vector<StoredModel> models = stored_models();
    for (const StoredModel &model : models)
        if (model.name == word || (model.store == Store::Ollama && model.name == word + ":latest"))
            return model;
    if (auto model = by_repository(models, word)) return model;
    const StoredModel *found = nullptr;
    for (const StoredModel &model : models) {
        if (model.store == Store::Ollama || !is_file_name(model, word)) continue;
        std::error_code error;
        if (found && !fs::equivalent(found->path, model.path, error))
            throw UsageError(gguf::printable(word) + " is the name of several models: " +
                             gguf::printable(found->name) + " and " + gguf::printable(model.name));
        found = &model;
    }
    return found ? std::optional(*found) : std::nullopt;
}

}  // namespace runnel::commands
