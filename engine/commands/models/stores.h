// The models that this machine has in the folders of other programs: Hugging Face's cache (which `pull` uses),
// llama.cpp's, LM Studio's and ollama's. Only names of files and ollama's manifests are read here.
//
// The content of these folders is untrusted: commits and digests are checked before they become part of a
// path, folders are searched to a limited depth and number of entries, and links to folders are not followed.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace runnel::commands {

enum class Store { HuggingFace, LlamaCpp, LmStudio, Ollama };
std::string_view store_name(Store store);

struct StoredModel {
    std::string name;  // accepted as MODEL: "USER/REPO:Q4_K_M", "llama3.2:1b"
    Store store;
    std::filesystem::path path;  // of the file, or of the first part of a split model
    std::string problem = {};    // not empty: why it cannot be opened
};

// The folders where the programs keep their models, according to their environment variables. They need not
// exist. Without these variables and HOME there are none.
std::optional<std::filesystem::path> hub_root();
std::vector<std::filesystem::path> store_roots(Store store);

// All models, sorted by store and name. Does not throw for any content of the folders.
std::vector<StoredModel> stored_models();

// The model that MODEL names: a name of stored_models(), a repository (the model that choose_model() finds),
// or the name of a file with or without ".gguf". Throws UsageError if several models have files of that name.
std::optional<StoredModel> find_stored(const std::string &word);

// The models of one repository of a hub cache, USER/REPO. `root`: hub_root().
std::vector<StoredModel> hub_models(const std::filesystem::path &root, const std::string &repo);

}  // namespace runnel::commands
