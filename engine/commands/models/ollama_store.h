// ollama's models: manifests (JSON) name blobs by digest.
#pragma once

#include <filesystem>
#include <vector>

#include "engine/commands/models/stores.h"

namespace runnel::commands {

// `root`: the folder with manifests/ and blobs/. A damaged manifest gives a model with a `problem`.
std::vector<StoredModel> ollama_models(const std::filesystem::path &root);

}  // namespace runnel::commands
