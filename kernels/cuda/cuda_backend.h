// A CUDA device as a Backend: uploads and repacks the weights once (weights.h), turns a Program into kernels
// once (plan.h), then runs batches. Everything that changes between batches (tokens, positions, lengths,
// block tables) is read from device memory, so that the launches of a small batch are recorded as a graph at
// its first run and replayed from then on.
//
// Results do not depend on batch, chunks, paging or grid (linear.h, attention.h). They are within
// rounding of the CPU's: activations have 12 bits here and 8 there (for F16 and BF16 weights 11
// bits here and float32 there).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace runnel::kernels::cuda {

// load() computes its memory need before it allocates anything and throws BackendError{OutOfMemory}
// with the numbers. It throws BackendError{NoKernel}, before it uploads anything, for a program with
// steps that have no kernel, or none for this device (wide heads need more shared memory than sm_75
// has), and for a cache of type F32. Precondition: `device` is below find_devices().found.size(). The backend is used by one thread,
// whose current device it sets.
std::unique_ptr<Backend> make_cuda_backend(int device);

// One message for each step of the program that a CUDA device cannot run; empty if it can run all.
std::vector<std::string> missing_kernels(const Program &program);

// The program's need of device memory. Throws BackendError{NoKernel} for a program with steps that have no kernel, and
// for a cache of type F32.
MemoryNeed memory_need(const Program &program, const CacheConfig &cache, int32_t max_tokens);
// The part of memory_need() that grows with the cache: pages, block tables, partial results of attention, states. 0
// for a cache without groups and states.
size_t cache_memory(const Program &program, const CacheConfig &cache, int32_t max_tokens);
// What gathers by NCCL take besides, for a rank's program of a tensor split; 0 if there is no NCCL to use. NCCL's own part
// of it is an estimate.
size_t gather_memory(const Program &program, int32_t max_tokens);

}  // namespace runnel::kernels::cuda
