// The size of a cache, independent of the device that holds it.
#include "kernels/device.h"

namespace runnel::kernels {

size_t block_bytes(const Program &program, const CacheConfig &cache) {
    size_t bytes = state_bytes(program) * static_cast<size_t>(cache.states);
    for (size_t group = 0; group < cache.blocks.size(); ++group)
        bytes += cache_block_bytes(program, static_cast<int32_t>(group), cache.k, cache.v) *
                 static_cast<size_t>(cache.blocks[group]);
    return bytes;
}

}  // namespace runnel::kernels
