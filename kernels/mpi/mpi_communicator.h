// The communicator of the processes that mpirun or srun has started (make MPI=1; Open MPI 4 or newer).
//
// Each operation is one message from every rank to every other rank, which carries the rank's call and its bytes: one
// latency, whatever the operation. Waiting polls, and gives the processor away between looks, so that ranks may share
// cores. A rank that fails tells the others, which then throw the same error; if two ranks fail at the same moment, each
// rank reports one of the two. A process that is killed takes the job with it: mpirun names the rank.
#pragma once

#include <chrono>
#include <memory>

#include "kernels/communicator.h"
#include "kernels/process_group.h"

namespace runnel::kernels {

// MPI from the first communicator to the end of the process. At most one at a time; it must outlive the communicators, and
// all use it from the thread that made it. Throws BackendError{Failed} if MPI cannot be started.
class MpiSession {
  public:
    MpiSession();
    MpiSession(const MpiSession &) = delete;
    MpiSession &operator=(const MpiSession &) = delete;
    // Waits for the other ranks. After a failure it waits 3 s, then ends the job, because a rank that is stuck would
    // keep the others waiting.
    ~MpiSession();

    // A communicator of all ranks of the job. Collective: every rank calls it equally often. Rank 0 calls on_silence when it
    // has waited for another rank as long as `patience`, and each time the wait has doubled.
    std::unique_ptr<Communicator> communicator(std::chrono::milliseconds deadline,
                                               const OnSilence &on_silence = {},
                                               std::chrono::seconds patience = {});

  private:
    bool failed_ = false;
};

}  // namespace runnel::kernels
