#include "engine/commands/version.h"

#include "engine/commands/commands.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/device.h"

#ifndef RUNNEL_COMMIT
#error "RUNNEL_COMMIT is set by the Makefile"
#endif

namespace runnel::commands {

std::string build_commit() {
    return RUNNEL_COMMIT;
}

std::string version() {
    const kernels::Devices found = kernels::devices();
    std::string text =
        std::string("runnel ") + RUNNEL_COMMIT + "\nCPU kernels in use: " + kernels::cpu::instruction_set() +
        "\ndevices compiled in: cpu" + (found.gpus_compiled_in ? ", " + found.gpu_kind : "") + "\n";
    if (found.gpus_compiled_in && found.gpus.empty()) text += "GPUs: none (" + found.why_no_gpu + ")\n";
    return text;
}

}  // namespace runnel::commands
