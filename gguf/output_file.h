// A file being written that appears under its name only when it is complete.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace runnel::gguf {

class OutputFile {
  public:
    // Throws WriteError, as do all functions here.
    explicit OutputFile(const std::filesystem::path &path);
    ~OutputFile();
    OutputFile(const OutputFile &) = delete;
    OutputFile &operator=(const OutputFile &) = delete;

    void write(std::span<const std::byte> bytes);  // buffered
    void commit();                                 // writes what is buffered, closes, renames

  private:
    void flush();
    void send(std::span<const std::byte> bytes);
    [[noreturn]] void fail() const;

    std::filesystem::path path_, temporary_;  // no temporary file for devices and pipes
    int fd_ = -1;
    std::vector<std::byte> buffer_;
};

}  // namespace runnel::gguf
