// K and V on the device: the pages of all layers (cache_pages.h) in one allocation; copies, reads and writes
// whole blocks of a group.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/runtime.h"

namespace runnel::kernels::cuda {

struct DevicePools final : CachePools {
    DeviceMemory memory;
};

class KvMemory {
  public:
    KvMemory() = default;
    KvMemory(const Program &program, const CacheConfig &config);

    const std::shared_ptr<const DevicePools> &pools() const { return pools_; }

    // Bytes that the constructor will allocate.
    static size_t bytes(const Program &program, const CacheConfig &config);

    CacheType k_type() const { return k_type_; }
    CacheType v_type() const { return v_type_; }
    std::byte *k(int32_t layer) const { return memory() + layers_[static_cast<size_t>(layer)].k.at; }
    std::byte *v(int32_t layer) const { return memory() + layers_[static_cast<size_t>(layer)].v.at; }

    // As in Backend. copy() is asynchronous; the others return when they are done.
    void copy(Stream &stream, int32_t group, std::span<const BlockCopy> copies) const;
    void read(Stream &stream, int32_t group, BlockId block, std::span<std::byte> bytes) const;
    void write(Stream &stream, int32_t group, BlockId block, std::span<const std::byte> bytes) const;

  private:
    struct Pages {
        size_t at, bytes;  // offset in memory() of the first block; bytes per block
    };
    struct Layer {
        int32_t group;
        Pages k, v;
    };
    struct Layout {
        std::vector<Layer> layers;
        size_t bytes = 0;
    };
    static Layout layout(const Program &program, const CacheConfig &config);
    std::byte *memory() const { return pools_ ? pools_->memory.data() : nullptr; }
    // Calls f(pages, bytes) for every page of a block of the group.
    template <typename F>
    void visit(int32_t group, BlockId block, F f) const;

    CacheType k_type_ = CacheType::F16, v_type_ = CacheType::F16;
    std::shared_ptr<const DevicePools> pools_;  // null: no layer has any
    std::vector<Layer> layers_;
};

}  // namespace runnel::kernels::cuda
