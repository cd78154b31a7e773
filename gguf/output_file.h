// A file being written: it appears under its name when it is complete, and never over something that must not
// be lost.
//
//   OutputFile file(path, {.is_private = true});   // throws OutputRefused before a byte is written
//   file.write(bytes);
//   file.commit();                                 // flushed to the disk, then renamed
//
// What may be replaced: an empty file, one that this process made, one that begins with `own`, and with
// `overwrite` any file but those that the process reads (read_files.h). Symbolic links are followed and stay,
// the mode of a replaced file is kept. A device or a pipe is written to directly.
//
// The bytes go to ".NAME.RANDOM.partial" in the same folder, opened with O_EXCL | O_NOFOLLOW and locked; it is
// removed when commit() is not reached, and by the next output of that name when the process was killed.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/read_files.h"

namespace runnel::gguf {

// The file cannot be written (no space left, no permission, closed pipe): one line that names it.
class WriteError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// Writing would destroy something. Exit code 2: another name, or --overwrite, is what helps.
class OutputRefused : public WriteError {
  public:
    enum class Why {
        Exists,  // `overwrite` would allow it
        IsRead,  // nothing would: this process reads the file
    };
    OutputRefused(Why because, const std::string &what) : WriteError(what), why(because) {}
    Why why;
};

struct OutputOptions {
    bool overwrite = false;
    bool is_private = false;  // a new file is for its owner alone: mode 0600
    std::string_view own{};   // how files begin that an earlier run made; empty: there is no such mark
};

// Throws OutputRefused when an OutputFile would, now. For commands to ask before they compute for hours.
void check_output(const std::filesystem::path &path, const OutputOptions &options = {});
// Throw it for a file that this process reads, and for nothing else; the first, of a file that is open
// already, called `name`.
void refuse_if_read(int fd, const std::filesystem::path &name);
void refuse_if_read(const std::filesystem::path &path);

class OutputFile {
  public:
    // Throws WriteError, as do all functions here.
    explicit OutputFile(const std::filesystem::path &path, const OutputOptions &options = {});
    ~OutputFile();
    OutputFile(const OutputFile &) = delete;
    OutputFile &operator=(const OutputFile &) = delete;

    void write(std::span<const std::byte> bytes);  // buffered
    void commit();                                 // writes what is buffered, syncs, closes, renames

  private:
    void open_temporary();
    void put_in_place();
    void flush();
    void send(std::span<const std::byte> bytes);
    [[noreturn]] void fail() const;

    std::filesystem::path name_, path_;  // as given; where it goes, links resolved
    OutputOptions options_;
    std::string temporary_;  // in folder_; empty for devices and pipes
    int folder_ = -1, fd_ = -1;
    std::vector<std::byte> buffer_;
};

}  // namespace runnel::gguf
