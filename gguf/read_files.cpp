#include "gguf/read_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdio>
#include <mutex>
#include <set>
#include <string>

namespace runnel::gguf {
namespace {

namespace fs = std::filesystem;

struct Known {
    std::mutex mutex;
    std::set<FileId> read, made;
};

Known &known() {
    static Known instance;
    return instance;
}

}  // namespace

std::optional<FileId> file_id(int fd) {
    struct statx status {};
    if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &status) != 0) return std::nullopt;
    if (!S_ISREG(status.stx_mode) && !S_ISBLK(status.stx_mode)) return std::nullopt;
    const bool has_birth = status.stx_mask & STATX_BTIME;
    return FileId{makedev(status.stx_dev_major, status.stx_dev_minor), status.stx_ino,
                  has_birth ? status.stx_btime.tv_sec * 1'000'000'000 + status.stx_btime.tv_nsec : 0};
}

void note_read(int fd) {
    const auto id = file_id(fd);
    const std::lock_guard lock(known().mutex);
    if (id) known().read.insert(*id);
}

void note_read(const fs::path &path) {
    const int fd = open(path.c_str(), O_PATH | O_CLOEXEC);
    if (fd < 0) return;
    note_read(fd);
    close(fd);
}

void note_model(const fs::path &path) {
    note_read(path);
    constexpr size_t kEnding = sizeof "-00001-of-00003.gguf" - 1;
    const std::string name = path.filename().native();
    int part = 0, count = 0, length = 0;
    if (name.size() <= kEnding) return;
    const std::string ending = name.substr(name.size() - kEnding);
    if (std::sscanf(ending.c_str(), "-%5d-of-%5d.gguf%n", &part, &count, &length) != 2 ||
        static_cast<size_t>(length) != kEnding)
        return;
    for (int i = 1; i <= count; ++i) {
        char other[32];
        std::snprintf(other, sizeof other, "-%05d-of-%05d.gguf", i, count);
        note_read(path.parent_path() / (name.substr(0, name.size() - kEnding) + other));
    }
}

bool is_read(const FileId &id) {
    const std::lock_guard lock(known().mutex);
    return known().read.contains(id);
}

void note_made(const FileId &id) {
    const std::lock_guard lock(known().mutex);
    known().made.insert(id);
}

bool is_made(const FileId &id) {
    const std::lock_guard lock(known().mutex);
    return known().made.contains(id);
}

}  // namespace runnel::gguf
