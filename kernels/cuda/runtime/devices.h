// Which CUDA devices this program can use here. Every build has this header, cuda_backend.h and probe.h behind
// it: without nvcc devices_absent.cpp answers.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace runnel::kernels::cuda {

struct Devices {
    bool compiled_in = false;
    // Index: the device's number. memory_free is 0, as free_memory() tells it; one that does not even tell
    // its properties has the reason for a name and no memory.
    std::vector<DeviceInfo> found;
    std::string why_none;                 // if found is empty: one line, e.g. "no NVIDIA driver was found"
    Absence absence = Absence::NoDevice;  // if found is empty
};

// Never throws, opens no device; the first call costs some tenths of a second where there is one.
Devices find_devices() noexcept;

// Bytes, now. Opens the device for this process (some tenths of a second, some hundred MB of its memory) and
// makes it the one that this thread's calls use. Throws BackendError if it cannot be used: it is broken, or
// another process has it for itself.
size_t free_memory(int device);

}  // namespace runnel::kernels::cuda
