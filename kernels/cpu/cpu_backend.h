// The CPU device: runs a Program phase by phase (plan.h) on a team of threads (pool.h).
//
// Weights are used as they are in the file: in place in the mapping, or copied (weight_memory.h). A few formats are also in another
// order (linear_lookup.h). Results follow the contract in README.md beside this file: they depend neither on threads nor on the
// batch nor on the instruction set.
#pragma once

#include <memory>
#include <string>

#include "kernels/backend.h"

namespace runnel::kernels::cpu {

class WeightMemory;

// threads <= 0: one per physical core that this process may use, fewer for a small model whose threads would
// mostly wait for each other.
// instructions: the kernels to use, a name as instruction_set() returns it; empty: the best ones. Throws
// BackendError if this CPU lacks them.
// weights: what load() lets copy or lock the weights; null: they stay where they are.
std::unique_ptr<Backend> make_cpu_backend(int threads, const std::string &instructions = {},
                                          std::shared_ptr<WeightMemory> weights = nullptr);

// The instruction set of the default kernels: "amx", "avx512", "avx2" or "scalar". The environment variable
// RUNNEL_CPU can select a lower one; selecting one that the CPU lacks throws BackendError.
std::string instruction_set();

}  // namespace runnel::kernels::cpu
