// Reading GGUF files: memory-mapped, zero copy, every byte validated before it is used.
//
// A file is: header (magic, version, counts), metadata (typed key/value pairs), tensor table (name, shape,
// type, offset), padding, tensor data. Opening parses everything but the tensor data, which is never read:
// pages of weights are touched only by whoever computes with them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/block.h"

namespace runnel::gguf {

// A file that cannot be opened, or whose content breaks the format. what() is one line that names the file
// and what is wrong (key, tensor, byte offset). Maps to exit code 3; `missing` (no such file, a directory,
// no permission) maps to 2, since the file's content is not at fault.
class FileError : public std::runtime_error {
  public:
    explicit FileError(const std::string &what, bool is_missing = false) : std::runtime_error(what), missing(is_missing) {}
    bool missing;
};

enum class ValueType : uint32_t {
    U8 = 0, I8 = 1, U16 = 2, I16 = 3, U32 = 4, I32 = 5, F32 = 6, Bool = 7, String = 8, Array = 9,
    U64 = 10, I64 = 11, F64 = 12,
};

// A metadata value: a view into the mapped file. Cheap to copy; valid as long as its File.
class Value {
  public:
    ValueType type() const;
    ValueType element_type() const;  // of an array; Precondition: type() == Array
    uint64_t size() const;           // elements of an array

    // Conversions that keep the value: any integer type that fits, f32/f64 for floats, and integers that are
    // exactly representable. nullopt if the type does not convert.
    std::optional<int64_t> as_int() const;
    std::optional<double> as_float() const;
    std::optional<bool> as_bool() const;
    std::optional<std::string_view> as_string() const;  // bytes as stored: not necessarily valid UTF-8

    // Element i of an array. O(1) for fixed-size elements; strings and nested arrays are walked: use for_each.
    // The views handed out live as long as the File.
    void for_each_string(void (*each)(void *context, uint64_t i, std::string_view s), void *context) const;
    std::vector<Value> elements() const;
    std::vector<int64_t> as_ints() const;            // empty if not an array of integers (or bools)
    std::vector<float> as_floats() const;            // empty if not an array of numbers
    std::vector<std::string_view> as_strings() const;
    // ... (representation: type + pointer into the mapping)
};

struct Tensor {
    std::string_view name;
    Type type;
    uint32_t rank;             // 1..4
    int64_t shape[4];          // fastest first; unused dimensions are 1
    uint64_t offset;           // of the data in its part of the file, absolute
    uint64_t bytes;            // size of the data
    const std::byte *data;     // in the mapping
    uint32_t part;             // which file of a split set
    int64_t elements() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
};

class File {
  public:
    // Opens a file or, when it is part of a split set (NAME-00001-of-0000N.gguf), the whole set from any part.
    static File open(const std::filesystem::path &path);

    uint32_t version() const;
    const std::filesystem::path &path() const;
    uint64_t file_bytes() const;                       // over all parts
    const std::vector<std::pair<std::string_view, Value>> &metadata() const;  // in file order
    const Value *find(std::string_view key) const;     // null when absent
    const std::vector<Tensor> &tensors() const;        // in file order
    const Tensor *find_tensor(std::string_view name) const;
};

}  // namespace runnel::gguf
