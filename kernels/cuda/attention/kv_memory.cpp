#include "kernels/cuda/attention/kv_memory.h"

#include <cassert>
#include <utility>

namespace runnel::kernels::cuda {
namespace {

constexpr size_t kAlignment = 256;

}  // namespace

size_t KvMemory::bytes(const Program &program, const CacheConfig &config) {
    return config.pools ? 0 : KvMemory::layout(program, config).bytes;
}

KvMemory::Layout KvMemory::layout(const Program &program, const CacheConfig &config) {
    Layout all;
    for (const CacheLayer &layer : program.cache_layers) {
        const auto blocks = static_cast<size_t>(config.blocks[static_cast<size_t>(layer.group)]);
        const auto place = [&](CacheType type, int32_t dim) {
            const Pages pages{all.bytes, size_t{kBlockTokens} * static_cast<size_t>(layer.kv_heads) *
                                             cache_row_bytes(type, dim)};
            all.bytes += (blocks * pages.bytes + kAlignment - 1) / kAlignment * kAlignment;
            return pages;
        };
        const Pages k = place(key_type(layer, config.k), layer.head_dim_k),
                    v = place(config.v, layer.head_dim_v);
        all.layers.push_back({layer.group, k, v});
    }
    return all;
}

KvMemory::KvMemory(const Program &program, const CacheConfig &config) : k_type_(config.k), v_type_(config.v) {
    Layout all = layout(program, config);
    layers_ = std::move(all.layers);
    for (size_t group = 0; group < config.blocks.size(); ++group) {
        const BlockId first = config.first.empty() ? 0 : config.first[group];
        groups_.push_back({first, first + config.blocks[group]});
    }
    if (config.pools) {
        pools_ = std::dynamic_pointer_cast<const DevicePools>(config.pools);
        assert(pools_ && pools_->memory.size() == all.bytes);
        return;
    }
    if (all.bytes == 0) return;
    auto pools = std::make_shared<DevicePools>();
    pools->memory = DeviceMemory(all.bytes, "the cache");
    pools_ = std::move(pools);
    for (const Layer &layer : layers_) {
        const auto blocks = static_cast<size_t>(config.blocks[static_cast<size_t>(layer.group)]);
        for (const auto &[pages, name] : {std::pair(layer.k, "the K cache"), {layer.v, "the V cache"}})
            if (blocks * pages.bytes > 0)
                name_region(memory() + pages.at, blocks * pages.bytes, name, Region::Data);
    }
}

template <typename F>
void KvMemory::visit(int32_t group, BlockId block, F f) const {
    for (const Layer &layer : layers_) {
        if (layer.group != group) continue;
        for (const Pages &pages : {layer.k, layer.v})
            if (pages.bytes > 0) f(memory() + pages.at + offset(group, block, pages), pages.bytes);
    }
}

void KvMemory::clear(Stream &stream) const {
    if (pools_) stream.fill(memory(), 0, pools_->memory.size());
}

void KvMemory::copy(Stream &stream, int32_t group, std::span<const BlockCopy> copies) const {
    const auto copy_pages = [&](const Pages &pages, BlockCopy blocks) {
        std::byte *const first = memory() + pages.at;
        if (pages.bytes > 0)
            stream.copy_on_device(first + offset(group, blocks.to, pages),
                                  first + offset(group, blocks.from, pages), pages.bytes);
    };
    for (const Layer &layer : layers_) {
        if (layer.group != group) continue;
        for (const BlockCopy &blocks : copies) {
            if (blocks.to < first_block(group) || blocks.to >= end_block(group)) continue;
            copy_pages(layer.k, blocks);
            copy_pages(layer.v, blocks);
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
