#include "engine/commands/models/ollama_store.h"

#include <fstream>

#include "engine/commands/json.h"
#include "engine/commands/models/hub_layout.h"

namespace runnel::commands {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLargestManifest = size_t{1} << 20;
constexpr std::string_view kModelLayer = "application/vnd.ollama.image.model";

std::string text_of(const Json &object, std::string_view key) {
    const Json *value = text::find_member(object, key);
    return value && value->is_string() ? value->get<std::string>() : "";
}

// The blob of the model's layer; sets `problem` if there is none. A digest becomes part of a path only if it is
// "sha256:" and 64 hexadecimal digits.
fs::path blob_of(const fs::path &manifest, const fs::path &root, std::string &problem) {
    std::error_code missing;
    if (!fs::is_regular_file(manifest, missing)) {
        problem = "its manifest is not a file";
        return manifest;
    }
    std::string bytes(kLargestManifest + 1, '\0');
    std::ifstream in(manifest, std::ios::binary);
    in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    bytes.resize(static_cast<size_t>(in.gcount()));
    Json json;
    try {
        json = parse_json(bytes, {.bytes = kLargestManifest, .values = 100'000, .depth = 50});
    } catch (const JsonError &error) {
        problem = std::string("its manifest is not JSON: ") + error.what();
        return manifest;
    }
    const Json *layers = text::find_member(json, "layers");
    if (layers && layers->is_array())
        for (const Json &layer : *layers) {
            if (!layer.is_object() || text_of(layer, "mediaType") != kModelLayer) continue;
            const std::string digest = text_of(layer, "digest");
            if (!digest.starts_with("sha256:") || !is_hex(digest.substr(7), 64)) {
                problem = "its manifest has no valid digest";
                return manifest;
            }
            fs::path blob = root / "blobs" / ("sha256-" + digest.substr(7));
            if (!fs::is_regular_file(blob, missing)) problem = "its file is missing: download it again";
            return blob;
        }
    problem = "its manifest names no model";
    return manifest;
}

// "registry.ollama.ai/library/llama3.2/1b" is called llama3.2:1b.
std::string name_of(std::string path) {
    for (const std::string_view start : {"registry.ollama.ai/library/", "registry.ollama.ai/"})
        if (path.starts_with(start)) {
            path = path.substr(start.size());
            break;
        }
    if (const size_t slash = path.rfind('/'); slash != std::string::npos) path[slash] = ':';
    return path;
}

}  // namespace

std::vector<StoredModel> ollama_models(const fs::path &root) {
    std::vector<StoredModel> models;
    for (const std::string &path : snapshot_files(root / "manifests")) {
        StoredModel model{.name = name_of(path), .store = Store::Ollama, .path = {}};
        model.path = blob_of(root / "manifests" / path, root, model.problem);
        models.push_back(std::move(model));
    }
    return models;
}

}  // namespace runnel::commands
