// A tensor split (tensor_program.h) over the ranks of a communicator in different processes: one process leads, the others
// follow it. All have opened the same model file and built the same program; each loads its own part of it.
#pragma once

#include <memory>
#include <span>

#include "kernels/backend.h"
#include "kernels/communicator.h"

namespace runnel::kernels {

// Rank 0's Backend. Every call is repeated by the followers, until it is destroyed. load() throws if a follower has built
// another program, or cannot load its part. Candidates are selected by each rank (tensor_logits.h). info().kind tells layouts
// of blocks apart (block_pieces.h). shares: as of cut_program(), one per rank.
std::unique_ptr<Backend> make_leading_backend(std::unique_ptr<Backend> device, Communicator &communicator,
                                              std::span<const double> shares);

// What a rank above 0 does: loads its part of `program` when the leader loads, and does what the leader does, until the
// leader's Backend is destroyed. Throws BackendError; the leader then throws an error that names this rank.
void follow(Backend &device, Communicator &communicator, const Program &program,
            std::span<const double> shares);

}  // namespace runnel::kernels
