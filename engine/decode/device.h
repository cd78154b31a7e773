// Chooses the device that runs a model, from --device, --gpu-layers and the devices of this machine.
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
    bool required = false;                      // if they fail, report an error instead of using the CPU
    std::string note = {};                      // what the user should know, or empty
};

// "auto" takes the GPU with the most free memory, or the CPU if there is none or no layer is to run on a GPU.
// GPUs are opened from the largest on, until one has 90% of the next one's total memory free. A GPU that
// cannot report its free memory is skipped if there is another. Throws kernels::BackendError if a GPU is
// requested by name and does not exist.
DeviceChoice choose_device(const DeviceRequest &request, const kernels::Devices &found);

// True for "auto" and for the names in kernels/device.h.
bool is_device_name(const std::string &name);

}  // namespace runnel::decode
