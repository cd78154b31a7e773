// Memory of the CPU backend: large buffers whose pages take no memory until they are written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/attention.h"

namespace runnel::kernels::cpu {

// Zero-filled anonymous pages, allocated on first touch. 4096-byte aligned.
class LazyBuffer {
  public:
    LazyBuffer() = default;
    // Throws BackendError{OutOfMemory} naming `what` when the address space or the commit limit is exhausted.
    LazyBuffer(size_t bytes, const char *what);
    ~LazyBuffer();
    LazyBuffer(LazyBuffer &&other) noexcept;
    LazyBuffer &operator=(LazyBuffer &&other) noexcept;

    std::byte *data() const { return data_; }
    size_t size() const { return bytes_; }
    template <typename T>
    T *as() const {
        return reinterpret_cast<T *>(data_);
    }

  private:
    std::byte *data_ = nullptr;
    size_t bytes_ = 0;
};

// The pools of the cache's groups.
struct PoolMemory final : CachePools {
    std::vector<LazyBuffer> groups;
};

// K and V pages. For every layer of its group and every K/V head, a block holds one K page
// [head_dim_k][kBlockTokens] (transposed: lanes are keys in q . k) and one V page [kBlockTokens][head_dim_v],
// in the configured types.
class CacheMemory {
  public:
    CacheMemory() = default;
    CacheMemory(const Program &program, const CacheConfig &config);

    const std::shared_ptr<const PoolMemory> &pools() const { return pools_; }

    // The pages of one layer and K/V head, for the blocks of `table`.
    KvPages pages(const Attention &step, int32_t kv_head, const BlockId *table) const;
    // The pages of an indexer's keys.
    KvPages pages(const Indexer &step, const BlockId *table) const;

    // All bytes of a block. Precondition: this device holds it.
    std::span<std::byte> block(int32_t group, BlockId block) const;

    bool holds(int32_t group, BlockId block) const {
        const size_t g = static_cast<size_t>(group);
        return block >= first_[g] && block < first_[g] + blocks_[g];
    }
    // The rank that holds a block of a divided group (CacheConfig::shares).
    int32_t rank_of(int32_t group, BlockId block) const {
        return block / blocks_[static_cast<size_t>(group)];
    }

  private:
    struct LayerPlace {
        size_t group;
        size_t k_offset, v_offset;  // of the layer's first K and V page in a block, in bytes
        bool has_v;                 // false: values are the first dimensions of K
        CacheType k_type;
    };
    std::byte *memory(size_t group) const { return pools_->groups[group].data(); }

    CacheType v_ = CacheType::F16;
    std::vector<LayerPlace> layers_;
    std::vector<size_t> block_bytes_;  // by group
    std::vector<int32_t> blocks_;      // by group: how many this device holds,
    std::vector<BlockId> first_;       // and the first of them
    std::shared_ptr<const PoolMemory> pools_ = std::make_shared<const PoolMemory>();
};

// State slots of recurrent layers: a slot holds the states of all layers, one after the other.
class StateMemory {
  public:
    StateMemory() = default;
    StateMemory(const Program &program, const CacheConfig &config);

    // Null for kNoState.
    float *at(StateId slot, int32_t layer) const {
        if (slot == kNoState) return nullptr;
        return memory_.as<float>() + static_cast<size_t>(slot) * slot_ + offsets_[static_cast<size_t>(layer)];
    }
    std::span<std::byte> bytes(StateId slot) const {
        return {memory_.data() + static_cast<size_t>(slot) * slot_ * sizeof(float), slot_ * sizeof(float)};
    }

  private:
    LazyBuffer memory_;
    size_t slot_ = 0;  // floats
    std::vector<size_t> offsets_;
};

}  // namespace runnel::kernels::cpu
