// One launch as the backend makes it: for the tests of single kernels, here and on a real device.
#pragma once

#include <type_traits>

#include "kernels/cuda/runtime/runtime.h"

namespace runnel::simt {

// Prepared, and a dependent launch where there can be one: `shape.dependent` is set here.
template <class Params>
void run_kernel(kernels::cuda::Stream &stream, const kernels::cuda::Kernel<Params> &kernel,
                kernels::cuda::LaunchShape shape, const std::type_identity_t<Params> &params) {
    kernels::cuda::prepare(kernel.handle, shape.shared);
    shape.dependent = kernels::cuda::can_depend(kernel.handle);
    kernels::cuda::launch(stream, kernel, shape, params);
}

}  // namespace runnel::simt
