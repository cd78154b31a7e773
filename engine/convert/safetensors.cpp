#include "engine/convert/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <set>

#include "engine/text/json.h"
#include "gguf/file.h"
#include "gguf/printable.h"
#include "gguf/read_files.h"

namespace runnel::convert {
namespace {

namespace fs = std::filesystem;
using gguf::FileError;
using text::Json;

constexpr uint64_t kLargestHeader = 100'000'000;  // bytes, as in the reference implementation
constexpr size_t kMostDimensions = 8;

[[noreturn]] void refuse(const fs::path &path, const std::string &problem) {
    throw FileError(gguf::printable(path.native(), 4096) + ": " + problem);
}

Json parse(const fs::path &path, std::string_view text) {
    try {
        return text::parse_json(text, {.bytes = kLargestHeader, .values = 20'000'000, .depth = 20});
    } catch (const text::JsonError &error) {
        refuse(path, error.what());
    }
}

// Bytes per element; nullopt for types that no model here has (4- and 6-bit floats).
std::optional<uint64_t> element_bytes(std::string_view dtype) {
    static constexpr std::pair<std::string_view, uint64_t> kSizes[] = {
        {"F64", 8},     {"I64", 8},     {"U64", 8},  {"C64", 8}, {"F32", 4}, {"I32", 4},
        {"U32", 4},     {"F16", 2},     {"BF16", 2}, {"I16", 2}, {"U16", 2}, {"F8_E4M3", 1},
        {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"I8", 1},   {"U8", 1},  {"BOOL", 1}};
    for (const auto &[name, bytes] : kSizes)
        if (name == dtype) return bytes;
    return std::nullopt;
}

uint64_t whole_number(const fs::path &path, const std::string &what, const Json &value) {
    if (!value.is_number_unsigned()) refuse(path, what + " is not a whole number");
    return value.get<uint64_t>();
}

struct Range {
    uint64_t begin, end;
    std::string_view name;
};

// Reads one entry of the header. `data`: what lies behind the header.
SourceTensor tensor_of(const fs::path &path, const std::string &name, const Json &entry,
                       std::span<const std::byte> data, std::vector<Range> &ranges) {
    const std::string shown = "tensor " + gguf::quoted(name);
    const Json *const dtype = text::find_member(entry, "dtype");
    const Json *const shape = text::find_member(entry, "shape");
    const Json *const offsets = text::find_member(entry, "data_offsets");
    if (!dtype || !dtype->is_string() || !shape || !shape->is_array() || !offsets || !offsets->is_array() ||
        offsets->size() != 2)
        refuse(path, shown + " lacks a dtype, a shape or two data_offsets");
    SourceTensor tensor{.name = name, .dtype = dtype->get<std::string>(), .shape = {}, .bytes = {}};
    const std::optional<uint64_t> size = element_bytes(tensor.dtype);
    if (!size)
        refuse(path,
               shown + " has elements of type " + gguf::quoted(tensor.dtype) + ", which is not supported");
    if (shape->size() > kMostDimensions) refuse(path, shown + " has more than 8 dimensions");
    uint64_t bytes = *size;
    for (const Json &dimension : *shape) {
        const uint64_t n = whole_number(path, "a dimension of " + shown, dimension);
        if (n > uint64_t{1} << 40 || (n > 0 && bytes > (uint64_t{1} << 60) / n))
            refuse(path, shown + " is too large");
        bytes *= n;
        tensor.shape.push_back(static_cast<int64_t>(n));
    }
    const uint64_t begin = whole_number(path, "an offset of " + shown, (*offsets)[0]);
    const uint64_t end = whole_number(path, "an offset of " + shown, (*offsets)[1]);
    if (begin > end || end > data.size())
        refuse(path, shown + " ends at byte " + std::to_string(end) + " of " + std::to_string(data.size()) +
                         ": the file is damaged or incomplete");
    if (end - begin != bytes)
        refuse(path, shown + " has " + std::to_string(end - begin) + " bytes, its type and shape need " +
                         std::to_string(bytes));
    tensor.bytes = data.subspan(begin, bytes);
    ranges.push_back({begin, end, {}});
    return tensor;
}

void check_ranges(const fs::path &path, std::vector<Range> &ranges, uint64_t size) {
    std::sort(ranges.begin(), ranges.end(), [](const Range &a, const Range &b) {
        return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
    });
    uint64_t at = 0;
    for (const Range &range : ranges) {
        if (range.begin != at)
            refuse(path, std::string("the tensors' data ") + (range.begin < at ? "overlap" : "leave a hole") +
                             " at byte " + std::to_string(range.begin));
        at = range.end;
    }
    if (at != size) refuse(path, std::to_string(size - at) + " bytes at the end belong to no tensor");
}

// The plain name of a file of the folder, as an index gives it.
bool is_plain_name(const std::string &name) {
    return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
           name.find('\0') == std::string::npos;
}

}  // namespace

int64_t SourceTensor::elements() const {
    int64_t product = 1;
    for (const int64_t n : shape) product *= n;
    return product;
}

std::string read_text(const fs::path &path) {
    const gguf::Mapping file(path);
    return std::string(reinterpret_cast<const char *>(file.bytes().data()), file.bytes().size());
}

void Safetensors::add_file(const fs::path &path) {
    gguf::Mapping file(path);
    gguf::note_read(path);  // no output may replace it
    const std::span<const std::byte> all = file.bytes();
    uint64_t length = 0;
    if (all.size() < sizeof length) refuse(path, "is too short for a safetensors file");
    std::memcpy(&length, all.data(), sizeof length);
    if (length > kLargestHeader || length > all.size() - sizeof length)
        refuse(path,
               "is not a safetensors file, or damaged: a header of " + std::to_string(length) + " bytes");
    const std::span<const std::byte> header = all.subspan(sizeof length, length);
    const std::span<const std::byte> data = all.subspan(sizeof length + length);
    const Json entries = parse(path, {reinterpret_cast<const char *>(header.data()), header.size()});
    if (!entries.is_object()) refuse(path, "its header is not a JSON object");
    std::vector<Range> ranges;
    for (const auto &[name, entry] : entries.items()) {
        if (name == "__metadata__") continue;
        SourceTensor tensor = tensor_of(path, name, entry, data, ranges);
        bytes_ += tensor.bytes.size();
        if (!tensors_.emplace(name, std::move(tensor)).second)
            refuse(path, "tensor " + gguf::quoted(name) + " is in another file of the folder, too");
    }
    check_ranges(path, ranges, data.size());
    files_.push_back(std::move(file));
}

Safetensors Safetensors::open(const fs::path &folder) {
    std::error_code error;
    if (!fs::is_directory(folder, error))
        throw FileError(gguf::printable(folder.native(), 4096) + ": is not a folder", true);
    Safetensors all;
    const fs::path single = folder / "model.safetensors", index = folder / "model.safetensors.index.json";
    if (!fs::exists(index, error)) {
        if (!fs::exists(single, error))
            throw FileError(
                gguf::printable(folder.native(), 4096) +
                    (fs::exists(folder / "pytorch_model.bin", error) ||
                             fs::exists(folder / "pytorch_model.bin.index.json", error)
                         ? ": has its weights as pytorch_model.bin (Python objects), which runnel does "
                           "not read; look for a safetensors version of the model"
                         : ": has no model.safetensors and no model.safetensors.index.json"),
                true);
        all.add_file(single);
        return all;
    }
    const Json json = parse(index, read_text(index));
    const Json *const map = text::find_member(json, "weight_map");
    if (!map || !map->is_object()) refuse(index, "has no weight_map");
    std::map<std::string, std::set<std::string>> tensors_of;  // by file
    for (const auto &[name, file] : map->items()) {
        if (!file.is_string() || !is_plain_name(file.get<std::string>()))
            refuse(index, "the file of tensor " + gguf::quoted(name) + " is not a name in this folder");
        tensors_of[file.get<std::string>()].insert(name);
    }
    for (const auto &[file, names] : tensors_of) {
        if (!fs::exists(folder / file, error))
            throw FileError(gguf::printable((folder / file).native(), 4096) +
                                ": is missing, but model.safetensors.index.json lists it",
                            true);
        const size_t before = all.tensors_.size();
        all.add_file(folder / file);
        for (const std::string &name : names)
            if (!all.find(name))
                refuse(folder / file,
                       "lacks the tensor " + gguf::quoted(name) + ", which the index expects here");
        if (all.tensors_.size() - before != names.size())
            refuse(folder / file, "holds tensors that model.safetensors.index.json does not list");
    }
    return all;
}

const SourceTensor *Safetensors::find(std::string_view name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace runnel::convert
