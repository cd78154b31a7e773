#include "kernels/process_group.h"

#include <cstdlib>

namespace runnel::kernels {

int started_together() {
    for (const char *name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
        if (const char *value = std::getenv(name))
            if (const long size = std::strtol(value, nullptr, 10); size > 1) return static_cast<int>(size);
    return 1;
}

// Weak: the program with MPI links those of kernels/mpi/ instead.
[[gnu::weak]] Communicator &process_group() {
    throw BackendError(
        BackendError::Kind::Failed,
        "several processes need a runnel with MPI: build it with make MPI=1, and start runnel-mpi");
}
[[gnu::weak]] void leave_process_group() noexcept {}

}  // namespace runnel::kernels
