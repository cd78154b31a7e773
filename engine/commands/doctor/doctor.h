// `runnel doctor` on any machine: tests put faulty devices in the place of the real ones.
#pragma once

#include <functional>
#include <memory>

#include "engine/commands/commands.h"
#include "kernels/backend.h"
#include "kernels/cuda/runtime/devices.h"

namespace runnel::commands {

struct Machine {
    std::function<kernels::cuda::Devices()> find_gpus;
    std::function<std::unique_ptr<kernels::Backend>(int number)> make_gpu;
    std::function<std::unique_ptr<kernels::Backend>(int threads)> make_cpu;
};

// This one.
Machine this_machine();

// Throws UsageError for a GPU that is asked for by name where there are only others.
int doctor(const DoctorOptions &options, Io &io, const Machine &machine);

}  // namespace runnel::commands
