#include "kernels/cpu/memory.h"

#include <sys/mman.h>

#include <string>
#include <utility>

namespace runnel::kernels::cpu {

LazyBuffer::LazyBuffer(size_t bytes, const char *what) : bytes_(bytes) {
    if (bytes == 0) return;
    void *memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        throw BackendError(BackendError::Kind::OutOfMemory, std::string("cannot reserve ") +
                                                                std::to_string((bytes + (1 << 20) - 1) >> 20) +
                                                                " MiB for " + what);
    data_ = static_cast<std::byte *>(memory);
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

CacheMemory::CacheMemory(const Program &program, const CacheConfig &config) {
    groups_.resize(config.blocks.size());
    for (const CacheLayer &layer : program.cache_layers) {
        Group &group = groups_[static_cast<size_t>(layer.group)];
        LayerPlace place;
        place.group = static_cast<size_t>(layer.group);
        place.offset = group.block;
        place.k_page = static_cast<size_t>(layer.head_dim_k) * kBlockTokens;
        place.v_page = static_cast<size_t>(layer.head_dim_v) * kBlockTokens;
        place.v_offset = place.k_page * static_cast<size_t>(layer.kv_heads);
        group.block += place.v_offset + place.v_page * static_cast<size_t>(layer.kv_heads);
        layers_.push_back(place);
    }
    for (size_t g = 0; g < groups_.size(); ++g)
        groups_[g].memory = LazyBuffer(groups_[g].block * sizeof(uint16_t) * static_cast<size_t>(config.blocks[g]),
                                       "the K/V cache; a smaller context (-c) needs less");
}

uint16_t *CacheMemory::k_page(int32_t layer, BlockId block, int32_t kv_head) const {
    const LayerPlace &place = layers_[static_cast<size_t>(layer)];
    return layer_pages(place, block) + static_cast<size_t>(kv_head) * place.k_page;
}

uint16_t *CacheMemory::v_page(int32_t layer, BlockId block, int32_t kv_head) const {
    const LayerPlace &place = layers_[static_cast<size_t>(layer)];
    return layer_pages(place, block) + place.v_offset + static_cast<size_t>(kv_head) * place.v_page;
}

}  // namespace runnel::kernels::cpu
