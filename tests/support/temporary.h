// Files that tests write.
#pragma once

#include <stdlib.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace runnel::testing {

// A directory that is removed with its content at the end of its scope.
class TemporaryDirectory {
  public:
    TemporaryDirectory() {
        std::string name = (std::filesystem::temp_directory_path() / "runnel-test-XXXXXX").string();
        if (mkdtemp(name.data()) == nullptr) throw std::system_error(errno, std::generic_category(), name);
        path_ = name;
    }
    ~TemporaryDirectory() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TemporaryDirectory(const TemporaryDirectory &) = delete;
    TemporaryDirectory &operator=(const TemporaryDirectory &) = delete;

    const std::filesystem::path &path() const { return path_; }
    std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

  private:
    std::filesystem::path path_;
};

// The path quoted as one word of a shell command.
inline std::string shell_word(const std::filesystem::path &path) {
    std::string word = "'";
    for (const char c : path.native()) word += c == '\'' ? "'\\''" : std::string(1, c);
    return word + "'";
}

inline void write_file(const std::filesystem::path &path, std::span<const std::byte> bytes) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char *>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

// Makes the folders of the path, too.
inline void write_text(const std::filesystem::path &path, std::string_view text) {
    std::filesystem::create_directories(path.parent_path());
    write_file(path, std::as_bytes(std::span(text)));
}

inline std::vector<std::byte> read_bytes(const std::filesystem::path &path) {
    std::ifstream in(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    const auto *data = reinterpret_cast<const std::byte *>(text.data());
    return {data, data + text.size()};
}

}  // namespace runnel::testing
