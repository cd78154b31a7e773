// Which CUDA devices this program can use here; the one header of kernels/cuda/ that every build has behind
// it: without nvcc devices_absent.cpp answers.
#pragma once

#include <string>
#include <vector>

#include "kernels/backend.h"

namespace runnel::kernels::cuda {

struct Devices {
    // Why there is none: NoDriver and NoDevice are how machines without a GPU look, the driver is at fault
    // where it is TooOld for this program or Failed.
    enum class Absence { NotCompiledIn, NoDriver, DriverTooOld, DriverFailed, NoDevice };
    bool compiled_in = false;
    std::vector<DeviceInfo> found;        // index: the device's number
    std::string why_none;                 // if found is empty: one line, e.g. "no NVIDIA driver was found"
    Absence absence = Absence::NoDevice;  // if found is empty
};

// Never throws, never starts work on a device; costs some tenths of a second where there is one.
Devices find_devices() noexcept;

}  // namespace runnel::kernels::cuda
