// The CPU as a device: interprets a Program phase by phase (plan.h) on a team of threads (pool.h).
//
// Weights are used in place, from the mapped file: nothing is read, copied or repacked at load. Results
// follow the contract of README.md beside this file: they depend on neither threads nor batch nor instruction
// set.
#pragma once

#include <memory>
#include <string>

#include "kernels/backend.h"

namespace runnel::kernels::cpu {

// threads <= 0: one per physical core that this process may use, fewer for a model so small that its threads
// would mostly wait for each other.
// `instructions`: whose kernels are used, as instruction_set() names them; empty: that one's. Throws
// BackendError for one that this CPU does not run.
std::unique_ptr<Backend> make_cpu_backend(int threads, const std::string &instructions = {});

// The instruction set whose kernels run here: "avx512", "avx2" or "scalar". The environment variable
// RUNNEL_CPU may ask for a lower one; asking for one that the CPU lacks throws BackendError.
std::string instruction_set();

}  // namespace runnel::kernels::cpu
