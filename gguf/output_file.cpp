#include "gguf/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "gguf/printable.h"
#include "gguf/writer.h"

namespace runnel::gguf {
namespace {

namespace fs = std::filesystem;
constexpr size_t kBuffer = 1 << 20;

// Where a rename has to go so that a symbolic link stays one.
fs::path target_of(const fs::path &path) {
    std::error_code error;
    const fs::path target = fs::canonical(path, error);
    return error ? path : target;
}

bool is_special(const fs::path &path) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    return fs::exists(status) && !fs::is_regular_file(status);
}

}  // namespace

OutputFile::OutputFile(const fs::path &path) : path_(target_of(path)) {
    int flags = O_WRONLY | O_CLOEXEC;
    if (!is_special(path_)) {
        temporary_ = path_;
        temporary_ += ".partial-" + std::to_string(getpid());
        flags |= O_CREAT | O_TRUNC;
    }
    fd_ = ::open(temporary_.empty() ? path_.c_str() : temporary_.c_str(), flags, 0666);
    if (fd_ < 0) fail();
    buffer_.reserve(kBuffer);
}

OutputFile::~OutputFile() {
    if (fd_ >= 0) close(fd_);
    if (!temporary_.empty()) unlink(temporary_.c_str());
}

void OutputFile::fail() const {
    throw WriteError("cannot write " + printable(path_.native(), 4096) + ": " +
                     std::generic_category().message(errno));
}

void OutputFile::write(std::span<const std::byte> bytes) {
    if (buffer_.size() + bytes.size() > kBuffer) flush();
    if (bytes.size() > kBuffer)
        send(bytes);
    else
        buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
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

void OutputFile::commit() {
    flush();
    const int fd = std::exchange(fd_, -1);
    if (close(fd) != 0) fail();  // some file systems report a full disk only now
    if (temporary_.empty()) return;
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail();
    temporary_.clear();
}

}  // namespace runnel::gguf
