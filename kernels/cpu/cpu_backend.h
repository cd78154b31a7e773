// The CPU device: runs a Program phase by phase (plan.h) on a team of threads (pool.h).
//
// Weights are used in place from the mapped file: nothing is read, copied or repacked at load. Results
// follow the contract in README.md beside this file: they depend neither on threads nor on the batch
// nor on the instruction set.
#pragma once

#include <memory>
#include <string>

#include "kernels/backend.h"

namespace runnel::kernels::cpu {

// threads <= 0: one per physical core that this process may use, fewer for a small model whose threads would
// mostly wait for each other.
// instructions: the kernels to use, a name as instruction_set() returns it; empty: the best ones. Throws
// BackendError if this CPU lacks them.
std::unique_ptr<Backend> make_cpu_backend(int threads, const std::string &instructions = {});

// The instruction set of the default kernels: "amx", "avx512", "avx2" or "scalar". The environment variable
// RUNNEL_CPU can select a lower one; selecting one that the CPU lacks throws BackendError.
std::string instruction_set();

}  // namespace runnel::kernels::cpu
