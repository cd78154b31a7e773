#include "gguf/output_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>
#include <utility>

#include "gguf/printable.h"

namespace runnel::gguf {
namespace {

namespace fs = std::filesystem;
// Files are written in pieces of 2 MiB, at multiples of 2 MiB: then Linux can keep a new file in large pages, from which a
// model's weights are read faster: 7% in decode (gguf/mapping.cpp).
constexpr size_t kPiece = size_t{2} << 20;
constexpr std::string_view kPartial = ".partial";
constexpr size_t kRandomDigits = 16, kMostOfName = 200;  // names have up to 255 bytes

std::string shown(const fs::path &path) {
    return printable(path.native(), 4096);
}

[[noreturn]] void fail_for(const fs::path &path, int error) {
    throw WriteError("cannot write " + shown(path) + ": " + std::generic_category().message(error));
}

class Descriptor {
  public:
    explicit Descriptor(int fd) : fd_(fd) {}
    ~Descriptor() {
        if (fd_ >= 0) close(fd_);
    }
    Descriptor(const Descriptor &) = delete;
    Descriptor &operator=(const Descriptor &) = delete;
    int get() const { return fd_; }

  private:
    int fd_;
};

// The current state of a path.
struct Target {
    fs::path path;  // links resolved
    bool exists = false;
    struct stat status {};
    std::optional<FileId> id{};
    bool is_special() const { return exists && !S_ISREG(status.st_mode); }
};

Target look(const fs::path &name, int links = 0) {
    constexpr int kMostLinks = 40;
    // (O_PATH also works for files that may be written but not read. The kernel refuses links that others
    // planted in a world-writable folder, if it protects against them.)
    const Descriptor file(open(name.c_str(), O_PATH | O_CLOEXEC));
    std::error_code error;
    if (file.get() < 0) {
        if (errno != ENOENT) fail_for(name, errno);
        const fs::path linked = fs::read_symlink(name, error);
        if (error) return {name};
        if (links == kMostLinks) fail_for(name, ELOOP);
        return look(name.parent_path() / linked, links + 1);
    }
    Target target{fs::canonical(name, error), true};
    if (error) target.path = name;
    if (fstat(file.get(), &target.status) != 0) fail_for(name, errno);
    target.id = file_id(file.get());
    return target;
}

bool begins_with(const Target &target, std::string_view bytes) {
    const Descriptor file(open(target.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    std::string begin(bytes.size(), '\0');
    return !bytes.empty() && file.get() >= 0 && file_id(file.get()) == target.id &&
           pread(file.get(), begin.data(), begin.size(), 0) == static_cast<ssize_t>(begin.size()) &&
           begin == bytes;
}

[[noreturn]] void refuse_read(const fs::path &name) {
    throw OutputRefused(OutputRefused::Why::IsRead,
                        "will not write to " + shown(name) + ": this run reads that file; choose another");
}

void check(const Target &target, const fs::path &name, const OutputOptions &options) {
    if (!target.exists) return;
    if (S_ISDIR(target.status.st_mode)) fail_for(name, EISDIR);
    if (target.id && is_read(*target.id)) refuse_read(name);
    // A shell may have opened the same file (`> FILE`): replacing it would lose what is printed there.
    for (const int standard : {STDOUT_FILENO, STDERR_FILENO})
        if (target.id && target.id == file_id(standard))
            throw OutputRefused(OutputRefused::Why::IsRead,
                                "will not write to " + shown(name) + ": standard " +
                                    (standard == STDOUT_FILENO ? "output" : "error") +
                                    " goes to that file; choose another");
    if (options.overwrite || (target.is_special() && !S_ISBLK(target.status.st_mode))) return;
    if (S_ISREG(target.status.st_mode) &&
        (target.status.st_size == 0 || is_made(*target.id) || begins_with(target, options.own)))
        return;
    throw OutputRefused(
        OutputRefused::Why::Exists,
        shown(name) + " exists already: pass --overwrite to replace it, or choose another name");
}

std::string random_digits() {
    uint64_t bits = 0;
    if (getrandom(&bits, sizeof bits, 0) != static_cast<ssize_t>(sizeof bits))
        bits = static_cast<uint64_t>(getpid()) * 0x9e3779b97f4a7c15u;  // O_EXCL still prevents a collision
    char text[kRandomDigits + 1];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(bits));
    return text;
}

std::string stem_of(const fs::path &path) {
    return "." + path.filename().native().substr(0, kMostOfName) + ".";
}

// ".NAME.0123456789abcdef.partial".
bool is_partial(std::string_view entry, std::string_view stem) {
    if (entry.size() != stem.size() + kRandomDigits + kPartial.size() || !entry.starts_with(stem) ||
        !entry.ends_with(kPartial))
        return false;
    return entry.substr(stem.size(), kRandomDigits).find_first_not_of("0123456789abcdef") == entry.npos;
}

// Removes temporary files of outputs of this name whose process was killed: a running process holds a lock.
void remove_stale(int folder, const std::string &stem) {
    const int copy = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const std::unique_ptr<DIR, int (*)(DIR *)> list(copy < 0 ? nullptr : fdopendir(copy), closedir);
    while (const dirent *entry = list ? readdir(list.get()) : nullptr) {
        if (!is_partial(entry->d_name, stem)) continue;
        const Descriptor file(openat(folder, entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
        struct stat status {};
        if (file.get() >= 0 && fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) &&
            status.st_uid == geteuid() && flock(file.get(), LOCK_EX | LOCK_NB) == 0)
            unlinkat(folder, entry->d_name, 0);
    }
}

}  // namespace

void check_output(const fs::path &path, const OutputOptions &options) {
    check(look(path), path, options);
}

void refuse_if_read(int fd, const fs::path &name) {
    const auto id = file_id(fd);
    if (id && is_read(*id)) refuse_read(name);
}

void refuse_if_read(const fs::path &path) {
    const Descriptor file(open(path.c_str(), O_PATH | O_CLOEXEC));
    if (file.get() >= 0) refuse_if_read(file.get(), path);
}

OutputFile::OutputFile(const fs::path &path, const OutputOptions &options) : name_(path), options_(options) {
    const Target target = look(path);
    check(target, name_, options_);
    path_ = target.path;
    if (target.is_special()) {
        fd_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
        if (fd_ < 0) fail();
    } else {
        open_temporary();
    }
    buffer_.reserve(kPiece);
}

OutputFile::~OutputFile() {
    if (!temporary_.empty()) unlinkat(folder_, temporary_.c_str(), 0);
    if (fd_ >= 0) close(fd_);
    if (folder_ >= 0) close(folder_);
}

void OutputFile::fail() const {
    fail_for(name_, errno);
}

void OutputFile::open_temporary() {
    const fs::path parent = path_.parent_path();
    folder_ = ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder_ < 0) fail();
    const std::string stem = stem_of(path_);
    remove_stale(folder_, stem);
    constexpr int kTries = 16;
    for (int i = 0; i < kTries; ++i) {
        const std::string name = stem + random_digits() + std::string(kPartial);
        const int fd = openat(folder_, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                              options_.is_private ? 0600 : 0666);
        if (fd < 0 && errno == EEXIST) continue;
        if (fd < 0) fail();
        fd_ = fd;
        temporary_ = name;
        flock(fd, LOCK_EX | LOCK_NB);
        struct stat status {};
        if (fstat(fd, &status) == 0 && status.st_nlink > 0) return;
        temporary_.clear();  // another process removed it as stale before it was locked
        close(std::exchange(fd_, -1));
    }
    errno = EEXIST;
    fail();
}

void OutputFile::write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const size_t whole = buffer_.empty() ? bytes.size() / kPiece * kPiece : 0;
        send(bytes.first(whole));
        bytes = bytes.subspan(whole);
        const size_t count = std::min(kPiece - buffer_.size(), bytes.size());
        buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count));
        bytes = bytes.subspan(count);
        if (buffer_.size() == kPiece) flush();
    }
}

