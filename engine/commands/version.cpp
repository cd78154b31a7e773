#include "engine/commands/commands.h"
#include "kernels/cpu/cpu_backend.h"

#ifndef RUNNEL_COMMIT
#error "RUNNEL_COMMIT is set by the Makefile"
#endif

namespace runnel::commands {

std::string version() {
    return std::string("runnel ") + RUNNEL_COMMIT +
           "\nCPU kernels in use: " + kernels::cpu::instruction_set() + "\ndevices compiled in: cpu\n";
}

}  // namespace runnel::commands
