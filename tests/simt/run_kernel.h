// Runs one launch as the backend does, for tests of single kernels on the emulator and on a real device.
#pragma once

#include <type_traits>

#include "kernels/cuda/runtime/runtime.h"

namespace runnel::simt {

// Prepares the kernel and sets `shape.dependent` if it can be launched as a dependent.
template <class Params>
void run_kernel(kernels::cuda::Stream &stream, const kernels::cuda::Kernel<Params> &kernel,
                kernels::cuda::LaunchShape shape, const std::type_identity_t<Params> &params) {
    kernels::cuda::prepare(kernel.handle, shape.shared);
    shape.dependent = kernels::cuda::can_depend(kernel.handle);
    kernels::cuda::launch(stream, kernel, shape, params);
}

}  // namespace runnel::simt
