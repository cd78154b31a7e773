// What a program will take of a device's memory, before anything is taken.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/plan.h"

namespace runnel::kernels::cuda {

// Rows of floats (slots, and what runners keep) begin at multiples of 256 bytes.
constexpr int64_t stride_of(int64_t width) {
    return (width + 63) / 64 * 64;
}
size_t slot_bytes(const Program &program, int32_t max_tokens);
// The turns of all rotations (RopeParams).
size_t rope_bytes(const Program &program);

// Part of MemoryNeed::work that load() leaves to the driver: kernels, graphs, fragmentation.
inline constexpr size_t kDriverReserve = size_t{64} << 20;

MemoryNeed memory_need(const Program &program, const Plan &plan, const CacheConfig &cache,
                       int32_t max_tokens);

}  // namespace runnel::kernels::cuda
