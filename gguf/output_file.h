// An output file that appears under its name only when it is complete, and never overwrites valuable
// data.
//
//   OutputFile file(path, {.is_private = true});   // throws OutputRefused before a byte is written
//   file.write(bytes);
//   file.commit();                                 // flushed to the disk, then renamed
//
// What may be replaced: an empty file, one that this process made, one that begins with `own`, and with
// `overwrite` any file except those that the process reads (read_files.h). Symbolic links are followed
// and kept, as is the mode of a replaced file. Devices and pipes are written to directly.
//
// The bytes go to ".NAME.RANDOM.partial" in the same folder, opened with O_EXCL | O_NOFOLLOW and locked.
// It is removed if commit() is not reached, or by the next output of that name if the process was killed.
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

// Writing would destroy data. Exit code 2: the user must choose another name or pass --overwrite.
class OutputRefused : public WriteError {
  public:
    enum class Why {
        Exists,  // allowed with `overwrite`
        IsRead,  // never allowed: this process reads the file
    };
    OutputRefused(Why because, const std::string &what) : WriteError(what), why(because) {}
    Why why;
};

struct OutputOptions {
    bool overwrite = false;
    bool is_private = false;  // a new file is readable by its owner only: mode 0600
    std::string_view own{};   // the first bytes of files that may be replaced; empty: none
    bool is_synced = true;    // false: after a power failure, the file may be damaged
};

// Throws OutputRefused if an OutputFile made now would. Lets commands check before they compute for hours.
void check_output(const std::filesystem::path &path, const OutputOptions &options = {});
// Throw OutputRefused for a file that this process reads, and only for that; the first takes an open file,
// called `name` in messages.
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
    void commit();                                 // flushes, syncs, closes and renames

  private:
    void open_temporary();
    void put_in_place();
    void flush();
    void send(std::span<const std::byte> bytes);
    [[noreturn]] void fail() const;

    std::filesystem::path name_, path_;  // as given; the destination with links resolved
    OutputOptions options_;
    std::string temporary_;  // name in folder_; empty for devices and pipes
    int folder_ = -1, fd_ = -1;
    std::vector<std::byte> buffer_;
};

}  // namespace runnel::gguf
