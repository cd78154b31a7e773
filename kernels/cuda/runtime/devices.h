// The CUDA devices that this program can use. Every build has this header, cuda_backend.h and probe.h;
// without nvcc devices_absent.cpp implements them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace runnel::kernels::cuda {

struct Devices {
    bool compiled_in = false;
    // Indexed by the device's number. memory_free is 0; use free_memory(). A device whose properties cannot
    // be read has the reason as its name, and no memory.
    std::vector<DeviceInfo> found;
    std::string why_none;                 // if found is empty: one line, e.g. "no NVIDIA driver was found"
    Absence absence = Absence::NoDevice;  // if found is empty
};

// Never throws, opens no device; the first call takes some tenths of a second if there is one.
Devices find_devices() noexcept;

// Free bytes right now. Opens the device for this process (some tenths of a second, some hundred MB of its
// memory) and makes it the current device of this thread. Throws BackendError if it cannot be used: it is
// broken, or another process has exclusive use of it.
size_t free_memory(int device);

}  // namespace runnel::kernels::cuda
