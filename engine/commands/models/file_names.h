// Reads names of model files: the quantization, and which part of a split model the file is.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace runnel::commands {

struct FileName {
    std::string stem;  // the path without ".gguf" and part number: "sub/Qwen3-8B-Q4_K_M"
    std::string tag;   // the last word of the stem in capitals, if it is a type: "Q4_K_M"; else empty
    int part = 1, parts = 1;
};

// `path` with "/" between folders. nullopt if it does not end in ".gguf".
std::optional<FileName> parse_file_name(std::string_view path);

// False for GGUF files that belong to a model but cannot be run alone: image projectors (mmproj), importance
// matrices, draft heads.
bool is_model_name(std::string_view path);

// The model that USER/REPO[:TAG] names among the paths of a repository, by llama.cpp's rule: the first path
// with TAG followed by "." or "-", ignoring case; without a tag Q4_K_M, then Q8_0, then the first model. For
// a split model, its first part. nullopt if there is none.
std::optional<std::string> choose_model(const std::vector<std::string> &paths, const std::string &tag);

// All parts of the model whose first part is `path`, in order. A part that is not in `paths` is left out.
std::vector<std::string> all_parts(const std::vector<std::string> &paths, const std::string &path);

// "hello" in capitals, ASCII only.
std::string capitals(std::string_view text);

}  // namespace runnel::commands
