// Jobs of Open MPI on this machine, over shared memory or the loopback.
#pragma once

#include <string>
#include <string_view>

namespace runnel::testing {

struct Job {
    int code = -1;  // exit status of mpirun; 124: it was ended after 60 s, with its ranks
    double seconds = 0;
    // mpirun ignored that end, as Open MPI 4.1's sometimes does when its ranks have ended.
    bool locked_up = false;
    std::string out, err;  // of all ranks, in any order, and of mpirun
};

// Whether this machine has Open MPI; if not, the test case is recorded as skipped.
bool has_mpi();

// Runs the command with so many ranks, which may be more than there are processors. Precondition: has_mpi().
Job mpirun(int ranks, const std::string &command, std::string_view transport = "self,vader");

}  // namespace runnel::testing
