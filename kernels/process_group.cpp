#include "kernels/process_group.h"

#include <climits>
#include <cstdlib>
#include <initializer_list>

namespace runnel::kernels {

namespace {

// The first of these variables that is a number of at least `least`, or `otherwise`.
int number_of(std::initializer_list<const char *> variables, long least, int otherwise) {
    for (const char *name : variables)
        if (const char *value = std::getenv(name)) {
            char *end;
            const long number = std::strtol(value, &end, 10);
            if (end != value && number >= least && number <= INT_MAX) return static_cast<int>(number);
        }
    return otherwise;
}

}  // namespace

int started_together() {
    return number_of({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}, 2, 1);
}

int number_among_them() {
    return started_together() > 1 ? number_of({"OMPI_COMM_WORLD_RANK", "PMI_RANK"}, 0, -1) : -1;
}

// Weak: the program with MPI links those of kernels/mpi/ instead.
[[gnu::weak]] Communicator &process_group(const OnSilence &) {
    throw BackendError(
        BackendError::Kind::Failed,
        "several processes need a runnel with MPI: build it with make MPI=1, and start runnel-mpi");
}
[[gnu::weak]] void leave_process_group() noexcept {}

}  // namespace runnel::kernels
