// Which files this process reads, and which it made: what no output may destroy, and what it may replace.
//
// Kept for the whole process, because the promise is one of the process: whatever code opened a file, no
// output of the same run goes over it. Safe to call from any thread.
#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <optional>

namespace runnel::gguf {

// The same for all names and links of a file. `born` (nanoseconds; 0 where the file system does not say) tells
// a file from a later one that got the same inode.
struct FileId {
    uint64_t device = 0, inode = 0;
    int64_t born = 0;
    auto operator<=>(const FileId &) const = default;
};

// nullopt for what is neither a regular file nor a block device.
std::optional<FileId> file_id(int fd);

// The file is read by this process. A path that cannot be opened is passed over.
void note_read(int fd);
void note_read(const std::filesystem::path &path);
// The same for a model, all parts of a split one, by their names (NAME-00001-of-00003.gguf).
void note_model(const std::filesystem::path &path);
bool is_read(const FileId &id);

void note_made(const FileId &id);
bool is_made(const FileId &id);

}  // namespace runnel::gguf
