// Reading GGUF files: memory-mapped, zero copy, every byte validated before it is used.
//
// A file is: header (magic, version, counts), metadata (typed key/value pairs), tensor table (name, shape,
// type, offset), padding, tensor data. Opening parses everything but the tensor data, whose pages are
// first touched by the kernels.
//
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gguf/block.h"
#include "gguf/mapping.h"
#include "gguf/name_index.h"
#include "gguf/value.h"

namespace runnel::gguf {

struct Part;  // gguf/part.h

// A file that cannot be opened, or whose content violates the format. what() is one printable line that names
// the file and what is wrong (key, tensor, byte offset). Exit code 3; 2 if `missing` (no such file, a
// directory, no permission), because the file's content is not at fault.
class FileError : public std::runtime_error {
  public:
    explicit FileError(const std::string &what, bool is_missing = false)
        : std::runtime_error(what), missing(is_missing) {}
    bool missing;
};

// How the file name of part `number` (from 0) of `count` ends: part_ending(1, 7) is "-00002-of-00007.gguf".
std::string part_ending(int64_t number, int64_t count);

struct Tensor {
    std::string_view name;
    Type type;              // of a known format; traits(type).supported: whether its values can be read
    uint32_t rank;          // 0..4
    int64_t shape[4];       // fastest first, each > 0; dimensions from `rank` on are 1
    uint64_t offset;        // of the data in its part of the file, absolute
    uint64_t bytes;         // size of the data
    const std::byte *data;  // in the mapping, 8-byte aligned at least
    uint32_t part;          // which file of a split set, from 0
    // Cannot overflow: the data lies in the file, and no format has more than 8 weights per byte.
    int64_t elements() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
};

// Movable, not copyable. Everything that it returns stays valid, at the same address, until the File is
// destroyed; moving the File does not change that.
class File {
  public:
    using KeyValue = std::pair<std::string_view, Value>;

    // Opens a file or, when it is part of a split set (NAME-00001-of-0000N.gguf), the whole set from any
    // part: metadata are those of part 1, tensors those of all parts. Throws FileError.
    static File open(const std::filesystem::path &path);

    // Parses a file in memory; messages call it `name`. For tests and fuzzing. `bytes` must outlive the File.
    // Throws FileError, also for a part of a split set.
    static File from_bytes(std::span<const std::byte> bytes, const std::string &name);

    uint32_t version() const { return version_; }
    uint64_t alignment() const { return alignment_; }            // of part 1
    const std::filesystem::path &path() const { return path_; }  // as given to open
    size_t parts() const { return mappings_.size(); }
    uint64_t file_bytes() const { return file_bytes_; }  // over all parts
    // forget_pages() of all bytes: for a program that has copied what it reads often.
    void drop_pages() const;

    const std::vector<KeyValue> &metadata() const { return metadata_; }  // in file order
    const Value *find(std::string_view key) const;                       // null when absent

    const std::vector<Tensor> &tensors() const { return tensors_; }  // in file order
    const Tensor *find_tensor(std::string_view name) const;          // null when absent

  private:
    File() = default;
    void take(Part &&part, uint32_t number);
    void add_parts(const std::filesystem::path &path);
    void index_tensors();

    std::filesystem::path path_;
    uint32_t version_ = 0;
    uint64_t alignment_ = 0, file_bytes_ = 0;
    std::vector<Mapping> mappings_;
    std::vector<KeyValue> metadata_;
    std::vector<Tensor> tensors_;
    NameIndex keys_, names_;
};

}  // namespace runnel::gguf
