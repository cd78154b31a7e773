// A file mapped into memory, read-only.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <utility>

namespace runnel::gguf {

class Mapping {
  public:
    Mapping() = default;
    // Throws FileError; `missing` is true if there is no readable regular file.
    explicit Mapping(const std::filesystem::path &path);
    ~Mapping();
    Mapping(Mapping &&other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
    Mapping &operator=(Mapping &&other) noexcept {
        std::swap(bytes_, other.bytes_);
        return *this;
    }

    // Page-aligned; the address stays the same when the Mapping is moved. Empty for an empty file.
    std::span<const std::byte> bytes() const { return bytes_; }

  private:
    std::span<const std::byte> bytes_;
};

// Drops the pages that lie wholly in `bytes`, a part of a Mapping, from this process's memory; an access reads them
// again. For code that reads each byte once: its memory then does not grow with the file.
void forget_pages(std::span<const std::byte> bytes);

}  // namespace runnel::gguf
