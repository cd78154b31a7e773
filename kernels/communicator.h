// Moves bytes between the ranks that compute one program together: one rank per device, in one process or in several.
//
// Every operation is collective: all ranks call the same operations in the same order, with sizes that agree. A
// communicator does no arithmetic, in particular no reduction: the sums of a library depend on its version and on the
// topology, so activations are gathered and the kernels add them in a fixed order.
//
// If a rank fails, every rank fails: the operations in progress and all later ones throw BackendError{Failed} with one
// message, which names the rank that is the cause. It is the same message on every rank.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace runnel::kernels {

// The end of one rank: 0 <= rank() < size(). One thread uses it, except for abort(). Buffers are host memory; when an
// operation returns or throws, no other rank reads or writes them any more. Destroying a communicator while another rank
// still needs it for an operation fails that operation.
class Communicator {
  public:
    struct Send {
        int to;
        std::span<const std::byte> bytes;
    };
    struct Receive {
        int from;
        std::span<std::byte> bytes;
    };

    Communicator() = default;
    Communicator(const Communicator &) = delete;
    Communicator &operator=(const Communicator &) = delete;
    virtual ~Communicator() = default;

    virtual int rank() const = 0;
    virtual int size() const = 0;

    // Joins one piece of each rank, in the order of the ranks, into `all`. sizes[r]: bytes of rank r's piece, which may be
    // 0; the same on every rank. `mine` holds sizes[rank()] bytes; it may be its own place in `all`, but must not overlap
    // the rest of `all`.
    virtual void all_gather(std::span<const std::byte> mine, std::span<const size_t> sizes,
                            std::span<std::byte> all) = 0;

    // Sends and receives messages: a step of a ring, an all-to-all, a scatter. A rank without messages calls it too. The
    // messages from one rank to another are matched in order, and their sizes must agree. A rank may send to itself.
    // Received bytes must not overlap sent ones.
    virtual void exchange(std::span<const Send> sends, std::span<const Receive> receives) = 0;

    // Copies the bytes of rank `root` to all other ranks.
    virtual void broadcast(std::span<std::byte> bytes, int root) = 0;

    // Returns when all ranks have called it.
    virtual void barrier() = 0;

    // Fails all ranks with the message "rank R: WHY", where R is this rank. From any thread. Does nothing if they have
    // failed before.
    virtual void abort(const std::string &why) noexcept = 0;
};

// The ranks 0 to size - 1 of one process, for a thread each. size >= 1. A rank that waits for longer than `deadline` in one
// operation fails all, and the message names a rank that is missing. The communicators may be destroyed in any order.
// Memory: twice the largest operation's bytes sent by each rank.
std::vector<std::unique_ptr<Communicator>> make_local_communicators(int size,
                                                                    std::chrono::milliseconds deadline);

}  // namespace runnel::kernels
