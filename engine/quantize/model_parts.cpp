#include "engine/quantize/model_parts.h"

#include <algorithm>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "gguf/mapping.h"

namespace runnel::quantize {

namespace fs = std::filesystem;

PartsWriter::PartsWriter(size_t parts, uint32_t alignment) {
    if (parts == 0 || parts > kMostParts) throw std::logic_error("PartsWriter: impossible number of parts");
    for (size_t i = 0; i < parts; ++i) writers_.emplace_back(alignment);
}

void PartsWriter::add_tensor(size_t part, std::string_view name, gguf::Type type,
                             std::span<const int64_t> shape) {
    writers_.at(part).add_tensor(name, type, shape);
    ++tensors_;
}

void PartsWriter::number_parts() {
    if (writers_.size() == 1 || std::exchange(numbered_, true)) return;
    for (size_t i = 0; i < writers_.size(); ++i) {
        writers_[i].add("split.no", static_cast<uint16_t>(i));
        writers_[i].add("split.count", static_cast<uint16_t>(writers_.size()));
        writers_[i].add("split.tensors.count", static_cast<int32_t>(tensors_));
    }
}

uint64_t PartsWriter::file_bytes() {
    number_parts();
    uint64_t bytes = 0;
    for (const gguf::Writer &writer : writers_) bytes += writer.file_bytes();
    return bytes;
}

void PartsWriter::start(const fs::path &path, const gguf::OutputOptions &options) {
    paths_ = output_paths(path, writers_.size());
    number_parts();
    for (size_t i = 0; i < writers_.size(); ++i) writers_[i].start(paths_[i], options);
}

void PartsWriter::write(std::span<const std::byte> piece) {
    while (current_ + 1 < writers_.size() && writers_[current_].has_all_data()) ++current_;
    writers_[current_].write(piece);
}

void PartsWriter::finish() {
    for (size_t i = 0; i < writers_.size(); ++i) {
        try {
            writers_[i].finish();
        } catch (...) {
            std::error_code ignored;
            for (size_t k = 0; k < i; ++k) fs::remove(paths_[k], ignored);
            throw;
        }
    }
}

std::vector<fs::path> output_paths(const fs::path &path, size_t parts) {
    if (parts == 1) return {path};
    std::vector<fs::path> paths;
    for (size_t i = 0; i < parts; ++i)
        paths.emplace_back(path.native() +
                           gguf::part_ending(static_cast<int64_t>(i), static_cast<int64_t>(parts)));
    return paths;
}

std::vector<size_t> divide(const gguf::File &source, const PartLimits &limits) {
    std::vector<size_t> parts;
    size_t part = limits.has_tensors_in_first ? 0 : 1, tensors = 0;
    uint64_t bytes = 0;
    for (const gguf::Tensor &tensor : source.tensors()) {
        const uint64_t alignment = source.alignment();
        // Cannot overflow: the data lies in the file.
        const uint64_t padded = (tensor.bytes + alignment - 1) / alignment * alignment;
        if (tensors > 0 && (tensors == limits.tensors || bytes + padded > limits.bytes))
            ++part, tensors = 0, bytes = 0;
        ++tensors;
        bytes += padded;
        parts.push_back(part);
    }
    return parts;
}

bool copy_model(const gguf::File &source, std::span<const size_t> parts, const fs::path &path,
                const gguf::OutputOptions &options, const std::function<bool(uint64_t)> &progress) {
    constexpr size_t kPiece = size_t{16} << 20;
    PartsWriter writer(parts.empty() ? 1 : parts.back() + 1, static_cast<uint32_t>(source.alignment()));
    for (const auto &[key, value] : source.metadata())
        if (!key.starts_with("split.") && key != "general.alignment") writer.first().add(key, value);
    for (size_t i = 0; i < parts.size(); ++i) {
        const gguf::Tensor &tensor = source.tensors()[i];
        writer.add_tensor(parts[i], tensor.name, tensor.type, {tensor.shape, tensor.rank});
    }
    writer.start(path, options);
    uint64_t done = 0;
    for (const gguf::Tensor &tensor : source.tensors()) {
        for (size_t at = 0; at < tensor.bytes; at += kPiece) {
            const std::span piece(tensor.data + at, std::min<size_t>(kPiece, tensor.bytes - at));
            writer.write(piece);
            gguf::forget_pages(piece);
            done += piece.size();
            if (progress && !progress(done)) return false;
        }
    }
    writer.finish();
    return true;
}

}  // namespace runnel::quantize
