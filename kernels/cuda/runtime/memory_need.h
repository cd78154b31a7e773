// The device memory that a program needs, computed before anything is allocated.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/plan.h"

namespace runnel::kernels::cuda {

constexpr int64_t divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
// Rows of floats (slots and the runners' memory) start at multiples of 256 bytes.
constexpr int64_t stride_of(int64_t width) {
    return divide_up(width, 64) * 64;
}
static_assert(stride_of(Experts::kHiddenUnit) == Experts::kHiddenUnit);
size_t slot_bytes(const Program &program, int32_t max_tokens);
// Bytes of RopeParams::turns of all rotations.
size_t rope_bytes(const Program &program);

// The part of MemoryNeed::work for the driver: kernels, graphs, fragmentation.
inline constexpr size_t kDriverReserve = size_t{64} << 20;

MemoryNeed memory_need(const Program &program, const Plan &plan, const CacheConfig &cache,
                       int32_t max_tokens);

// Throws BackendError{OutOfMemory} with the numbers if the need does not fit in `free` bytes of device memory, or in the host
// memory that is available.
void expect_memory(const MemoryNeed &need, size_t free);

}  // namespace runnel::kernels::cuda
