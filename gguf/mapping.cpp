#include "gguf/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

#include "gguf/file.h"
#include "gguf/no_address_space.h"
#include "gguf/printable.h"

namespace runnel::gguf {
namespace {

[[noreturn]] void fail(const std::filesystem::path &path, const std::string &why, bool missing) {
    throw FileError(printable(path.native(), 4096) + ": " + why, missing);
}

std::string reason() {
    return std::generic_category().message(errno);
}

struct Descriptor {
    int fd;
    ~Descriptor() {
        if (fd >= 0) close(fd);
    }
};

}  // namespace

Mapping::Mapping(const std::filesystem::path &path) {
    // O_NONBLOCK: opening a FIFO must not wait for a writer.
    const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (file.fd < 0) fail(path, "cannot open: " + reason(), true);
    struct stat status = {};
    if (fstat(file.fd, &status) != 0) fail(path, "cannot read: " + reason(), true);
    if (S_ISDIR(status.st_mode)) fail(path, "is a directory, not a GGUF file", true);
    if (!S_ISREG(status.st_mode))
        fail(path, "is not a regular file, so it cannot be mapped into memory", true);
    if (status.st_size == 0) return;
    const auto size = static_cast<size_t>(status.st_size);
    void *memory = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd, 0);
    if (memory == MAP_FAILED && errno == ENOMEM)
        throw NoAddressSpace(printable(path.native(), 4096) + ": cannot map into memory: " + reason());
    if (memory == MAP_FAILED) fail(path, "cannot map into memory: " + reason(), false);
    bytes_ = {static_cast<const std::byte *>(memory), size};
    // A hint: where the file system has large pages in its cache, weights read in units of 2 MB need fewer page walks.
    madvise(memory, size, MADV_HUGEPAGE);
}

Mapping::~Mapping() {
    if (!bytes_.empty()) munmap(const_cast<std::byte *>(bytes_.data()), bytes_.size());
}

void forget_pages(std::span<const std::byte> bytes) {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
    const uintptr_t first = (begin + page - 1) / page * page, last = (begin + bytes.size()) / page * page;
    // (madvise() is only a hint, so its failure is ignored.)
    if (first < last) madvise(reinterpret_cast<void *>(first), last - first, MADV_DONTNEED);
}

}  // namespace runnel::gguf
