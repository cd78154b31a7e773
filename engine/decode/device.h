// Which device runs a model: --device and --gpu-layers against what this machine offers.
#pragma once

#include <string>
#include <vector>

#include "engine/decode/placement.h"
#include "kernels/device.h"

namespace runnel::decode {

struct DeviceRequest {
    std::string device = "cpu";  // "auto", "cpu", "cuda", "cuda:N"
    PlacementRequest placement = {};
};

struct DeviceChoice {
    std::vector<kernels::DevicePtr> gpus = {};  // none: the CPU
    bool required = false;                      // their failure is an error, not a reason to use the CPU
    std::string note = {};                      // what the user should know, or empty
};

// "auto" takes the GPU with the most free memory (to a tenth: of idle ones of a size the first, so that the
// others need not be opened), if there is one, and the CPU when no layer is wanted on a GPU. A GPU that cannot
// tell its free memory is passed over for others. Throws kernels::BackendError for a GPU that is asked for by
// name and is not there.
DeviceChoice choose_device(const DeviceRequest &request, const kernels::Devices &found);

// "auto", or a name that kernels/device.h knows.
bool is_device_name(const std::string &name);

}  // namespace runnel::decode
