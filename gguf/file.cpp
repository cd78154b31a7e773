#include "gguf/file.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "gguf/part.h"
#include "gguf/printable.h"
#include "gguf/read_files.h"

namespace runnel::gguf {
namespace {

namespace fs = std::filesystem;

std::string shown(const fs::path &path) {
    return printable(path.native(), 4096);
}

Part read_named(std::span<const std::byte> bytes, const fs::path &path) {
    try {
        return read_part(bytes);
    } catch (const Malformed &error) {
        const std::string_view what = error.what();
        // identify()'s text continues the file's name: "model.bin is a safetensors file; ...".
        const bool sentence = what.starts_with("is ");
        throw FileError(shown(path) + (sentence ? " " : ": ") + std::string(what));
    }
}

// A file's position in a split set, from its metadata; count is 1 for a file that is not split.
struct Split {
    int64_t number = 0, count = 1, tensors = -1;
};

constexpr int64_t kMaxParts = 65535;

Split read_split(const Part &part, const fs::path &path) {
    Split split;
    try {
        split = {part.integer("split.no", 0), part.integer("split.count", 1),
                 part.integer("split.tensors.count", -1)};
    } catch (const Malformed &error) {
        throw FileError(shown(path) + ": " + error.what());
    }
    if (split.count <= 1) return {};
    if (split.count > kMaxParts || split.number < 0 || split.number >= split.count)
        throw FileError(shown(path) + ": split.no " + std::to_string(split.number) + " of split.count " +
                        std::to_string(split.count) + " is invalid");
    return split;
}

std::vector<fs::path> part_paths(const fs::path &path, const Split &split) {
    const std::string name = path.filename().native(), ending = part_ending(split.number, split.count);
    if (!name.ends_with(ending))
        throw FileError(shown(path) + ": is part " + std::to_string(split.number + 1) +
                        " of a model split into " + std::to_string(split.count) +
                        " files, but its name does not end in " + ending +
                        ", so the others cannot be found; restore its original name");
    std::vector<fs::path> paths;
    for (int64_t i = 0; i < split.count; ++i)
        paths.push_back(path.parent_path() /
                        (name.substr(0, name.size() - ending.size()) + part_ending(i, split.count)));
    return paths;
}

void expect_part(const Part &part, const Split &whole, int64_t number, const fs::path &path) {
    const Split split = read_split(part, path);
    if (split.number == number && split.count == whole.count) return;
    throw FileError(shown(path) + ": its metadata says part " + std::to_string(split.number + 1) + " of " +
                    std::to_string(split.count) + " of a split model, not part " +
                    std::to_string(number + 1) + " of " + std::to_string(whole.count));
}

}  // namespace

std::string part_ending(int64_t number, int64_t count) {
    char text[64];
    std::snprintf(text, sizeof text, "-%05lld-of-%05lld.gguf", static_cast<long long>(number) + 1,
                  static_cast<long long>(count));
    return text;
}

File File::from_bytes(std::span<const std::byte> bytes, const std::string &name) {
    File file;
    file.path_ = name;
    file.file_bytes_ = bytes.size();
    Part part = read_named(bytes, name);
    if (read_split(part, name).count > 1) throw FileError(shown(name) + " is only one part of a split model");
    file.take(std::move(part), 0);
    file.index_tensors();
    return file;
}

File File::open(const fs::path &path) {
    File file;
    file.path_ = path;
    file.add_parts(path);
    file.index_tensors();
    return file;
}

void File::add_parts(const fs::path &path) {
    Mapping given_mapping(path);
    Part given = read_named(given_mapping.bytes(), path);
    const Split whole = read_split(given, path);
    const auto paths = whole.count > 1 ? part_paths(path, whole) : std::vector<fs::path>{path};
    for (const fs::path &part_path : paths) {
        const auto number = static_cast<uint32_t>(mappings_.size());
        const bool is_given = number == whole.number;
        mappings_.push_back(is_given ? std::move(given_mapping) : Mapping(part_path));
        note_read(part_path);
        const auto bytes = mappings_.back().bytes();
        Part part = is_given ? std::move(given) : read_named(bytes, part_path);
        expect_part(part, whole, number, part_path);
        file_bytes_ += bytes.size();
        take(std::move(part), number);
    }
    if (whole.tensors >= 0 && static_cast<uint64_t>(whole.tensors) != tensors_.size())
        throw FileError(shown(path) + ": split.tensors.count is " + std::to_string(whole.tensors) +
                        ", but the parts hold " + std::to_string(tensors_.size()) + " tensors");
}

void File::drop_pages() const {
    for (const Mapping &mapping : mappings_) forget_pages(mapping.bytes());
}

void File::take(Part &&part, uint32_t number) {
    for (Tensor &tensor : part.tensors) tensor.part = number;
    if (number > 0) {
        tensors_.insert(tensors_.end(), part.tensors.begin(), part.tensors.end());
        return;
    }
    version_ = part.version;
    alignment_ = part.alignment;
    metadata_ = std::move(part.metadata);
    keys_ = std::move(part.keys);
    tensors_ = std::move(part.tensors);
}

void File::index_tensors() {
    names_.reserve(tensors_.size());
    for (const Tensor &tensor : tensors_) names_.add(tensor.name);
    if (const auto twice = names_.build())
        throw FileError(shown(path_) + ": tensor " + quoted(*twice) + " appears twice");
}

const Value *File::find(std::string_view key) const {
    const auto at = keys_.find(key);
    return at ? &metadata_[*at].second : nullptr;
}

const Tensor *File::find_tensor(std::string_view name) const {
    const auto at = names_.find(name);
    return at ? &tensors_[*at] : nullptr;
}

}  // namespace runnel::gguf