void OutputFile::flush() {
    send(buffer_);
    buffer_.clear();
}

void OutputFile::send(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) fail();
        bytes = bytes.subspan(static_cast<size_t>(written));
    }
}

// Renames the temporary file to its final name. Checks again that this is allowed: hours may have passed.
void OutputFile::put_in_place() {
    const Target target = look(path_);
    check(target, name_, options_);
    if (target.is_special()) fail_for(name_, EEXIST);
    if (target.exists) {  // keep the permissions
        if ((target.status.st_uid != geteuid() || target.status.st_gid != getegid()) &&
            fchown(fd_, target.status.st_uid, target.status.st_gid) != 0 && errno != EPERM)
            fail();
        if (fchmod(fd_, target.status.st_mode & 0777) != 0) fail();
    }
    if (options_.is_synced && fsync(fd_) != 0 && errno != EINVAL) fail();
    const std::string name = path_.filename().native();
    const unsigned int how = target.exists ? 0 : RENAME_NOREPLACE;
    int result = renameat2(folder_, temporary_.c_str(), folder_, name.c_str(), how);
    if (result != 0 && how != 0 && errno == EINVAL)  // not supported by this file system
        result = renameat(folder_, temporary_.c_str(), folder_, name.c_str());
    if (result != 0) fail();
    temporary_.clear();
    if (const auto id = file_id(fd_)) note_made(*id);
    if (options_.is_synced && fsync(folder_) != 0 && errno != EINVAL && errno != EROFS) fail();
}

void OutputFile::commit() {
    flush();
    if (!temporary_.empty()) put_in_place();
    const int fd = std::exchange(fd_, -1);
    if (close(fd) != 0) fail();  // some file systems report a full disk only here
}

}  // namespace runnel::gguf
