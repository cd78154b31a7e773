// The files that this process reads, which no output may destroy, and those it made, which it may replace.
//
// The lists are global to the process: no output may overwrite a file that any code of the same run opened.
// Safe to call from any thread.
#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <optional>

namespace runnel::gguf {

// Identifies a file independent of its name and links. `born` (nanoseconds; 0 if the file system does not
// record it) tells a file from a later one with the same inode.
struct FileId {
    uint64_t device = 0, inode = 0;
    int64_t born = 0;
    auto operator<=>(const FileId &) const = default;
};

// nullopt if it is neither a regular file nor a block device.
std::optional<FileId> file_id(int fd);

// Records that this process reads the file. A path that cannot be opened is ignored.
void note_read(int fd);
void note_read(const std::filesystem::path &path);
// Records a model by file name: all parts of a split model (NAME-00001-of-00003.gguf).
void note_model(const std::filesystem::path &path);
bool is_read(const FileId &id);

void note_made(const FileId &id);
bool is_made(const FileId &id);

}  // namespace runnel::gguf
