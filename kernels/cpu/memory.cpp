#include "kernels/cpu/memory.h"

#include <sys/mman.h>

#include <cassert>
#include <cstdint>
#include <memory>
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

CacheMemory::CacheMemory(const Program &program, const CacheConfig &config)
    : v_(config.v),
      block_bytes_(config.blocks.size()),
      blocks_(config.blocks),
      first_(config.first.empty() ? std::vector<BlockId>(config.blocks.size()) : config.first) {
    for (const CacheLayer &layer : program.cache_layers) {
        size_t &block = block_bytes_[static_cast<size_t>(layer.group)];
        const size_t head_cells = static_cast<size_t>(layer.kv_heads) * kBlockTokens;
        const CacheType k_type = key_type(layer, config.k);
        const size_t k_offset = block,
                     v_offset = k_offset + head_cells * cache_row_bytes(k_type, layer.head_dim_k);
        layers_.push_back(
            {static_cast<size_t>(layer.group), k_offset, v_offset, layer.head_dim_v > 0, k_type});
        block = v_offset + head_cells * cache_row_bytes(v_, layer.head_dim_v);
    }
    if (config.pools) {
        pools_ = std::dynamic_pointer_cast<const PoolMemory>(config.pools);
        assert(pools_ && pools_->groups.size() == config.blocks.size());
        return;
    }
    auto pools = std::make_shared<PoolMemory>();
    for (size_t g = 0; g < config.blocks.size(); ++g) {
        size_t bytes = 0;
        if (__builtin_mul_overflow(block_bytes_[g], static_cast<size_t>(config.blocks[g]), &bytes))
            bytes = SIZE_MAX / 2;  // as impossible to allocate, but a valid size to print
        pools->groups.emplace_back(bytes, "the K/V cache; a smaller context (-c) needs less");
    }
    pools_ = std::move(pools);
}

KvPages CacheMemory::pages(const Attention &step, int32_t kv_head, const BlockId *table) const {
    const LayerPlace &place = layers_[static_cast<size_t>(step.cache)];
    const size_t head_cells = static_cast<size_t>(kv_head) * kBlockTokens, block = block_bytes_[place.group];
    std::byte *base = memory(place.group);
    return {.k = base + place.k_offset + head_cells * cache_row_bytes(place.k_type, step.head_dim_k),
            .v = place.has_v ? base + place.v_offset + head_cells * cache_row_bytes(v_, step.head_dim_v)
                             : nullptr,
            .k_stride = block,
            .v_stride = block,
            .table = table,
            .head_dim_k = step.head_dim_k,
            .head_dim_v = step.head_dim_v,
            .k_type = place.k_type,
            .v_type = v_,
            .first_block = first_[place.group]};
}

KvPages CacheMemory::pages(const Indexer &step, const BlockId *table) const {
    Attention keys{};
    keys.cache = step.cache;
    keys.head_dim_k = step.head_dim;
    return pages(keys, 0, table);
}

std::span<std::byte> CacheMemory::block(int32_t group, BlockId block) const {
    const size_t bytes = block_bytes_[static_cast<size_t>(group)];
    assert(holds(group, block));
    const auto index = static_cast<size_t>(block - first_[static_cast<size_t>(group)]);
    return {memory(static_cast<size_t>(group)) + index * bytes, bytes};
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
