// Messages between the device memories of the ranks of a program, in the order of the backend's stream: by NCCL if the ranks
// have joined (gathers.h), else through pinned host memory and the communicator of Backend::connect().
#pragma once

#include <span>
#include <vector>

#include "kernels/communicator.h"
#include "kernels/cuda/nccl/gathers.h"
#include "kernels/cuda/runtime/runtime.h"

namespace runnel::kernels::cuda {

class Messages {
  public:
    // Both outlive it.
    Messages(NcclGathers &gathers, Stream &stream) : gathers_(gathers), stream_(stream) {}

    // `ranks` outlives the next exchange().
    void connect(Communicator &ranks) { ranks_ = &ranks; }

    using Message = NcclGathers::Message;
    // Called by all ranks. Messages between two ranks are matched in order; their sizes, multiples of 4 bytes, agree.
    // Without NCCL the host waits for the stream. Throws BackendError.
    void exchange(std::span<const Message> sends, std::span<const Message> receives);

  private:
    NcclGathers &gathers_;
    Stream &stream_;
    Communicator *ranks_ = nullptr;
    PinnedMemory sent_, received_;  // only grow
};

}  // namespace runnel::kernels::cuda
