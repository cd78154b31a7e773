// The processes that mpirun or srun has started together. They run one model with --split tensor; everything else treats
// them as processes that know nothing of each other.
#pragma once

#include <chrono>
#include <functional>

#include "kernels/communicator.h"

namespace runnel::kernels {

// Called by the first process when it has waited for another one for 30 s, and each time the wait has doubled.
using OnSilence = std::function<void(int process, std::chrono::seconds waited)>;

// How many processes were started together with this one, by the variables of Open MPI and PMI; 1: none. Does not start
// the communication.
int started_together();
// The number of this process among them, from 0 on; -1 if it is alone.
int number_among_them();

// The communicator of these processes. The first call starts the communication, which keeps `on_silence`, and waits for the
// other processes; main() calls leave_process_group() at the end. Throws BackendError{Failed} if that fails, or if this
// program was built without MPI (make MPI=1).
Communicator &process_group(const OnSilence &on_silence = {});
void leave_process_group() noexcept;

// Thrown by a process above rank 0 when it has nothing more to do: the leader has ended, or the ranks have failed, which the
// leader reports.
struct LeaderEnded {
    bool failed = false;
};

}  // namespace runnel::kernels
