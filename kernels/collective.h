// What communicators of every transport share: the call that a rank makes, the check that all ranks make the same one, and
// the operations of communicator.h on top of them. A transport only brings the calls of all ranks to each rank.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "kernels/communicator.h"

namespace runnel::kernels {

// What a rank does in one operation.
struct Call {
    enum class Kind { AllGather, Exchange, Broadcast, Barrier };
    // A message of Exchange: its size, and the rank that gets or sends it.
    struct Message {
        int rank;
        size_t bytes;
    };
    Kind kind = Kind::Barrier;
    int root = 0;                          // of Broadcast
    std::vector<size_t> sizes;             // of AllGather: by rank; of Broadcast: one
    std::vector<Message> sends, receives;  // of Exchange: these may differ between the ranks
    // The bytes that this rank sends, in their order: to all ranks, and to one rank each (Exchange). As seen by another
    // rank, to_rank holds only what is for that rank.
    std::vector<std::byte> to_all;
    std::vector<std::vector<std::byte>> to_rank;

    // Makes it a Barrier among `size` ranks; keeps the memory.
    void reset(int size);
};

// Empty if the calls, one per rank, agree; otherwise what differs. The rank that is named first does not do what most do.
std::string disagreement(std::span<const Call *const> calls);

// "rank 2"
std::string rank_name(int rank);

// A communicator whose operations are one meeting of all ranks each.
class MeetingCommunicator : public Communicator {
  public:
    void all_gather(std::span<const std::byte> mine, std::span<const size_t> sizes,
                    std::span<std::byte> all) final;
    void exchange(std::span<const Send> sends, std::span<const Receive> receives) final;
    void broadcast(std::span<std::byte> bytes, int root) final;
    void barrier() final;

  protected:
    // The call of this rank's next operation, reset(), to be filled in before meet(). Throws if the ranks have failed.
    virtual Call &next_call() = 0;
    // Waits until all ranks have made this operation's call. Returns the calls by rank, which agree and stay as they are
    // until next_call() of this rank. Throws BackendError{Failed}.
    virtual std::vector<const Call *> meet() = 0;

  private:
    void check_rank(const char *operation, int rank);
    // Fails all ranks because of a wrong argument of this one.
    [[noreturn]] void refuse(const std::string &why);
};

}  // namespace runnel::kernels
