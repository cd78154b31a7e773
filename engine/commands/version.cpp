#include "engine/commands/commands.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/runtime/devices.h"

#ifndef RUNNEL_COMMIT
#error "RUNNEL_COMMIT is set by the Makefile"
#endif

namespace runnel::commands {

std::string version() {
    const kernels::cuda::Devices cuda = kernels::cuda::find_devices();
    std::string text = std::string("runnel ") + RUNNEL_COMMIT +
                       "\nCPU kernels in use: " + kernels::cpu::instruction_set() +
                       "\ndevices compiled in: cpu" + (cuda.compiled_in ? ", cuda" : "") + "\n";
    if (cuda.compiled_in && cuda.found.empty()) text += "CUDA devices: none (" + cuda.why_none + ")\n";
    return text;
}

}  // namespace runnel::commands
