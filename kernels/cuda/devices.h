// Which CUDA devices this program can use here; the one header of kernels/cuda/ that every build has behind
// it: without nvcc devices_absent.cpp answers.
#pragma once

#include <string>
#include <vector>

#include "kernels/backend.h"

namespace runnel::kernels::cuda {

struct Devices {
    bool compiled_in = false;
    std::vector<DeviceInfo> found;  // index: the device's number
    std::string why_none;           // if found is empty: one line, e.g. "no NVIDIA driver was found"
};

// Never throws, never starts work on a device; costs some tenths of a second where there is one.
Devices find_devices() noexcept;

}  // namespace runnel::kernels::cuda
