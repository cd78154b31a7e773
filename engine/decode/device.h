// Which device runs a model: --device and --gpu-layers against what this machine offers.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "engine/decode/placement.h"
#include "kernels/cuda/runtime/devices.h"

namespace runnel::decode {

struct DeviceRequest {
    std::string device = "cpu";  // "auto", "cpu", "cuda", "cuda:N"
    PlacementRequest placement = {};
};

struct DeviceChoice {
    std::optional<int> cuda;  // the number of the GPU; none: the CPU
    bool required = false;    // its failure is an error, not a reason to use the CPU
    std::string note;         // what the user should know, or empty
};

// "auto" takes the GPU with the most free memory (to a tenth: of idle ones of a size the first, so that the
// others need not be opened), if there is one, and the CPU when no layer is wanted on a GPU. A GPU whose
// memory `free_memory` cannot tell is passed over for others. Throws kernels::BackendError for a GPU that is
// asked for by name and is not there.
DeviceChoice choose_device(const DeviceRequest &request, const kernels::cuda::Devices &found,
                           const std::function<size_t(int)> &free_memory = kernels::cuda::free_memory);

// "auto", "cpu", "cuda" or "cuda:N" with a number.
bool is_device_name(const std::string &name);

}  // namespace runnel::decode
