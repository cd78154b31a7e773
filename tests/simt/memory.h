// Device memory with shadow: for every byte, whether it was written, and who last wrote and read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/runtime/runtime.h"
#include "tests/simt/simt.h"

namespace runnel::simt {

// Zeroed pages that cost nothing until they are touched.
class Pages {
  public:
    explicit Pages(size_t bytes);
    ~Pages();
    Pages(const Pages &) = delete;
    Pages &operator=(const Pages &) = delete;
    template <class T>
    T *as() const {
        return static_cast<T *>(memory_);
    }

  private:
    void *memory_;
    size_t bytes_;
};

// One access of one byte, packed into 64 bits. 0: none.
struct Access {
    uint64_t block;  // number of the block's run, unique in the process and rising; 34 bits
    uint32_t warp, lane, clock;
    bool flag_a = false;  // writer: in flight (cp.async); reader: several lanes of the warp
    bool flag_b =
        false;  // writer: atomic; reader: several warps or blocks (clock: then of the block's barriers)

    uint64_t pack() const {
        return block << 30 | uint64_t{warp} << 25 | uint64_t{lane} << 20 | uint64_t{clock & 0x3ffffu} << 2 |
               uint64_t{flag_a} << 1 | uint64_t{flag_b};
    }
    static Access unpack(uint64_t bits) {
        return {bits >> 30,
                static_cast<uint32_t>(bits >> 25 & 31u),
                static_cast<uint32_t>(bits >> 20 & 31u),
                static_cast<uint32_t>(bits >> 2 & 0x3ffffu),
                (bits >> 1 & 1u) != 0,
                (bits & 1u) != 0};
    }
};

struct Shadow {
    uint64_t *writers, *readers;  // one Access per byte
};

struct NamedRegion {
    std::string name;
    size_t begin, end;  // in its allocation
    kernels::cuda::Region kind;
    Traffic traffic = {};   // of the current launch
    uint64_t streamed = 0;  // Access::block of the last ldg*_stream
    uint64_t early = 0;     // and of the last read before grid_dep_wait()
};

// Unused bytes before and after every allocation, so that no pointer strays into another.
inline constexpr size_t kRedZone = 64 << 10;

class Allocation {
  public:
    Allocation(size_t bytes, std::string called, bool on_host, int of_device);

    std::byte *begin() const { return data_; }
    size_t size() const { return size_; }
    // p lies in it or in the red zone after it.
    bool claims(const void *p) const {
        const auto *at = static_cast<const std::byte *>(p);
        return at >= data_ && at < data_ + size_ + kRedZone;
    }
    // The region that holds all of [offset, offset + bytes), or null.
    NamedRegion *find(size_t offset, size_t bytes);
    void name_region(size_t offset, size_t bytes, const char *name, kernels::cuda::Region kind);
    std::vector<NamedRegion> &regions() { return regions_; }

    const std::string name;
    const bool host;   // pinned host memory
    const int device;  // whose memory it is, if not the host's
    uint8_t *written;  // per byte: 1 if it was written
    Shadow shadow;
    uint64_t last_written;  // the highest Access::block of a write

  private:
    size_t size_;
    Pages data_pages_, written_pages_, writer_pages_, reader_pages_;
    std::byte *data_;
    bool named_ = false;
    size_t last_found_ = 0;
    std::vector<NamedRegion> regions_;  // sorted, disjoint; one over everything until the first is named
};

// All allocations of all devices.
class Memory {
  public:
    static constexpr int kNone = -1;
    void *allocate(size_t bytes, const std::string &name, bool host, int device);
    void free(void *p);
    Allocation *find(const void *p);  // that claims p; null: no device memory
    std::vector<Allocation *> all() const;
    size_t allocated(int device) const;
    size_t take_peak() { return std::exchange(peak_, allocated_); }  // since the last call
    // For the host's copies and fills: throws a Violation unless [p, p + bytes) is inside one allocation.
    Allocation &range(const void *p, size_t bytes, const char *what);
    void mark_written(const void *p, size_t bytes);
    void expect_written(const void *p, size_t bytes, const char *what);
    // Bytes that were never written may be copied; their copies then count as never written.
    // from_device: whose memory `from` is; kNone: that of the device whose work runs now.
    void copy_marks(void *to, const void *from, size_t bytes, int from_device = kNone);
    std::map<std::string, Traffic> take_traffic();
    // Sets the device whose work runs now; returns the previous one. kNone: operations that name no device.
    int work_on(int device) { return std::exchange(device_, device); }
    bool is_foreign(const Allocation &a) const { return device_ != kNone && !a.host && a.device != device_; }

  private:
    std::map<uintptr_t, std::unique_ptr<Allocation>> allocations_;
    Allocation *last_ = nullptr;
    std::map<int, size_t> of_device_;  // bytes allocated
    size_t allocated_ = 0, peak_ = 0;  // of all devices
    int device_ = kNone;
};

Memory &memory();

// Held during all use of the device: the emulator runs one operation at a time.
std::recursive_mutex &device_lock();

}  // namespace runnel::simt
