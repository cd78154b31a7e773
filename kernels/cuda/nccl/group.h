// The NCCL communicators of several GPUs of this process, one rank each.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/nccl/library.h"
#include "kernels/cuda/runtime/runtime.h"

namespace runnel::kernels::cuda::nccl {

// Functions with a rank are for that rank's thread; others for one thread, while no rank works.
class Group {
  public:
    // Rank r uses the device devices[r]; these are different. Takes seconds and some hundred MB of each device. Throws
    // BackendError{Failed} with one sentence.
    Group(Library library, std::span<const int> devices);
    Group(const Group &) = delete;
    Group &operator=(const Group &) = delete;
    ~Group();

    size_t size() const { return communicators_.size(); }
    const std::string &name() const { return library_.name; }

    // Floats in the device memory of a rank, to or from another rank; count > 0.
    struct Message {
        size_t rank;
        float *data;
        size_t count;
    };
    struct Exchange {
        size_t rank;  // whose stream it is
        std::vector<Message> sends, receives;
        void *stream;  // Stream::native()
    };
    // Enqueues the messages on the streams, as one operation: one rank's, or, from one thread, those of all ranks.
    // Messages between two ranks are matched in order. Throws BackendError{Failed}.
    void exchange(std::span<const Exchange> exchanges);

    // Waits until the event has happened. Throws BackendError{Failed} if an operation of the rank has failed or another
    // rank has called abort(), which it notices within some milliseconds.
    void wait(size_t rank, const Event &event);

    // Ends the rank's operations in progress; wait() throws on all ranks from now on. Idempotent.
    void abort(size_t rank) noexcept;
    bool aborted() const { return aborted_; }

  private:
    void check(Result result, const char *what, Communicator *communicator) const;

    const Library library_;
    std::vector<Communicator *> communicators_;  // by rank; null: ended
    std::atomic<bool> aborted_ = false;
};

}  // namespace runnel::kernels::cuda::nccl
