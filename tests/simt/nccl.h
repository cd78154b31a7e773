// NCCL for the devices of the emulator: the functions that kernels/cuda/nccl/ uses, with checks.
//
// A group of calls is one step of each stream in it: it starts in the stream's turn and ends when the other sides of all
// its messages have started and all bytes have arrived, as a kernel of NCCL does. So work that reads before, writes too
// early, or is on another stream gives other bits, and ranks that do not call the same sequence wait for ever (a Violation
// after 20 s). What NCCL must not be given is returned as an error and kept in Nccl::misuse.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace runnel::simt {

struct Nccl {
    bool installed = false;
    int version = 22809;
    std::string missing;    // this function is not in the library
    int init_error = 0;     // of ncclCommInitAll
    bool damage = false;    // one byte of each message changes
    int failing_rank = -1;  // this rank's operations stop ...
    int64_t failing_group =
        0;  // ... from this one of its groups on, the first being 1, with an asynchronous error

    // What happened. Under device_lock().
    std::vector<std::string> misuse;
    int64_t groups = 0, messages = 0, floats = 0;  // groups: of all ranks; messages: sends
    int64_t most_pending = 0;                      // groups of a rank that were enqueued and had not ended
    int communicators = 0;                         // alive
    int aborted = 0, destroyed = 0;                // communicators
};
Nccl &nccl();

// While it exists, NCCL is installed.
class WithNccl {
  public:
    WithNccl() { nccl() = {}, nccl().installed = true; }
    ~WithNccl() { nccl() = {}; }
    WithNccl(const WithNccl &) = delete;
    WithNccl &operator=(const WithNccl &) = delete;
};

}  // namespace runnel::simt
