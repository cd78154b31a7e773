// A CUDA device as a Backend: weights uploaded and repacked once (weights.h), a Program turned into kernels
// once (plan.h), then batches. Everything that differs from batch to batch - tokens, positions, lengths,
// block tables - is read from device memory, so that the launches of a small batch are recorded as a graph at
// its first run and replayed from then on.
//
// Results depend on neither batch, chunks, paging nor grid (linear.h, attention.h), and are within rounding
// of the CPU's: activations have 12 bits here and 8 there (before weights in F16 and BF16 11 here, and all of
// float32 there).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace runnel::kernels::cuda {

// load() predicts the memory that is needed before it takes any, and throws BackendError{OutOfMemory} with
// the numbers; for programs with steps that there is no kernel for, or none that this device can run (wide
// heads need more shared memory than sm_75 has), BackendError{NoKernel}, before anything is uploaded.
// Precondition: `device` is below find_devices().found.size(). The backend is used by one thread, whose
// current device it sets.
std::unique_ptr<Backend> make_cuda_backend(int device);

// Why a CUDA device cannot run a step of the program, for each, or nothing.
std::vector<std::string> missing_kernels(const Program &program);

// What it takes of a device's memory. Throws BackendError{NoKernel} for a program with steps that there is no kernel for.
MemoryNeed memory_need(const Program &program, const CacheConfig &cache, int32_t max_tokens);
// Of that, what grows with the cache: its pages, block tables, partial results of attention. 0 for one
// without groups.
size_t cache_memory(const Program &program, const CacheConfig &cache, int32_t max_tokens);

}  // namespace runnel::kernels::cuda
