// A planned conversion: the metadata of the GGUF file, and for each of its tensors how its rows are made from
// tensors of the folder.
//
//   Plan plan(folder, "llama", Matrices::AsStored);
//   plan.key("block_count", uint32_t{32});                    // llama.block_count
//   plan.copy("model.norm.weight", "output_norm.weight");
//   plan.check_all_used({});
//   plan.write(path, {}, progress);
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/convert/safetensors.h"
#include "gguf/writer.h"

namespace runnel::convert {

// The type of matrices in the output. Vectors, norms, routers, convolutions and AltUp's
// coefficients are always F32.
enum class Matrices : uint8_t { AsStored, F32, F16, BF16 };

// The rows of an output tensor: those of the sources one after another, `rows` of each.
struct Rows {
    std::vector<const SourceTensor *> sources;
    int64_t rows = 0;     // taken from each source
    int64_t columns = 0;  // of each row
    // The row and the column of the source that become this one; the same if empty.
    std::function<int64_t(int64_t row)> order = {};
    std::function<int64_t(int64_t column)> column_order = {};
    std::function<float(float)> value = {};  // applied to each number
};

// All rows of a tensor: its last dimension is a row.
Rows all_rows(const SourceTensor &source);

class Plan {
  public:
    // `folder` must outlive it.
    Plan(const Safetensors &folder, std::string architecture, Matrices matrices);

    // Metadata; key() puts the architecture before the name.
    gguf::Writer &metadata() { return writer_; }
    void key(std::string_view name, const auto &value) {
        writer_.add(architecture_ + "." + std::string(name), value);
    }
    const std::string &architecture() const { return architecture_; }

    // A tensor of the folder, marked as used. find() is null and require() throws gguf::FileError if there is none,
    // or if it does not hold floating-point numbers.
    const SourceTensor *find(const std::string &name);
    const SourceTensor &require(const std::string &name);
    const SourceTensor &require_bytes(const std::string &name);  // of U8

    // Adds a tensor; shape fastest first. Throws gguf::FileError if the rows do not fit the sources' shapes.
    void add(const std::string &name, std::vector<int64_t> shape, Rows rows);
    // Adds a tensor of numbers that are computed here, as F32.
    void add_values(const std::string &name, std::vector<float> values);
    // Adds a tensor of blocks; write_row fills one row from the sources.
    void add_blocks(const std::string &name, gguf::Type type, std::vector<int64_t> shape,
                    std::vector<const SourceTensor *> sources,
                    std::function<void(int64_t row, std::span<std::byte> out)> write_row);
    // The tensor `from` in its own shape.
    void copy(const std::string &from, const std::string &to) { copy(require(from), to); }
    void copy(const SourceTensor &from, const std::string &to);

    // What the user should know about the file.
    void note(std::string text) { notes_.push_back(std::move(text)); }
    const std::vector<std::string> &notes() const { return notes_; }

    // Throws gguf::FileError that names a tensor of the folder which nothing used, unless `may_drop` agrees.
    void check_all_used(const std::function<bool(std::string_view name)> &may_drop) const;
    size_t tensors() const { return outputs_.size(); }
    uint64_t bytes() const;  // of tensor data

    // Writes the file. False if progress(bytes done) wants to stop; then nothing is left.
    bool write(const std::filesystem::path &path, const gguf::OutputOptions &options,
               const std::function<bool(uint64_t)> &progress);

  private:
    struct Output {
        std::string name;
        int64_t rows;
        uint64_t row_bytes;
        std::vector<const SourceTensor *> sources;
        std::function<void(int64_t row, std::span<std::byte> out)> write_row;
    };
    gguf::Type type_of(const std::string &name, const std::vector<int64_t> &shape,
                       const SourceTensor &source) const;
    void add_output(const std::string &name, gguf::Type type, const std::vector<int64_t> &shape,
                    std::vector<const SourceTensor *> sources,
                    std::function<void(int64_t, std::span<std::byte>)> write_row);

    const Safetensors &folder_;
    std::string architecture_;
    Matrices matrices_;
    gguf::Writer writer_;
    std::vector<Output> outputs_;
    std::set<std::string> used_;
    std::vector<std::string> notes_;
};

// Throws gguf::FileError "tensor 'NAME' PROBLEM".
[[noreturn]] void refuse_tensor(const SourceTensor &tensor, const std::string &problem);
// Throws gguf::FileError unless the tensor has this shape, slowest first.
void check_shape(const SourceTensor &tensor, const std::vector<int64_t> &shape);

}  // namespace runnel::convert
