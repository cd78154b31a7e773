// A CUDA device as a Backend: weights uploaded and repacked once (weights.h), a Program turned into kernels
// once (plan.h), then batches. Everything that differs from batch to batch - tokens, positions, lengths,
// block tables - is read from device memory, so that the launches of a small batch are recorded as a graph at
// its first run and replayed from then on.
//
// Results depend on neither batch, chunks, paging nor grid (linear.h, attention.h), and are within rounding
// of the CPU's: activations have 15 bits here and 8 there.
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace runnel::kernels::cuda {

// load() predicts the memory that is needed before it takes any, and throws BackendError{OutOfMemory} with
// the numbers; for programs with steps that there is no kernel for, BackendError{Failed}. Precondition:
// `device` is below find_devices().found.size(). The backend is used by one thread, whose current device it
// sets.
std::unique_ptr<Backend> make_cuda_backend(int device);

}  // namespace runnel::kernels::cuda
