// Several devices as one Backend that cuts every matrix by rows, or, of GPUs, some by columns (tensor_program.h). Each device
// computes its part of a layer at the same time as the others, and keeps its K/V heads. The logits have the bits of one device of the same kind.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/communicator.h"
#include "kernels/tensor_program.h"

namespace runnel::kernels {

// Makes the communicators of a group of ranks.
using MakeCommunicators = std::function<std::vector<std::unique_ptr<Communicator>>(int size)>;

// Threads of this process.
std::vector<std::unique_ptr<Communicator>> communicate_in_process(int size);

// Each device is used by a thread of its own, all of them at the same time; the first by the caller's. shares: of the work, by
// device; not negative, some of them positive. `names`: of the devices, as they begin the errors of each ("cuda:1: ...");
// empty: errors name no device. After an error in execute(), the next batch gets new communicators. Gathers go directly
// between the devices if these can (device_gathers.h), else through host memory; gather_note() says which, and why.
// CacheConfig::shares: of each divided group as many as devices. Recurrent states are the same on all
// devices. Candidates are selected on each device (tensor_logits.h). info().kind tells layouts of blocks apart
// (block_pieces.h).
// LoadProgress runs on the threads of the devices, but never twice at a time.
std::unique_ptr<Backend> make_tensor_backend(std::vector<std::unique_ptr<Backend>> devices,
                                             std::vector<double> shares, std::vector<std::string> names = {},
                                             MakeCommunicators communicators = communicate_in_process,
                                             MatrixCut matrices = MatrixCut::Rows);

}  // namespace runnel::kernels
