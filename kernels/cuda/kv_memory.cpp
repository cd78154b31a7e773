#include "kernels/cuda/kv_memory.h"

#include <algorithm>

namespace runnel::kernels::cuda {

size_t KvMemory::bytes(const Program &program, const CacheConfig &config) {
    size_t bytes = 0;
    for (size_t group = 0; group < config.blocks.size(); ++group)
        bytes += cache_block_bytes(program, static_cast<int32_t>(group), config.k, config.v) *
                 static_cast<size_t>(config.blocks[group]);
    return bytes;
}

KvMemory::KvMemory(const Program &program, const CacheConfig &config) : k_type_(config.k), v_type_(config.v) {
    for (const CacheLayer &layer : program.cache_layers) {
        const auto blocks = static_cast<size_t>(config.blocks[static_cast<size_t>(layer.group)]);
        const size_t rows = size_t{kBlockTokens} * static_cast<size_t>(layer.kv_heads);
        const size_t k = rows * cache_row_bytes(k_type_, layer.head_dim_k),
                     v = rows * cache_row_bytes(v_type_, layer.head_dim_v);
        layers_.push_back({layer.group, k, v, {}, {}});
        if (blocks * k > 0) layers_.back().k = DeviceMemory(blocks * k, "the K cache");
        if (blocks * v > 0) layers_.back().v = DeviceMemory(blocks * v, "the V cache");
    }
}

template <typename F>
void KvMemory::visit(int32_t group, BlockId block, F f) const {
    const auto at = static_cast<size_t>(block);
    for (const Layer &layer : layers_) {
        if (layer.group != group) continue;
        if (layer.k_bytes > 0) f(layer.k.data() + at * layer.k_bytes, layer.k_bytes);
        if (layer.v_bytes > 0) f(layer.v.data() + at * layer.v_bytes, layer.v_bytes);
    }
}

void KvMemory::copy(Stream &stream, int32_t group, std::span<const BlockCopy> copies) const {
    const auto copy_pages = [&](const DeviceMemory &pages, size_t bytes, BlockCopy blocks) {
        if (bytes > 0)
            stream.copy_on_device(pages.data() + static_cast<size_t>(blocks.to) * bytes,
                                  pages.data() + static_cast<size_t>(blocks.from) * bytes, bytes);
    };
    for (const Layer &layer : layers_) {
        if (layer.group != group) continue;
        for (const BlockCopy &blocks : copies) {
            copy_pages(layer.k, layer.k_bytes, blocks);
            copy_pages(layer.v, layer.v_bytes, blocks);
        }
    }
}

void KvMemory::read(Stream &stream, int32_t group, BlockId block, std::span<std::byte> bytes) const {
    visit(group, block, [&](std::byte *pages, size_t size) {
        stream.copy_to_host(bytes.data(), pages, size);
        bytes = bytes.subspan(size);
    });
    stream.wait();
}

void KvMemory::write(Stream &stream, int32_t group, BlockId block, std::span<const std::byte> bytes) const {
    visit(group, block, [&](std::byte *pages, size_t size) {
        stream.copy_to_device(pages, bytes.data(), size);
        bytes = bytes.subspan(size);
    });
    stream.wait();
}

}  // namespace runnel::kernels::cuda
