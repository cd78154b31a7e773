// Reads the weights of a Hugging Face folder: model.safetensors, or the files that model.safetensors.index.json lists.
//
// A file is the length of its header (8 bytes, little-endian), the header, and the tensors' data. The header is
// JSON: for each tensor its element type, its shape (row by row, the last dimension fastest) and the range of its
// bytes behind the header; `__metadata__` holds strings. Format: github.com/huggingface/safetensors.
// Everything is checked before use: the ranges must cover the data without holes or overlaps, each as long as type
// and shape say, and an index must name exactly the tensors that its files hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/mapping.h"

namespace runnel::convert {

struct SourceTensor {
    std::string name;
    std::string dtype;                 // as the file spells it: "BF16", "F32", "U8"
    std::vector<int64_t> shape;        // slowest first; empty for a single number
    std::span<const std::byte> bytes;  // in the mapping; not aligned

    int64_t elements() const;
    int64_t columns() const { return shape.empty() ? 1 : shape.back(); }
};

class Safetensors {
  public:
    // Throws gguf::FileError: `missing` if the folder has no such file.
    static Safetensors open(const std::filesystem::path &folder);

    // Null if there is none.
    const SourceTensor *find(std::string_view name) const;
    const std::map<std::string, SourceTensor, std::less<>> &tensors() const { return tensors_; }
    uint64_t bytes() const { return bytes_; }  // of all tensors

  private:
    void add_file(const std::filesystem::path &path);

    std::vector<gguf::Mapping> files_;
    std::map<std::string, SourceTensor, std::less<>> tensors_;
    uint64_t bytes_ = 0;
};

// The text of a file of the folder: config.json, tokenizer.json. Throws gguf::FileError.
std::string read_text(const std::filesystem::path &path);

}  // namespace runnel::convert
