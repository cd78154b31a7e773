#include "kernels/cpu/memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <string>
#include <utility>

namespace runnel::kernels::cpu {

LazyBuffer::LazyBuffer(size_t bytes, const char *what) : bytes_(bytes) {
    if (bytes == 0) return;
    void *memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        throw BackendError(BackendError::Kind::OutOfMemory,
                           std::string("cannot reserve ") + std::to_string((bytes + (1 << 20) - 1) >> 20) +
                               " MiB for " + what);
    data_ = static_cast<std::byte *>(memory);
    // Pages of 2 MiB where the system has them: fewer faults when the pages are first written, fewer misses later.
    constexpr size_t kWorthwhile = size_t{16} << 20;
    if (bytes >= kWorthwhile) madvise(memory, bytes, MADV_HUGEPAGE);
}

LazyBuffer::~LazyBuffer() {
    if (data_) munmap(data_, bytes_);
}

LazyBuffer::LazyBuffer(LazyBuffer &&other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

LazyBuffer &LazyBuffer::operator=(LazyBuffer &&other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

CacheMemory::CacheMemory(const Program &program, const CacheConfig &config) : v_(config.v) {
    groups_.resize(config.blocks.size());
    for (const CacheLayer &layer : program.cache_layers) {
        Group &group = groups_[static_cast<size_t>(layer.group)];
        const size_t head_cells = static_cast<size_t>(layer.kv_heads) * kBlockTokens;
        const CacheType k_type = key_type(layer, config.k);
        const size_t k_offset = group.block,
                     v_offset = k_offset + head_cells * cache_row_bytes(k_type, layer.head_dim_k);
        layers_.push_back(
            {static_cast<size_t>(layer.group), k_offset, v_offset, layer.head_dim_v > 0, k_type});
        group.block = v_offset + head_cells * cache_row_bytes(v_, layer.head_dim_v);
    }
    for (size_t g = 0; g < groups_.size(); ++g) {
        size_t bytes = 0;
        if (__builtin_mul_overflow(groups_[g].block, static_cast<size_t>(config.blocks[g]), &bytes))
            bytes = SIZE_MAX / 2;  // as impossible to allocate, but a valid size to print
        groups_[g].memory = LazyBuffer(bytes, "the K/V cache; a smaller context (-c) needs less");
    }
}

KvPages CacheMemory::pages(const Attention &step, int32_t kv_head, const BlockId *table) const {
    const LayerPlace &place = layers_[static_cast<size_t>(step.cache)];
    const Group &group = groups_[place.group];
    const size_t head_cells = static_cast<size_t>(kv_head) * kBlockTokens;
    std::byte *base = group.memory.data();
    return {.k = base + place.k_offset + head_cells * cache_row_bytes(place.k_type, step.head_dim_k),
            .v = place.has_v ? base + place.v_offset + head_cells * cache_row_bytes(v_, step.head_dim_v)
                             : nullptr,
            .k_stride = group.block,
            .v_stride = group.block,
            .table = table,
            .head_dim_k = step.head_dim_k,
            .head_dim_v = step.head_dim_v,
            .k_type = place.k_type,
            .v_type = v_};
}

KvPages CacheMemory::pages(const Indexer &step, const BlockId *table) const {
    Attention keys{};
    keys.cache = step.cache;
    keys.head_dim_k = step.head_dim;
    return pages(keys, 0, table);
}

std::span<std::byte> CacheMemory::block(int32_t group, BlockId block) const {
    const Group &g = groups_[static_cast<size_t>(group)];
    return {g.memory.data() + static_cast<size_t>(block) * g.block, g.block};
}

StateMemory::StateMemory(const Program &program, const CacheConfig &config) {
    for (const StateLayer &layer : program.state_layers) {
        offsets_.push_back(slot_);
        slot_ += static_cast<size_t>(layer.floats);
    }
    size_t bytes = 0;
    if (__builtin_mul_overflow(slot_ * sizeof(float), static_cast<size_t>(config.states), &bytes))
        bytes = SIZE_MAX / 2;
    memory_ = LazyBuffer(bytes, "the states of recurrent layers; fewer sequences at a time need less");
}

}  // namespace runnel::kernels::cpu
