// Model files as several parts: NAME-00001-of-00003.gguf, ..., as llama.cpp names them (gguf/file.h reads them).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "gguf/file.h"
#include "gguf/writer.h"

namespace runnel::quantize {

// A limit, because the temporary files of all parts stay open until the last is complete, with two descriptors each.
inline constexpr size_t kMostParts = 400;

// Writes one file, or the parts of a set. They appear together in finish(), or, if an error or the destructor comes
// before, not at all.
class PartsWriter {
  public:
    // parts: from 1 to kMostParts. The first part of a set has the metadata; every part has its own number and the numbers
    // of parts and of tensors in the set.
    PartsWriter(size_t parts, uint32_t alignment);

    // The writer of the metadata. Do not add split.* and general.alignment, which are written anyway.
    gguf::Writer &first() { return writers_.front(); }
    // Adds a tensor to a part. Precondition: `part` is not less than that of the tensor before.
    void add_tensor(size_t part, std::string_view name, gguf::Type type, std::span<const int64_t> shape);

    // The sizes of all files together. Nothing can be added after this.
    uint64_t file_bytes();

    // path: of the file; for a set it is the beginning of the names, without ".gguf". Throws gguf::WriteError, as do the
    // functions below.
    void start(const std::filesystem::path &path, const gguf::OutputOptions &options);
    void write(std::span<const std::byte> piece);  // the data of the tensors in their order
    // If a part cannot be put in place, those that already were are removed.
    void finish();

  private:
    void number_parts();
    std::vector<gguf::Writer> writers_;
    std::vector<std::filesystem::path> paths_;
    size_t tensors_ = 0, current_ = 0;
    bool numbered_ = false;
};

// The files that a PartsWriter makes.
std::vector<std::filesystem::path> output_paths(const std::filesystem::path &path, size_t parts);

struct PartLimits {
    uint64_t bytes =
        std::numeric_limits<uint64_t>::max();  // of tensor data; a larger tensor is a part of its own
    size_t tensors = std::numeric_limits<size_t>::max();
    bool has_tensors_in_first = true;  // false: the first part holds the metadata alone
};

// The part of each tensor, in the order of the file: a part ends where the next tensor would exceed a limit.
std::vector<size_t> divide(const gguf::File &source, const PartLimits &limits);

// Copies a model, tensor[i] to part parts[i]. The alignment stays that of the first part. Returns false if progress(bytes
// so far) asked to stop: nothing is left behind. Throws gguf::WriteError.
bool copy_model(const gguf::File &source, std::span<const size_t> parts, const std::filesystem::path &path,
                const gguf::OutputOptions &options, const std::function<bool(uint64_t)> &progress);

}  // namespace runnel::quantize
