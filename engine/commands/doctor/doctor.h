// `runnel doctor` with an injectable machine, so that tests can use faulty devices.
#pragma once

#include <functional>
#include <memory>

#include "engine/commands/commands.h"
#include "kernels/device.h"

namespace runnel::commands {

struct Machine {
    std::function<kernels::Devices(int threads)> find = kernels::devices;
    std::function<std::unique_ptr<kernels::Backend>(const kernels::Device &device)> backend =
        [](const kernels::Device &device) { return device.backend(); };
};

// Throws UsageError if the user names a GPU that does not exist while others do.
int doctor(const DoctorOptions &options, Io &io, const Machine &machine);

}  // namespace runnel::commands
