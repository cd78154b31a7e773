// Memory of the CPU backend: large buffers that cost nothing until they are written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace runnel::kernels::cpu {

// Zero-filled anonymous pages, taken from the system on first touch. 4096-byte aligned.
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
    T *as() const { return reinterpret_cast<T *>(data_); }

  private:
    std::byte *data_ = nullptr;
    size_t bytes_ = 0;
};

// K and V pages in f16. A block holds, for every layer of its group and every K/V head, one K page
// [head_dim_k][kBlockTokens] (transposed: lanes are keys in q . k) and one V page [kBlockTokens][head_dim_v].
class CacheMemory {
  public:
    CacheMemory() = default;
    CacheMemory(const Program &program, const CacheConfig &config);

    uint16_t *k_page(int32_t layer, BlockId block, int32_t kv_head) const;
    uint16_t *v_page(int32_t layer, BlockId block, int32_t kv_head) const;

  private:
    struct LayerPlace {
        size_t group;
        size_t offset;              // of the layer's pages in a block, in halves
        size_t k_page, v_page;      // halves per head
        size_t v_offset;            // of the first V page, from `offset`
    };
    struct Group {
        LazyBuffer memory;
        size_t block = 0;           // halves per block
    };
    uint16_t *layer_pages(const LayerPlace &place, BlockId block) const {
        const Group &group = groups_[place.group];
        return group.memory.as<uint16_t>() + static_cast<size_t>(block) * group.block + place.offset;
    }

    std::vector<LayerPlace> layers_;
    std::vector<Group> groups_;
};

}  // namespace runnel::kernels::cpu
