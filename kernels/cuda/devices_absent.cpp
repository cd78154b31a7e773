// Builds without nvcc.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/devices.h"

namespace runnel::kernels::cuda {

Devices find_devices() noexcept {
    return {false, {}, "this runnel was built without CUDA"};
}

std::unique_ptr<Backend> make_cuda_backend(int) {
    throw BackendError(BackendError::Kind::Failed, find_devices().why_none);
}

}  // namespace runnel::kernels::cuda
