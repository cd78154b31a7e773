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

    // Of a group: the first of its blocks that this device holds, and the end of them.
    BlockId first_block(int32_t group) const { return group_of(group).first; }
    BlockId end_block(int32_t group) const { return group_of(group).end; }

    // Fills the pages with zeros.
    void clear(Stream &stream) const;

    // As in Backend. copy() is asynchronous and leaves out blocks that this device does not hold; the others return when they
    // are done.
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
    struct Group {
        BlockId first, end;
    };
    const Group &group_of(int32_t group) const { return groups_[static_cast<size_t>(group)]; }
    // Bytes from the first block held of the group.
    size_t offset(int32_t group, BlockId block, const Pages &pages) const {
        return static_cast<size_t>(block - first_block(group)) * pages.bytes;
    }
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
    std::vector<Group> groups_;
};

}  // namespace runnel::kernels::cuda
