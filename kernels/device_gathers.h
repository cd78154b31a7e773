// Gathers of a tensor split (tensor_rank.h) from the memory of one device to that of the others, in place of
// Backend::exchange() and copies through host memory. A gather only copies, so the bits are the same either way.
//
// A backend that can take part has one DeviceGathers. join() connects those of all ranks. Until leave(),
//   - execute() of a part without logits enqueues its work and returns, and copies no slot to or from host memory;
//   - gather(), copy_in() and copy_out() enqueue work behind it, in the same order on every rank.
// The thread that calls execute() calls these functions, except join() and leave(): those are for one thread, while no
// rank works.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kernels/tensor_program.h"

namespace runnel::kernels {

class DeviceGathers {
  public:
    DeviceGathers() = default;
    DeviceGathers(const DeviceGathers &) = delete;
    DeviceGathers &operator=(const DeviceGathers &) = delete;
    virtual ~DeviceGathers() = default;

    // Connects these devices, which have loaded the programs of the ranks in this order; called for the first of them.
    // Returns what moves the bytes: "NCCL 2.28.9". Throws BackendError if that does not work, with the reason; no device
    // is connected then.
    virtual std::string join(std::span<DeviceGathers *const> ranks) = 0;
    // Ends the connection; does nothing without one.
    virtual void leave() noexcept = 0;

    // Enqueues this rank's part of a gather of `tokens` rows. receivers: by rank, whether it gets the slot; equal on all
    // ranks.
    virtual void gather(const Gather &gather, int32_t tokens, std::span<const char> receivers) = 0;
    // Enqueues a copy of a slot from the memory of Backend::exchange() to the device, or back.
    virtual void copy_in(Slot slot, int32_t tokens) = 0;
    virtual void copy_out(Slot slot, int32_t tokens) = 0;

    // Waits until the device has done everything that was enqueued before the previous call since join(). Called every
    // few stages, it keeps the device busy and the queue short.
    virtual void wait_for_earlier() = 0;
    // Waits until the device has done everything. Both throw BackendError when a gather fails or another rank called
    // abort().
    virtual void wait() = 0;

    // Ends the gathers in progress: the waits of all ranks throw, and only leave() and join() may follow. By the rank's own
    // thread; every rank calls it after an error.
    virtual void abort() noexcept = 0;
    // Whether a rank has called abort().
    virtual bool aborted() const = 0;
};

}  // namespace runnel::kernels
