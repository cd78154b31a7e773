// Work that several blocks of a launch complete together: the one that happens to be the last goes on with it, and none waits for
// another.
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/device.h"

namespace runnel::kernels::cuda {

// Called by one thread for each of `arrivals` parts of the work, after the block's writes of that part (and a block_sync() behind
// those of its other threads). True for the last part: the thread then sees the writes of all of them, and after the next
// block_sync() its block does. The counter is zero before and after.
DEVICE bool is_last_to_arrive(uint32_t *counter, int32_t arrivals) {
    const auto others = static_cast<uint32_t>(arrivals - 1);
    fence_gpu();
    const bool last = atomic_inc_wrap_u32(counter, others) == others;
    if (last) fence_gpu();
    return last;
}

}  // namespace runnel::kernels::cuda
