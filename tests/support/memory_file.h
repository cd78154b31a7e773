// A file in memory, for functions that take a path.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <system_error>

namespace runnel::testing {

class MemoryFile {
  public:
    explicit MemoryFile(std::span<const uint8_t> bytes) : fd_(memfd_create("input", MFD_CLOEXEC)) {
        if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "memfd_create");
        if (write(fd_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
            throw std::system_error(errno, std::generic_category(), "write");
    }
    ~MemoryFile() { close(fd_); }
    MemoryFile(const MemoryFile &) = delete;
    MemoryFile &operator=(const MemoryFile &) = delete;
    // Every use of the path opens the file again, from its beginning.
    std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

  private:
    int fd_;
};

}  // namespace runnel::testing
