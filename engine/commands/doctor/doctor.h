// `runnel doctor` on any machine: tests put faulty devices in the place of the real ones.
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

// Throws UsageError for a GPU that is asked for by name where there are only others.
int doctor(const DoctorOptions &options, Io &io, const Machine &machine);

}  // namespace runnel::commands
