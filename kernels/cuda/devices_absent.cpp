// Builds without nvcc.
#include "kernels/cuda/devices.h"

namespace runnel::kernels::cuda {

Devices find_devices() noexcept {
    return {false, {}, "this runnel was built without CUDA"};
}

}  // namespace runnel::kernels::cuda
